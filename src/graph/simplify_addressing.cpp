// cols and rows sink towards the leaves; cat_cols and cat_rows are flat and as short as possible.
#include <algorithm>

#include "graph/axis.h"
#include "graph/simplify.h"
#include "ops/op_table.h"

namespace coda {
namespace {

Tensor slice_of_cat(Graph& graph, const Axis& axis, const Node& cat, const Attrs& range) {
  const std::vector<NodeId> in = cat.in;  // making nodes moves `cat`
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (NodeId id : in) {
    const Tensor part = graph.at(id);
    const std::int64_t end = begin + axis.extent(part.type());
    const std::int64_t lo = std::max(range.lo, begin), hi = std::min(range.hi, end);
    if (lo < hi) parts.push_back(axis.part(part, lo - begin, hi - begin));
    begin = end;
  }
  if (parts.empty()) return axis.part(graph.at(in[0]), 0, 0);
  return axis.join(parts);
}

Tensor slice_of_operands(Graph& graph, const Axis& axis, const Node& x, std::int64_t lo,
                         std::int64_t hi) {
  const Op op = x.op;
  const Attrs attrs = x.attrs;
  std::vector<Tensor> operands;
  for (NodeId id : std::vector<NodeId>(x.in)) operands.push_back(axis.part(graph.at(id), lo, hi));
  return graph.make(op, operands, attrs);
}

Tensor slice_of_segments(Graph& graph, const Node& x, std::int64_t lo, std::int64_t hi) {
  const std::int64_t period = x.attrs.period;
  const Tensor inner = graph.at(x.in[0]);
  if (x.op == Op::segment_sum) {
    return segment_sum(cols(inner, lo * period, hi * period), period);
  }
  if (x.op == Op::segment_broadcast && lo % period == 0 && hi % period == 0) {
    return segment_broadcast(cols(inner, lo / period, hi / period), period);
  }
  const std::int64_t width = inner.type().cols;
  if (x.op == Op::repeat && hi > lo && lo % width == 0 && hi % width == 0) {
    return repeat(inner, (hi - lo) / width);
  }
  return {};
}

Tensor simplify_slice(Graph& graph, const Node& node) {
  const Axis axis = Axis::of(node.op);
  const Tensor whole = graph.at(node.in[0]);
  const Node& x = graph.node(whole.id());
  const std::int64_t lo = node.attrs.lo, hi = node.attrs.hi;
  if (lo == 0 && hi == axis.extent(x.type)) return whole;
  if (x.op == axis.slice()) return axis.part(graph.at(x.in[0]), x.attrs.lo + lo, x.attrs.lo + hi);
  if (x.op == axis.cat()) return slice_of_cat(graph, axis, x, node.attrs);
  if (x.op == Op::broadcast) return broadcast(axis.part(graph.at(x.in[0]), lo, hi), node.type);
  if (is_atom(graph, whole.id())) return {};
  switch (row_of(x.op).op_class) {
    case OpClass::elementwise:
      return slice_of_operands(graph, axis, x, lo, hi);
    case OpClass::pairs: {  // a rotation turns each head alike
      const bool rotation = row_of(x.op).arity == 3;
      if (!rotation || lo % x.attrs.period != 0 || hi % x.attrs.period != 0) return {};
      const Op op = x.op;
      const Attrs attrs = x.attrs;
      const Tensor pos = graph.at(x.in[1]), freq = graph.at(x.in[2]);
      return graph.make(op, {cols(graph.at(x.in[0]), lo, hi), pos, freq}, attrs);
    }
    case OpClass::segment:
      return slice_of_segments(graph, Node(x), lo, hi);
    default:
      return {};
  }
}

/// One part for two neighbours, or null: slices of one value that touch, broadcasts of one number.
Tensor merged_neighbours(Graph& graph, const Axis& axis, Tensor a, Tensor b) {
  const Node x = graph.node(a.id()), y = graph.node(b.id());
  if (x.op != y.op || x.in != y.in) return {};
  if (x.op == axis.slice() && x.attrs.hi == y.attrs.lo) {
    return axis.part(graph.at(x.in[0]), x.attrs.lo, y.attrs.hi);
  }
  if (x.op == Op::broadcast && !axis.has(graph.node(x.in[0]).type.kind)) {
    const std::int64_t extent = axis.extent(x.type) + axis.extent(y.type);
    return broadcast(graph.at(x.in[0]), axis.with_extent(x.type, extent));
  }
  return {};
}

Tensor simplify_cat(Graph& graph, const Node& node) {
  const Axis axis = Axis::of(node.op);
  std::vector<NodeId> flat;
  for (NodeId id : node.in) {
    const Node& part = graph.node(id);
    if (part.op == axis.cat()) {
      flat.insert(flat.end(), part.in.begin(), part.in.end());
    } else {
      flat.push_back(id);
    }
  }
  if (axis.extent(node.type) == 0) return graph.at(flat[0]);
  std::vector<Tensor> parts;
  for (NodeId id : flat) {
    const Tensor part = graph.at(id);
    if (axis.extent(part.type()) == 0) continue;
    const Tensor merged =
        parts.empty() ? Tensor{} : merged_neighbours(graph, axis, parts.back(), part);
    if (merged) {
      parts.back() = merged;
    } else {
      parts.push_back(part);
    }
  }
  if (parts.size() == 1) return parts[0];
  const bool same = parts.size() == node.in.size() &&
                    std::equal(parts.begin(), parts.end(), node.in.begin(),
                               [](Tensor t, NodeId id) { return t.id() == id; });
  return same ? Tensor{} : axis.join(parts);
}

}  // namespace

Tensor simplify_addressing(Graph& graph, const Node& node) {
  const bool is_slice = node.op == Axis::of(node.op).slice();
  return is_slice ? simplify_slice(graph, node) : simplify_cat(graph, node);
}

}  // namespace coda
