#include <optional>
#include <set>

#include "graph/axis.h"
#include "graph/simplify.h"
#include "ops/scalar.h"

namespace coda {
namespace {

std::optional<double> constant_value(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != Op::constant) return std::nullopt;
  return node.attrs.value;
}

/// op(constants) = constant.
Tensor fold_constants(Graph& graph, const Node& node) {
  if (node.op == Op::cast || node.op == Op::broadcast) return {};
  double value[2] = {0, 0};
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const auto constant = constant_value(graph, node.in[i]);
    if (!constant) return {};
    value[i] = *constant;
  }
  return graph.constant(evaluate_scalar(node.op, value[0], value[1]));
}

/// op(broadcast(u), v) = broadcast(op(u, v)), or just op(u, v) where that has the shape; for a col
/// and a row, the col is the one that stays broadcast.
Tensor strip_broadcasts(Graph& graph, const Node& node) {
  std::vector<Tensor> inner;
  bool any = false;
  bool has_col = false, has_row = false;
  for (NodeId id : node.in) {
    const bool is_broadcast = graph.node(id).op == Op::broadcast;
    any = any || is_broadcast;
    inner.push_back(graph.at(is_broadcast ? graph.node(id).in[0] : id));
    has_col = has_col || inner.back().type().kind == Kind::col;
    has_row = has_row || inner.back().type().kind == Kind::row;
  }
  if (!any) return {};
  if (!has_col || !has_row) return broadcast(graph.make(node.op, inner, node.attrs), node.type);
  bool changed = false;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (inner[i].type().kind == Kind::col) inner[i] = broadcast(inner[i], node.type);
    changed = changed || inner[i].id() != node.in[i];
  }
  return changed ? graph.make(node.op, inner, node.attrs) : Tensor{};
}

/// op(a | b, x) = op(a, x's columns) | op(b, x's columns); the same for rows of weights.
Tensor raise_cat(Graph& graph, const Node& node) {
  const Axis axis{node.type.kind == Kind::weight};
  std::set<std::int64_t> ends;
  for (NodeId id : node.in) {
    if (graph.node(id).op != axis.cat()) continue;
    std::int64_t end = 0;
    for (NodeId part : graph.node(id).in) ends.insert(end += axis.extent(graph.node(part).type));
  }
  if (ends.empty()) return {};
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t end : ends) {
    std::vector<Tensor> operands;
    for (NodeId id : node.in) operands.push_back(axis.part(graph.at(id), begin, end));
    parts.push_back(graph.make(node.op, operands, node.attrs));
    begin = end;
  }
  return axis.join(parts);
}

/// join(a, 0) + join(0, b) = join(a, b).
Tensor add_joins(Graph& graph, const Node& node) {
  const Node& x = graph.node(node.in[0]);
  const Node& y = graph.node(node.in[1]);
  if (x.op != Op::join || y.op != Op::join || x.attrs != y.attrs) return {};
  const auto has_zero = [&](const Node& n) {
    return is_constant(graph, n.in[0], 0) || is_constant(graph, n.in[1], 0);
  };
  if (!has_zero(x) && !has_zero(y)) return {};
  const Attrs attrs = x.attrs;
  const Tensor a = graph.at(x.in[0]), b = graph.at(x.in[1]);
  const Tensor c = graph.at(y.in[0]), d = graph.at(y.in[1]);
  return graph.make(Op::join, {graph.make(node.op, {a, c}), graph.make(node.op, {b, d})}, attrs);
}

/// The operand x of node `t` if t = op(x, constant), with the constant in `value`.
Tensor with_constant(Graph& graph, Tensor t, Op op, double& value) {
  const Node& node = graph.node(t.id());
  if (node.op != op) return {};
  for (std::size_t i = 0; i < 2; ++i) {
    if (const auto constant = constant_value(graph, node.in[i])) {
      value = *constant;
      return graph.at(node.in[1 - i]);
    }
  }
  return {};
}

/// x if t = -x, else null.
Tensor negated(Graph& graph, Tensor t) {
  const Node& node = graph.node(t.id());
  return node.op == Op::neg && !is_atom(graph, t.id()) ? graph.at(node.in[0]) : Tensor{};
}

/// c * (t * v) = t * (c * v) for a vector v: one operation an element fewer.
Tensor into_vector(Graph& graph, Tensor constant, Tensor product) {
  const Node node = graph.node(product.id());
  if (node.op != Op::mul || is_atom(graph, product.id())) return {};
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor v = graph.at(node.in[i]), t = graph.at(node.in[1 - i]);
    if (v.type().kind != node.type.kind && t.type().kind == node.type.kind) {
      return t * (v * constant);
    }
  }
  return {};
}

Tensor simplify_sum(Graph& graph, const Node& node, Tensor a, Tensor b) {
  const bool sub = node.op == Op::sub;
  if (constant_value(graph, b.id()) == 0.0) return a;
  if (constant_value(graph, a.id()) == 0.0) return sub ? -b : b;
  if (!sub && a.id() == b.id()) return a * 2.0;
  if (const Tensor x = negated(graph, b)) return sub ? a + x : a - x;
  if (const Tensor x = negated(graph, a); x && !sub) return b - x;
  double inner = 0;
  for (const auto& [sum, other] : {std::pair{a, b}, std::pair{b, a}}) {
    const auto outer = constant_value(graph, other.id());
    if (sub || !outer) continue;
    if (const Tensor x = with_constant(graph, sum, Op::add, inner)) return x + (inner + *outer);
  }
  return add_joins(graph, node);
}

Tensor simplify_mul(Graph& graph, const Node& node, Tensor a, Tensor b) {
  if (constant_value(graph, b.id())) std::swap(a, b);
  if (const auto constant = constant_value(graph, a.id())) {
    if (*constant == 0) return zero_of(graph, node.type);
    if (*constant == 1) return b;
    if (*constant == -1) return -b;
    double inner = 0;
    if (const Tensor x = with_constant(graph, b, Op::mul, inner)) return x * (inner * *constant);
    if (const Tensor x = negated(graph, b)) return x * -*constant;
    return into_vector(graph, a, b);
  }
  if (const Tensor x = negated(graph, a)) return -(x * b);
  if (const Tensor x = negated(graph, b)) return -(a * x);
  return {};
}

Tensor simplify_div(Graph& graph, Tensor a, Tensor b) {
  if (constant_value(graph, b.id()) == 1.0) return a;
  if (constant_value(graph, b.id()) == -1.0) return -a;
  if (const Tensor x = negated(graph, a)) return -(x / b);
  if (const Tensor x = negated(graph, b)) return -(a / x);
  return {};
}

Tensor simplify_neg(Graph& graph, Tensor a) {
  if (const Tensor x = negated(graph, a)) return x;
  const Node& node = graph.node(a.id());
  if (node.op == Op::sub) return graph.at(node.in[1]) - graph.at(node.in[0]);
  double constant = 0;
  if (const Tensor x = with_constant(graph, a, Op::mul, constant)) return x * -constant;
  return {};
}

Tensor simplify_broadcast(Graph& graph, const Node& node) {
  const Node& inner = graph.node(node.in[0]);
  if (inner.op == Op::broadcast) return broadcast(graph.at(inner.in[0]), node.type);
  return {};
}

}  // namespace

Tensor simplify_elementwise(Graph& graph, const Node& node) {
  if (node.op == Op::broadcast) return simplify_broadcast(graph, node);
  if (const Tensor t = fold_constants(graph, node)) return t;
  if (const Tensor t = strip_broadcasts(graph, node)) return t;
  if (const Tensor t = raise_cat(graph, node)) return t;
  const Tensor a = graph.at(node.in[0]);
  const Tensor b = node.in.size() > 1 ? graph.at(node.in[1]) : Tensor{};
  switch (node.op) {
    case Op::add:
    case Op::sub:
      return simplify_sum(graph, node, a, b);
    case Op::mul:
      return simplify_mul(graph, node, a, b);
    case Op::div:
      return simplify_div(graph, a, b);
    case Op::neg:
      return simplify_neg(graph, a);
    case Op::maximum:
      return a.id() == b.id() ? a : Tensor{};
    case Op::cast:
      return graph.node(a.id()).type.dtype == node.attrs.dtype ? a : Tensor{};
    default:
      return {};
  }
}

}  // namespace coda
