#include "coda/graph.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/simplify.h"
#include "ops/op_table.h"

namespace coda {
namespace {

std::size_t mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
}

std::size_t hash_of(const Node& node) {
  const Attrs& a = node.attrs;
  std::size_t seed = static_cast<std::size_t>(node.op);
  for (NodeId id : node.in) seed = mix(seed, static_cast<std::size_t>(id));
  seed = mix(seed, std::hash<double>()(a.value));
  for (std::int64_t field :
       {a.lo, a.hi, a.period, a.ignore_index, std::int64_t{a.index}, std::int64_t{a.index2},
        std::int64_t(a.layout), std::int64_t(a.dtype), std::int64_t(a.opaque),
        std::int64_t{a.transpose_a}, std::int64_t{a.transpose_b}}) {
    seed = mix(seed, static_cast<std::size_t>(field));
  }
  return seed;
}

bool commutative(Op op) {
  return op == Op::add || op == Op::mul || op == Op::maximum || op == Op::equal;
}

void check_extent(std::string_view name, std::string_view what, std::int64_t extent) {
  if (extent < 0 || extent > kMostExtent) {
    throw_error<UsageError>("input {}: expected {} >= 0 and at most {}, got {}. Give such a size.",
                            name, what, kMostExtent, extent);
  }
}

}  // namespace

Graph& Tensor::graph() const {
  if (graph_ != nullptr) return *graph_;
  throw_error<UsageError>(
      "Tensor::graph: expected a value of a Graph, got an empty Tensor. Make it with a function of "
      "the Graph.");
}

void Graph::no_node(NodeId id) const {
  throw_error<UsageError>(
      "Graph::node: expected an id in [0, {}), got {}. Ids are those of Tensors of this Graph.",
      size(), id);
}

Type Tensor::type() const {
  if (graph_ == nullptr) {
    throw_error<UsageError>(
        "Tensor::type: expected a value of a Graph, got an empty Tensor. Make it with a function "
        "of the Graph; gradients() gives an empty one where nothing depends on the input.");
  }
  return graph_->node(id_).type;
}

Tensor Graph::input(std::string_view name, const Type& type) {
  if (name.empty()) throw_error<UsageError>("input: expected a name, got an empty one");
  const NodeId found = find_input(name);
  if (found == kNoNode) {
    Node node{Op::input, {}, {}, type, std::string(name)};
    const NodeId id = size();
    nodes_.push_back(std::move(node));
    inputs_.emplace(name, id);
    return at(id);
  }
  if (node(found).type != type) {
    throw_error<UsageError>(
        "input {}: expected {} {}, as it was made first, got {} {}. Give the second one another "
        "name.",
        name, name_of(node(found).type.dtype), to_string(node(found).type), name_of(type.dtype),
        to_string(type));
  }
  return at(found);
}

Tensor Graph::tile(std::string_view name, std::int64_t cols, DType dtype) {
  check_extent(name, "cols", cols);
  return input(name, {Kind::tile, kTokens, cols, dtype});
}

Tensor Graph::weight(std::string_view name, std::int64_t rows, std::int64_t cols, DType dtype) {
  check_extent(name, "rows", rows);
  check_extent(name, "cols", cols);
  return input(name, {Kind::weight, rows, cols, dtype});
}

Tensor Graph::row(std::string_view name, std::int64_t cols, DType dtype) {
  check_extent(name, "cols", cols);
  return input(name, {Kind::row, 1, cols, dtype});
}

Tensor Graph::col(std::string_view name, DType dtype) {
  return input(name, {Kind::col, kTokens, 1, dtype});
}

Tensor Graph::scalar(std::string_view name) {
  return input(name, {Kind::scalar, 1, 1, DType::f32});
}

Tensor Graph::list(std::string_view name) { return input(name, {Kind::list, 0, 1, DType::i32}); }

Tensor Graph::constant(double value) {
  Node node{Op::constant, {}, {}, {Kind::scalar, 1, 1, DType::f32}, {}};
  node.attrs.value = value + 0.0;  // -0 and 0 are one node
  return at(intern(std::move(node)));
}

Tensor Graph::make(Op op, const std::vector<Tensor>& operands, const Attrs& attrs) {
  Node node{op, {}, attrs, {}, {}};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i] || &operands[i].graph() != this) {
      throw_error<UsageError>("{}: operand {}: expected a Tensor of this Graph, got {}",
                              name_of(op), i + 1,
                              operands[i] ? "one of another Graph" : "a null Tensor");
    }
    node.in.push_back(operands[i].id());
  }
  node.type = infer_type(*this, op, node.in, node.attrs);
  if (commutative(op) && node.in[0] > node.in[1]) std::swap(node.in[0], node.in[1]);
  if (const Tensor simpler = simplify(*this, node)) return simpler;
  return at(intern(std::move(node)));
}

NodeId Graph::intern(Node node) {
  const std::size_t hash = hash_of(node);
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Node& other = nodes_[static_cast<std::size_t>(it->second)];
    if (other.op == node.op && other.in == node.in && other.attrs == node.attrs) return it->second;
  }
  const NodeId id = size();
  nodes_.push_back(std::move(node));
  index_.emplace(hash, id);
  return id;
}

Tensor Graph::named(Tensor t, std::string_view name) {
  if (!t || &t.graph() != this) {
    throw_error<UsageError>(
        "Graph::named: {}: expected a Tensor of this Graph, got {}. Name a value where it was "
        "made.",
        name, t ? "one of another Graph" : "an empty one");
  }
  std::string& current = nodes_[static_cast<std::size_t>(t.id())].name;
  if (current.empty()) current = name;
  return t;
}

NodeId Graph::find_input(std::string_view name) const {
  const auto it = inputs_.find(std::string(name));
  return it == inputs_.end() ? kNoNode : it->second;
}

}  // namespace coda
