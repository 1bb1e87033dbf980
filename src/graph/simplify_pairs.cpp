// Pairs of columns and segments.
#include "graph/simplify.h"
#include "ops/op_table.h"

namespace coda {
namespace {

bool whole_width(const Attrs& attrs, std::int64_t width) {
  return attrs.layout == PairLayout::halves && attrs.period == width;
}

Tensor simplify_half(Graph& graph, const Node& node) {
  const Tensor x = graph.at(node.in[0]);
  const Node& from = graph.node(x.id());
  const std::int64_t width = from.type.cols;
  const bool first = node.op == Op::first_of_pair;
  if (whole_width(node.attrs, width)) {
    return first ? cols(x, 0, width / 2) : cols(x, width / 2, width);
  }
  if (from.op == Op::join && from.attrs == node.attrs && !is_atom(graph, x.id()))
    return graph.at(from.in[first ? 0 : 1]);
  if (from.op == Op::broadcast && graph.node(from.in[0]).type.kind != Kind::row) {
    return broadcast(graph.at(from.in[0]), node.type);
  }
  return {};
}

Tensor simplify_join(Graph& graph, const Node& node) {
  const Tensor a = graph.at(node.in[0]), b = graph.at(node.in[1]);
  if (whole_width(node.attrs, node.type.cols)) return cat_cols({a, b});
  const Node& x = graph.node(a.id());
  const Node& y = graph.node(b.id());
  if (x.op == Op::first_of_pair && y.op == Op::second_of_pair && x.in == y.in &&
      x.attrs == node.attrs && y.attrs == node.attrs) {
    return graph.at(x.in[0]);
  }
  if (x.op == Op::broadcast && a.id() == b.id() && graph.node(x.in[0]).type.kind != Kind::row) {
    return broadcast(graph.at(x.in[0]), node.type);
  }
  return {};
}

/// op(a | b) = op(a) | op(b) where op works on groups of columns and the parts are whole groups.
Tensor over_parts(Graph& graph, const Node& node, std::int64_t group) {
  const Node& cat = graph.node(node.in[0]);
  if (cat.op != Op::cat_cols) return {};
  for (NodeId part : cat.in) {
    if (graph.node(part).type.cols % group != 0) return {};
  }
  std::vector<Tensor> parts;
  for (NodeId part : std::vector<NodeId>(cat.in)) {
    std::vector<Tensor> operands = {graph.at(part)};
    for (std::size_t i = 1; i < node.in.size(); ++i) operands.push_back(graph.at(node.in[i]));
    parts.push_back(graph.make(node.op, operands, node.attrs));
  }
  return cat_cols(parts);
}

Tensor simplify_rotation(Graph& graph, const Node& node) {
  if (is_constant(graph, node.in[0], 0)) return graph.at(node.in[0]);
  const Node& x = graph.node(node.in[0]);
  const Op back = node.op == Op::rotate ? Op::unrotate : Op::rotate;
  if (x.op == back && !is_atom(graph, node.in[0]) && x.attrs == node.attrs &&
      x.in[1] == node.in[1] && x.in[2] == node.in[2]) {
    return graph.at(x.in[0]);
  }
  return over_parts(graph, node, node.attrs.period);
}

Tensor simplify_segment(Graph& graph, const Node& node) {
  const Tensor t = graph.at(node.in[0]);
  const Node& x = graph.node(t.id());
  const bool tiles = node.type.kind == Kind::tile;
  const std::int64_t times = tiles ? node.attrs.period : node.attrs.hi;
  const bool sums = node.op == Op::segment_sum || node.op == Op::fold;
  if (times == 1) return t;
  if (x.op == Op::broadcast && graph.node(x.in[0]).type.kind != Kind::row) {
    const Tensor inner = graph.at(x.in[0]);
    return broadcast(sums ? inner * static_cast<double>(times) : inner, node.type);
  }
  if ((node.op == Op::segment_sum && x.op == Op::segment_broadcast && x.attrs == node.attrs) ||
      (node.op == Op::fold && x.op == Op::repeat && x.attrs == node.attrs)) {
    return graph.at(x.in[0]) * static_cast<double>(times);
  }
  if (!tiles) return {};
  return over_parts(graph, node, node.op == Op::segment_sum ? times : 1);
}

}  // namespace

Tensor simplify_pairs(Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::first_of_pair:
    case Op::second_of_pair:
      return simplify_half(graph, node);
    case Op::join:
      return simplify_join(graph, node);
    case Op::rotate:
    case Op::unrotate:
      return simplify_rotation(graph, node);
    default:
      return simplify_segment(graph, node);
  }
}

}  // namespace coda
