#include "plan/join_partials.h"

#include <map>

#include "base/check.h"
#include "graph/rebuild.h"

namespace coda {
namespace {

/// A row sum under at most one col factor: row_sum, row_sum * factor, row_sum / factor.
struct Term {
  NodeId sum = kNoNode;
  NodeId factor = kNoNode;
  Op op = Op::row_sum;
};

Term term_of(const Graph& graph, NodeId v) {
  const Node& node = graph.node(v);
  if (node.op == Op::row_sum) return {v, kNoNode, Op::row_sum};
  if (node.op != Op::mul && node.op != Op::div) return {};
  const auto is_sum = [&](NodeId u) { return graph.node(u).op == Op::row_sum; };
  if (is_sum(node.in[0]) && !is_sum(node.in[1])) return {node.in[0], node.in[1], node.op};
  if (node.op == Op::mul && is_sum(node.in[1]) && !is_sum(node.in[0]))
    return {node.in[1], node.in[0], node.op};
  return {};
}

}  // namespace

Rewritten join_partials(Graph& graph, const Partition& partition, const std::vector<NodeId>& roots,
                        NodeId boundary) {
  const AtomsBelow atoms(graph, boundary);
  std::map<NodeId, std::size_t> unit_of;  // of row sums, old and new
  for (std::size_t u = 0; u < partition.units.size(); ++u)
    for (const NodeId r : partition.units[u].reductions)
      if (graph.node(r).op == Op::row_sum) unit_of[r] = u;

  Rewritten result;
  result.map.assign(static_cast<std::size_t>(graph.size()), kNoNode);
  const auto joined = [&](NodeId a, NodeId b) -> Tensor {
    const Term s = term_of(graph, a), t = term_of(graph, b);
    if (s.sum == kNoNode || t.sum == kNoNode || s.op != t.op || s.factor != t.factor) return {};
    const auto unit_s = unit_of.find(s.sum), unit_t = unit_of.find(t.sum);
    if (unit_s == unit_of.end() || unit_t == unit_of.end() || unit_s->second != unit_t->second)
      return {};
    Tensor x = graph.at(graph.node(s.sum).in[0]), y = graph.at(graph.node(t.sum).in[0]);
    if (x.type().cols != y.type().cols) return {};
    Tensor sum = row_sum(x + y);
    unit_of[sum.id()] = unit_s->second;
    if (s.op == Op::row_sum) return sum;
    Tensor factor = graph.at(s.factor);
    return s.op == Op::mul ? sum * factor : sum / factor;
  };
  for (const NodeId v : needed_by(graph, roots)) {
    Tensor now = rebuild(graph, v, result.map);
    if (unit_of.count(v) && now.id() != v) unit_of.emplace(now.id(), unit_of[v]);
    const Node node = graph.node(now.id());
    if (node.op == Op::add && node.type.kind == Kind::col && v >= boundary) {
      if (const Tensor one = joined(node.in[0], node.in[1])) {
        now = one;
        result.notes.push_back(
            fmt::format("two row sums of one program become one at {}", label_of(graph, v)));
      }
    }
    result.map[static_cast<std::size_t>(v)] = now.id();
  }
  return result;
}

}  // namespace coda
