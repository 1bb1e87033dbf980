// The ops as functions on Tensors.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "coda/graph.h"
#include "ops/opaque.h"

namespace coda {
namespace {

Graph& graph_of(Tensor t, const char* op) {
  if (!t) {
    throw_error<UsageError>(
        "{}: expected a value of a Graph, got an empty Tensor. Make it with a function of the "
        "Graph.",
        op);
  }
  return t.graph();
}

Attrs of_pairs(Pairs pairs) {
  Attrs attrs;
  attrs.layout = pairs.layout;
  attrs.period = pairs.period;
  return attrs;
}

Attrs of_range(std::int64_t lo, std::int64_t hi) {
  Attrs attrs;
  attrs.lo = lo;
  attrs.hi = hi;
  return attrs;
}

Attrs of_period(std::int64_t period) {
  Attrs attrs;
  attrs.period = period;
  return attrs;
}

Attrs of_targets(std::int64_t classes, std::int64_t ignore_index) {
  Attrs attrs;
  attrs.hi = classes;
  attrs.ignore_index = ignore_index;
  return attrs;
}

std::int32_t head_count(const char* op, const char* what, std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (count < 1 || count > kMost) {
    throw_error<UsageError>("{}: {}: expected 1 to {}, got {}. Give the model's number of heads.",
                            op, what, kMost, count);
  }
  return static_cast<std::int32_t>(count);
}

double finite_scale(const char* op, double scale) {
  if (std::isfinite(scale)) return scale;
  throw_error<UsageError>(
      "{}: scale: expected a finite number, got {}. 1 / sqrt(head_dim) is usual.", op, scale);
}

Attrs of_transposes(bool a, bool b) {
  Attrs attrs;
  attrs.transpose_a = a;
  attrs.transpose_b = b;
  return attrs;
}

Attrs of_attention(Opaque opaque, std::int64_t n_heads, std::int64_t n_kv_heads,
                   std::int64_t head_dim, double scale, const AttentionOptions& options) {
  Attrs attrs;
  const char* name = row_of(opaque).name.data();
  if (options.window < 0) {
    throw_error<UsageError>("{}: window: expected a number of keys, got {}. 0 is no window.", name,
                            options.window);
  }
  if (options.softcap != 0 && !(options.softcap >= 1e-30 && options.softcap <= 1e30)) {
    throw_error<UsageError>(
        "{}: softcap: expected a number from 1e-30 to 1e30, got {}. 0 is no cap.", name,
        options.softcap);
  }
  attrs.opaque = opaque;
  attrs.value = finite_scale(name, scale);
  attrs.softcap = options.softcap;
  attrs.lo = options.window;
  attrs.period = head_dim;
  attrs.index = head_count(name, "n_heads", n_heads);
  attrs.index2 = head_count(name, "n_kv_heads", n_kv_heads);
  return attrs;
}

}  // namespace

Tensor operator+(Tensor a, Tensor b) { return graph_of(a, "add").make(Op::add, {a, b}); }
Tensor operator-(Tensor a, Tensor b) { return graph_of(a, "sub").make(Op::sub, {a, b}); }
Tensor operator*(Tensor a, Tensor b) { return graph_of(a, "mul").make(Op::mul, {a, b}); }
Tensor operator/(Tensor a, Tensor b) { return graph_of(a, "div").make(Op::div, {a, b}); }
Tensor operator-(Tensor a) { return graph_of(a, "neg").make(Op::neg, {a}); }
Tensor operator+(Tensor a, double b) { return a + graph_of(a, "add").constant(b); }
Tensor operator-(Tensor a, double b) { return a - graph_of(a, "sub").constant(b); }
Tensor operator*(Tensor a, double b) { return a * graph_of(a, "mul").constant(b); }
Tensor operator/(Tensor a, double b) { return a / graph_of(a, "div").constant(b); }

Tensor exp(Tensor x) { return graph_of(x, "exp").make(Op::exp, {x}); }
Tensor log(Tensor x) { return graph_of(x, "log").make(Op::log, {x}); }
Tensor tanh(Tensor x) { return graph_of(x, "tanh").make(Op::tanh, {x}); }
Tensor sigmoid(Tensor x) { return graph_of(x, "sigmoid").make(Op::sigmoid, {x}); }
Tensor rsqrt(Tensor x) { return graph_of(x, "rsqrt").make(Op::rsqrt, {x}); }
Tensor erf(Tensor x) { return graph_of(x, "erf").make(Op::erf, {x}); }
Tensor maximum(Tensor a, Tensor b) { return graph_of(a, "maximum").make(Op::maximum, {a, b}); }
Tensor maximum(Tensor a, double b) { return maximum(a, graph_of(a, "maximum").constant(b)); }
Tensor greater(Tensor a, Tensor b) { return graph_of(a, "greater").make(Op::greater, {a, b}); }
Tensor equal(Tensor a, Tensor b) { return graph_of(a, "equal").make(Op::equal, {a, b}); }

Tensor cast(Tensor x, DType dtype) {
  Attrs attrs;
  attrs.dtype = dtype;
  return graph_of(x, "cast").make(Op::cast, {x}, attrs);
}

Tensor broadcast(Tensor x, Type type) {
  Graph& graph = graph_of(x, "broadcast");
  if (same_shape(x.type(), type)) return x;
  Attrs attrs;
  attrs.index = static_cast<std::int32_t>(type.kind);
  attrs.hi = type.cols;
  attrs.lo = type.rows;
  return graph.make(Op::broadcast, {x}, attrs);
}

Tensor cols(Tensor x, std::int64_t lo, std::int64_t hi) {
  return graph_of(x, "cols").make(Op::cols, {x}, of_range(lo, hi));
}

Tensor cat_cols(const std::vector<Tensor>& parts) {
  if (parts.empty()) throw_error<UsageError>("cat_cols: expected at least one part, got none");
  return graph_of(parts[0], "cat_cols").make(Op::cat_cols, parts);
}

Tensor rows(Tensor weight, std::int64_t lo, std::int64_t hi) {
  return graph_of(weight, "rows").make(Op::rows, {weight}, of_range(lo, hi));
}

Tensor cat_rows(const std::vector<Tensor>& weights) {
  if (weights.empty()) throw_error<UsageError>("cat_rows: expected at least one part, got none");
  return graph_of(weights[0], "cat_rows").make(Op::cat_rows, weights);
}

Tensor first_of_pair(Tensor x, Pairs pairs) {
  return graph_of(x, "first_of_pair").make(Op::first_of_pair, {x}, of_pairs(pairs));
}

Tensor second_of_pair(Tensor x, Pairs pairs) {
  return graph_of(x, "second_of_pair").make(Op::second_of_pair, {x}, of_pairs(pairs));
}

Tensor join(Tensor first, Tensor second, Pairs pairs) {
  return graph_of(first, "join").make(Op::join, {first, second}, of_pairs(pairs));
}

Tensor rotate(Tensor x, Tensor pos, Tensor freq, Pairs pairs) {
  return graph_of(x, "rotate").make(Op::rotate, {x, pos, freq}, of_pairs(pairs));
}

Tensor unrotate(Tensor x, Tensor pos, Tensor freq, Pairs pairs) {
  return graph_of(x, "unrotate").make(Op::unrotate, {x, pos, freq}, of_pairs(pairs));
}

Tensor segment_sum(Tensor x, std::int64_t period) {
  return graph_of(x, "segment_sum").make(Op::segment_sum, {x}, of_period(period));
}

Tensor segment_broadcast(Tensor x, std::int64_t period) {
  return graph_of(x, "segment_broadcast").make(Op::segment_broadcast, {x}, of_period(period));
}

Tensor repeat(Tensor row, std::int64_t times) {
  return graph_of(row, "repeat").make(Op::repeat, {row}, of_range(0, times));
}

Tensor fold(Tensor row, std::int64_t times) {
  return graph_of(row, "fold").make(Op::fold, {row}, of_range(0, times));
}

Tensor row_sum(Tensor x) { return graph_of(x, "row_sum").make(Op::row_sum, {x}); }
Tensor row_max(Tensor x) { return graph_of(x, "row_max").make(Op::row_max, {x}); }
Tensor col_sum(Tensor x) { return graph_of(x, "col_sum").make(Op::col_sum, {x}); }
Tensor lse(Tensor x) { return graph_of(x, "lse").make(Op::lse, {x}); }
Tensor log_sum(Tensor x) { return graph_of(x, "log_sum").make(Op::log_sum, {x}); }
Tensor sum(Tensor vector) { return graph_of(vector, "sum").make(Op::sum, {vector}); }

Tensor pick(Tensor x, Tensor targets, std::int64_t ignore_index) {
  return graph_of(x, "pick").make(Op::pick, {x, targets}, of_targets(0, ignore_index));
}

Tensor onehot(Tensor targets, std::int64_t classes, std::int64_t ignore_index) {
  return graph_of(targets, "onehot").make(Op::onehot, {targets}, of_targets(classes, ignore_index));
}

Tensor valid(Tensor targets, std::int64_t ignore_index) {
  return graph_of(targets, "valid").make(Op::valid, {targets}, of_targets(0, ignore_index));
}

Tensor matmul_nt(Tensor a, Tensor b) {
  return graph_of(a, "matmul").make(Op::matmul, {a, b}, of_transposes(false, true));
}

Tensor matmul_nn(Tensor a, Tensor b) {
  return graph_of(a, "matmul").make(Op::matmul, {a, b}, of_transposes(false, false));
}

Tensor matmul_tn(Tensor a, Tensor b) {
  return graph_of(a, "matmul").make(Op::matmul, {a, b}, of_transposes(true, false));
}

Tensor attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, std::int64_t n_heads,
                 std::int64_t n_kv_heads, std::int64_t head_dim, double scale,
                 AttentionOptions options) {
  const Attrs attrs =
      of_attention(Opaque::attention, n_heads, n_kv_heads, head_dim, scale, options);
  Graph& graph = graph_of(q, "attention");
  return graph.make(Op::proj, {graph.make(Op::opaque, {q, k, v, cu_seqlens}, attrs)});
}

Tensor cached_attention(Tensor q, Tensor k, Tensor v, Tensor cache_k, Tensor cache_v,
                        Tensor cu_seqlens, Tensor past, std::int64_t n_heads,
                        std::int64_t n_kv_heads, std::int64_t head_dim, std::int64_t capacity,
                        double scale, AttentionOptions options) {
  Attrs attrs =
      of_attention(Opaque::cached_attention, n_heads, n_kv_heads, head_dim, scale, options);
  attrs.hi = capacity;
  Graph& graph = graph_of(q, "cached_attention");
  const std::vector<Tensor> operands{q, k, v, cache_k, cache_v, cu_seqlens, past};
  return graph.make(Op::proj, {graph.make(Op::opaque, operands, attrs)});
}

Tensor embedding(Tensor table, Tensor ids) {
  Attrs attrs;
  attrs.opaque = Opaque::embedding;
  Graph& graph = graph_of(table, "embedding");
  return graph.make(Op::proj, {graph.make(Op::opaque, {table, ids}, attrs)});
}

}  // namespace coda
