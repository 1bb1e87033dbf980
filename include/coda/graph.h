// Level 1 of coda: plain math on tensors. Users build a Graph with the functions below; the
// compiler (plan/compile.h) defers, merges, differentiates, partitions it into Programs.
//
// Nodes are hash-consed while building: equal (op, operands, attrs) are one node (CSE), adds and
// muls order their operands by id, and 0 / 1 / constants fold. Node ids are topological: operands
// come first.
//
// A Graph is not thread-safe. Tensors, and references to nodes, refer to the Graph object: it must
// outlive them and stay where it is (no move, no copy meanwhile); what compile() returns does not
// need it any more. A reference to a node is good until the next node is made.
//
// Canonical forms: cols and rows sink towards the leaves through elementwise ops, cat_cols and
// cat_rows rise towards the results; halves of the whole width are cols and cat_cols; broadcasts
// are stripped where the other operand has the shape; sums pull out factors that are constant along
// what is summed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coda/op.h"

namespace coda {

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

/// Stands for M, the number of tokens, which is free per run.
inline constexpr std::int64_t kTokens = -1;

/// Kind, extents and memory type of a value. rows is kTokens for tile and col of token programs;
/// a col has cols = 1, a row vector has rows = 1, a scalar both, a list rows = 0 (as many as are
/// bound). dtype matters for inputs only: everything computed is fp32 until a cast.
struct Type {
  Kind kind = Kind::scalar;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  DType dtype = DType::f32;
  auto operator<=>(const Type&) const = default;
};

/// Equal but for the memory type.
inline bool same_shape(const Type& a, const Type& b) {
  return a.kind == b.kind && a.rows == b.rows && a.cols == b.cols;
}

struct Node {
  Op op;
  std::vector<NodeId> in;
  Attrs attrs;
  Type type;
  std::string name;  ///< inputs: the binding name; others: a hint for printing, may be empty
};

class Graph;

/// Handle of a node, cheap to copy. Arithmetic broadcasts: tile op col, tile op row, weight op row,
/// anything op scalar. An empty one (made by default, or the gradient of what nothing depends on)
/// is false, has id kNoNode, and may be handed to nothing else.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Graph* graph, NodeId id) : graph_(graph), id_(id) {}
  Graph& graph() const;  ///< throws UsageError if empty
  NodeId id() const { return id_; }
  Type type() const;  ///< throws UsageError if empty
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  Graph* graph_ = nullptr;
  NodeId id_ = kNoNode;
};

class Graph {
 public:
  // Inputs, bound by name at run time: see Session::bind. Names are of letters, digits, '_' and '.'
  // (programs are text; compile() checks it) and unique: a second use of a name with another type
  // throws UsageError, with the same type returns the same node. Extents are 0 to 2^31 - 1.
  // Numbers are f32, bf16 or f16; f64 is held by the reference backend alone. Integers (i32, i64)
  // make sense for a col only: targets, positions, ids.

  /// [M, cols], one row a token.
  Tensor tile(std::string_view name, std::int64_t cols, DType dtype = DType::f32);
  /// [rows, cols]: output features by input features.
  Tensor weight(std::string_view name, std::int64_t rows, std::int64_t cols,
                DType dtype = DType::f32);
  /// [cols], one number a column.
  Tensor row(std::string_view name, std::int64_t cols, DType dtype = DType::f32);
  /// [M], one number a token.
  Tensor col(std::string_view name, DType dtype = DType::f32);
  /// [], f32.
  Tensor scalar(std::string_view name);
  /// As many i32 as are bound; for opaque nodes (cu_seqlens, past).
  Tensor list(std::string_view name);
  /// [], known when compiling; any double, rounded to fp32 in programs.
  Tensor constant(double value);

  /// The one way to make a node: checks kinds and shapes (UsageError), infers the type, simplifies,
  /// returns an existing equal node if there is one. Operands are Tensors of this Graph.
  Tensor make(Op op, const std::vector<Tensor>& operands, const Attrs& attrs = {});

  /// Attaches a name for printing (first one wins); returns t, which must be of this Graph.
  Tensor named(Tensor t, std::string_view name);

  /// Throw UsageError for an id outside [0, size()).
  const Node& node(NodeId id) const {
    check_id(id);
    return nodes_[static_cast<std::size_t>(id)];
  }
  Tensor at(NodeId id) {
    check_id(id);
    return Tensor(this, id);
  }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }
  NodeId find_input(std::string_view name) const;  ///< kNoNode if absent

  /// Nodes with smaller ids are atoms: no simplification undoes or opens them. Rewrites of the
  /// backward phase set it, so that a stored z = acc * rstd is not taken apart again.
  void set_atoms_below(NodeId id) { atoms_below_ = id; }
  NodeId atoms_below() const { return atoms_below_; }

 private:
  void check_id(NodeId id) const {
    if (id < 0 || id >= size()) no_node(id);
  }
  [[noreturn]] void no_node(NodeId id) const;
  Tensor input(std::string_view name, const Type& type);
  NodeId intern(Node node);
  std::vector<Node> nodes_;
  NodeId atoms_below_ = 0;
  std::unordered_map<std::string, NodeId> inputs_;
  std::unordered_multimap<std::size_t, NodeId> index_;  ///< hash of (op, in, attrs) -> candidates
};

// --- Ops as functions. Every one throws UsageError that names the op and prints the shapes: for an
// empty Tensor, one of another Graph, integers where numbers are needed, shapes that do not fit.
// Operands of any float dtype; results are fp32. docs/ops.md has equations and derivatives.

/// Elementwise, with broadcasting as Tensor says; the result has the larger shape.
Tensor operator+(Tensor a, Tensor b);
Tensor operator-(Tensor a, Tensor b);
Tensor operator*(Tensor a, Tensor b);
Tensor operator/(Tensor a, Tensor b);
Tensor operator-(Tensor a);
Tensor operator+(Tensor a, double b);
Tensor operator-(Tensor a, double b);
Tensor operator*(Tensor a, double b);
Tensor operator/(Tensor a, double b);
Tensor exp(Tensor x);
Tensor log(Tensor x);
Tensor tanh(Tensor x);
Tensor sigmoid(Tensor x);
Tensor rsqrt(Tensor x);
Tensor erf(Tensor x);
Tensor maximum(Tensor a, Tensor b);  ///< the derivative goes to the larger, halves if equal
Tensor maximum(Tensor a, double b);
Tensor greater(Tensor a, Tensor b);  ///< 1 where a > b, else 0; no derivative
Tensor equal(Tensor a, Tensor b);    ///< 1 where a = b, else 0; no derivative
Tensor cast(Tensor x, DType dtype);  ///< rounds to a float dtype; the derivative passes through
/// x with the kind and extents of a larger type; x itself if it has them.
Tensor broadcast(Tensor x, Type type);
/// Columns [lo, hi) of a tile or row vector: [M, n] -> [M, hi - lo].
Tensor cols(Tensor x, std::int64_t lo, std::int64_t hi);
/// Tiles, or row vectors, side by side; at least one.
Tensor cat_cols(const std::vector<Tensor>& parts);
/// Rows [lo, hi) of a weight: [n, k] -> [hi - lo, k].
Tensor rows(Tensor weight, std::int64_t lo, std::int64_t hi);
/// Weights of one width, one above the other; at least one.
Tensor cat_rows(const std::vector<Tensor>& weights);
/// One column of each pair, in order: [M, n] -> [M, n / 2]. The period divides n.
Tensor first_of_pair(Tensor x, Pairs pairs);
Tensor second_of_pair(Tensor x, Pairs pairs);
/// The tile whose pairs they are: [M, n], [M, n] -> [M, 2n].
Tensor join(Tensor first, Tensor second, Pairs pairs);
/// Rotates each pair of x by pos * freq turns. x: [M, heads * P]; pos: i32 or i64 [M] (a position
/// below 0 is an error of the run); freq: [P], P = pairs.period (head dimension): entries
/// 0..P/2-1 the high parts, P/2..P-1 the low parts of turns per position. interleaved takes P from
/// freq.
Tensor rotate(Tensor x, Tensor pos, Tensor freq, Pairs pairs);
/// The same by the negative angle.
Tensor unrotate(Tensor x, Tensor pos, Tensor freq, Pairs pairs);
/// Sums of `period` neighbouring columns: [M, n] -> [M, n / period].
Tensor segment_sum(Tensor x, std::int64_t period);
/// Each column `period` times: [M, n] -> [M, n * period].
Tensor segment_broadcast(Tensor x, std::int64_t period);
/// A row vector `times` times over: [p] -> [p * times].
Tensor repeat(Tensor row, std::int64_t times);
/// Its adjoint, the sum of the `times` parts: [p * times] -> [p].
Tensor fold(Tensor row, std::int64_t times);
Tensor row_sum(Tensor x);   ///< [M, n] -> [M]
Tensor row_max(Tensor x);   ///< [M, n] -> [M]
Tensor col_sum(Tensor x);   ///< [M, n] -> [n]; also of a weight
Tensor lse(Tensor x);       ///< [M, n] -> [M], log of the sum of exponentials of each row
Tensor log_sum(Tensor x);   ///< [M, n] -> [M], lse(x) - row_max(x); no derivative
Tensor sum(Tensor vector);  ///< col or row -> scalar
/// x at each row's target: [M, n], i32 or i64 [M] -> [M]; 0 where the target is ignore_index. Any
/// other target outside [0, n) is an error of the run. ignore_index must be no class.
Tensor pick(Tensor x, Tensor targets, std::int64_t ignore_index = -100);
/// i32 or i64 [M] -> [M, classes] of 1 at the target and 0; a row that is ignored is all 0.
Tensor onehot(Tensor targets, std::int64_t classes, std::int64_t ignore_index = -100);
/// i32 or i64 [M] -> [M]: 0 where the target is ignore_index, else 1.
Tensor valid(Tensor targets, std::int64_t ignore_index = -100);
/// Products, summed in fp32. b of nt and nn is a weight, both operands of tn are tiles.
Tensor matmul_nt(Tensor a, Tensor b);  ///< a b^T: [M, k], [n, k] -> [M, n]
Tensor matmul_nn(Tensor a, Tensor b);  ///< a b: [M, n], [n, k] -> [M, k]
Tensor matmul_tn(Tensor a, Tensor b);  ///< a^T b: [M, n], [M, k] -> [n, k], a weight

/// How attention differs from softmax over all keys up to the query.
struct AttentionOptions {
  /// Keys that a query sees: its own and those before it in its sequence, so many at most; 0: all.
  std::int64_t window = 0;
  /// A scaled score s counts as softcap * tanh(s / softcap); from 1e-30 to 1e30, or 0: as s.
  double softcap = 0;
};

/// Grouped-query causal attention over packed sequences (opaque). q: [M, n_heads * head_dim];
/// k, v: [M, n_kv_heads * head_dim], n_kv_heads divides n_heads; cu_seqlens: i32 list [B + 1], 0
/// first, M last, never falling (else an error of the run). scale: finite, of the scores. -> [M,
/// n_heads * head_dim].
Tensor attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, std::int64_t n_heads,
                 std::int64_t n_kv_heads, std::int64_t head_dim, double scale,
                 AttentionOptions options = {});
/// Attention to what earlier runs left in a cache (opaque, not differentiable). Of each sequence s,
/// past[s] rows are in the cache; the rows of this run, cu_seqlens[s] to cu_seqlens[s + 1], go
/// behind them, and each query sees the rows before it and its own. A run *writes* its k and v to
/// cache_k and cache_v: weights [sequences * n_kv_heads * capacity, head_dim], where row
/// (s * n_kv_heads + g) * capacity + t holds head g of row t of sequence s. past: i32 list, one
/// entry a sequence. Nodes of one graph need caches of their own. -> [M, n_heads * head_dim].
Tensor cached_attention(Tensor q, Tensor k, Tensor v, Tensor cache_k, Tensor cache_v,
                        Tensor cu_seqlens, Tensor past, std::int64_t n_heads,
                        std::int64_t n_kv_heads, std::int64_t head_dim, std::int64_t capacity,
                        double scale, AttentionOptions options = {});
/// Rows of table [vocab, d] picked by token ids, i32 or i64 [M] (opaque) -> [M, d]. An id outside
/// [0, vocab) is an error of the run.
Tensor embedding(Tensor table, Tensor ids);

/// One line a node: `%12 = mul %3, %7 : [M, 64]`; inputs by name.
std::string to_string(const Graph& graph);
/// Only what the roots need, numbered from 0, and a last line that names the roots; an empty one is
/// "none". Throws UsageError for a root of another graph.
std::string to_string(const Graph& graph, const std::vector<Tensor>& roots);
/// "tile [M, 64]"
std::string to_string(const Type& type);

// --- reverse mode ---
/// An output and the cotangent that arrives for it (same kind and extents as value; kind scalar:
/// may be constant 1).
struct Seed {
  Tensor value;
  Tensor cotangent;
};
/// Gradients of sum <value, cotangent> for each of wrt, built from the same ops in the same graph,
/// each with the kind and extents of its wrt, in fp32; what no value depends on gets an empty
/// Tensor. Throws UsageError for integers, an empty Tensor, Tensors of two graphs, a cotangent of
/// another shape, or an op without derivative (cached_attention, log_sum) on the way.
std::vector<Tensor> gradients(const std::vector<Seed>& seeds, const std::vector<Tensor>& wrt);

}  // namespace coda
