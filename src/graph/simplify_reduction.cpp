// Reductions: of a broadcast they are vector arithmetic, and factors that are constant along what
// is summed are pulled out. This alone turns row_sum(dz * (z / rstd)) into row_sum(dz * z) / rstd.
#include <cmath>

#include "graph/simplify.h"

namespace coda {
namespace {

/// The number of rows: a sum of ones, since M is known only at run time.
Tensor row_count(Graph& graph) {
  return sum(broadcast(graph.constant(1), {Kind::col, kTokens, 1, DType::f32}));
}

/// Is a factor of this kind one number for all that `reduction` sums?
bool constant_along(Op reduction, Kind kind) {
  if (kind == Kind::scalar) return true;
  return reduction == Op::row_sum ? kind == Kind::col
                                  : reduction == Op::col_sum && kind == Kind::row;
}

/// t = rest * numerator / denominator; null stands for 1. rest has the type of t.
struct Split {
  Tensor rest, numerator, denominator;
  bool found() const { return numerator || denominator; }
};

Tensor times(Tensor a, Tensor b) { return !a ? b : !b ? a : a * b; }

Split split(Graph& graph, Tensor t, Op reduction) {
  const Node node = graph.node(t.id());
  if (node.op == Op::broadcast) {
    const Tensor inner = graph.at(node.in[0]);
    if (!constant_along(reduction, inner.type().kind) || is_constant(graph, inner.id(), 1)) {
      return {t, {}, {}};
    }
    return {broadcast(graph.constant(1), node.type), inner, {}};
  }
  const bool product = node.op == Op::mul || node.op == Op::div || node.op == Op::neg;
  if (!product || is_atom(graph, t.id())) return {t, {}, {}};
  if (node.op == Op::neg) {
    const Split inner = split(graph, graph.at(node.in[0]), reduction);
    return {inner.rest, times(inner.numerator, graph.constant(-1)), inner.denominator};
  }
  Split parts[2];
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor x = graph.at(node.in[i]);
    const bool factor = x.type().kind != node.type.kind;
    if (!factor) {
      parts[i] = split(graph, x, reduction);
    } else if (constant_along(reduction, x.type().kind)) {
      parts[i].numerator = x;
    } else {
      parts[i].rest = x;
    }
  }
  if (!parts[0].found() && !parts[1].found()) return {t, {}, {}};
  const auto& [a, b] = parts;
  const Tensor rest_a = a.rest ? a.rest : broadcast(graph.constant(1), node.type);
  if (node.op == Op::mul) {
    return {a.rest && b.rest ? a.rest * b.rest : (a.rest ? a.rest : b.rest),
            times(a.numerator, b.numerator), times(a.denominator, b.denominator)};
  }
  return {b.rest ? rest_a / b.rest : rest_a, times(a.numerator, b.denominator),
          times(a.denominator, b.numerator)};
}

Tensor pull_factors(Graph& graph, const Node& node) {
  const Tensor t = graph.at(node.in[0]);
  if (t.type().kind == Kind::scalar) return {};
  const Split parts = split(graph, t, node.op);
  if (!parts.found()) return {};
  Tensor result = graph.make(node.op, {broadcast(parts.rest, t.type())});
  if (parts.numerator) result = result * parts.numerator;
  return parts.denominator ? result / parts.denominator : result;
}

/// The reduction of a broadcast value, of type `node.type`.
Tensor of_broadcast(Graph& graph, const Node& node, const Node& whole) {
  const Tensor inner = graph.at(whole.in[0]);
  const bool along = constant_along(node.op, inner.type().kind);
  const double n = static_cast<double>(whole.type.cols);
  switch (node.op) {
    case Op::row_sum:
      return broadcast(along ? inner * n : sum(inner), node.type);
    case Op::row_max:
      return whole.type.cols > 0 && along ? broadcast(inner, node.type) : Tensor{};
    case Op::lse:
      return along ? broadcast(inner + std::log(n), node.type) : Tensor{};
    case Op::log_sum:  // of n times the same number
      return whole.type.cols > 0 && along ? broadcast(graph.constant(std::log(n)), node.type)
                                          : Tensor{};
    case Op::col_sum: {
      if (!along) return broadcast(sum(inner), node.type);
      const bool tokens = whole.type.rows == kTokens;
      return broadcast(
          tokens ? inner * row_count(graph) : inner * static_cast<double>(whole.type.rows),
          node.type);
    }
    default:  // sum of a scalar broadcast to a vector
      if (whole.type.kind == Kind::row) return inner * n;
      return is_constant(graph, inner.id(), 1) ? Tensor{} : inner * row_count(graph);
  }
}

/// The reduction of parts side by side (or one above the other).
Tensor of_parts(Graph& graph, const Node& node, const Node& cat) {
  if (is_online(node.op)) return {};
  std::vector<Tensor> parts;
  for (NodeId id : std::vector<NodeId>(cat.in))
    parts.push_back(graph.make(node.op, {graph.at(id)}));
  if (node.op == Op::col_sum && cat.op == Op::cat_cols) return cat_cols(parts);
  Tensor result = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    result = node.op == Op::row_max ? maximum(result, parts[i]) : result + parts[i];
  }
  return result;
}

}  // namespace

Tensor simplify_reduction(Graph& graph, const Node& node) {
  const Node from = graph.node(node.in[0]);
  if (from.op == Op::broadcast) return of_broadcast(graph, node, from);
  if (from.op == Op::cat_cols || from.op == Op::cat_rows) return of_parts(graph, node, from);
  if (node.op == Op::row_max || is_online(node.op)) return {};
  if (node.op == Op::row_sum && from.op == Op::segment_broadcast) {
    return row_sum(graph.at(from.in[0])) * static_cast<double>(from.attrs.period);
  }
  if (node.op == Op::row_sum && from.op == Op::segment_sum) return row_sum(graph.at(from.in[0]));
  if (node.op == Op::row_sum && from.op == Op::onehot) {
    return valid(graph.at(from.in[0]), from.attrs.ignore_index);
  }
  return pull_factors(graph, node);
}

}  // namespace coda
