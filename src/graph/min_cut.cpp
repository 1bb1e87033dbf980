// R6. What to keep between the phases. Every value that needs no cotangent is a node of a network
// whose capacity is what keeping it moves; source: values that only the forward phase can make;
// sink: values that are combined with a cotangent.
#include <limits>

#include "base/check.h"
#include "graph/max_flow.h"
#include "graph/rewrite.h"
#include "ops/op_table.h"

namespace coda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t index(NodeId id) { return static_cast<std::size_t>(id); }

/// Results that the backward phase cannot make again: reductions are finished only after their
/// program, matmuls and opaque nodes are too dear, inputs are in memory.
bool hangs_on_source(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const OpClass c = row_of(node.op).op_class;
  return node.op == Op::input || node.op == Op::pick || c == OpClass::reduction ||
         c == OpClass::matmul || c == OpClass::opaque;
}

/// Values that depend on no cotangent and contain no matmul or opaque node that the forward lacks.
std::vector<bool> available_values(const Graph& graph, const Phases& phases) {
  const std::vector<bool> forward = mask_of(graph, phases.forward);
  std::vector<NodeId> excluded = phases.cotangents;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Op op = graph.node(id).op;
    if ((op == Op::matmul || op == Op::opaque) && !forward[index(id)]) excluded.push_back(id);
  }
  std::vector<bool> available = depends_on(graph, excluded);
  available.flip();
  return available;
}

/// Vector ops are part of the loads that use them, and views of weights are addressing: it is what
/// they are made of that is kept.
bool is_never_kept(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op == Op::cat_rows || node.op == Op::rows) return true;
  const bool matrix = node.type.kind == Kind::tile || node.type.kind == Kind::weight;
  return !matrix && !hangs_on_source(graph, id);
}

}  // namespace

std::vector<NodeId> min_cut(const Graph& graph, const Phases& phases,
                            std::span<const NodeId> stored, std::span<const double> bytes) {
  internal_check(bytes.size() >= index(graph.size()), "min_cut: bytes of {} nodes, graph of {}",
                 bytes.size(), graph.size());
  const std::vector<NodeId> order = needed_by(graph, phases.backward);
  const std::vector<bool> available = available_values(graph, phases);
  std::vector<bool> value = available;
  for (NodeId id : order) {  // constants cost nothing; of opaque nodes only the results are values
    const Op op = graph.node(id).op;
    if (op == Op::constant || op == Op::opaque) value[index(id)] = false;
  }
  std::vector<bool> is_stored(index(graph.size()));
  for (NodeId id : stored) is_stored[index(id)] = true;

  // Value id enters at node 2 id and leaves at 2 id + 1.
  const int source = 2 * graph.size(), sink = source + 1;
  FlowNetwork network(sink + 1);
  std::vector<bool> on_sink(index(graph.size()));
  for (NodeId root : phases.backward) {
    if (root != kNoNode) on_sink[index(root)] = true;
  }
  for (NodeId id : order) {
    for (NodeId in : graph.node(id).in) {
      if (!available[index(id)]) on_sink[index(in)] = true;
    }
  }
  for (NodeId id : order) {
    if (!value[index(id)]) continue;
    const bool kept_anyway = is_stored[index(id)] || graph.node(id).op == Op::input;
    const double capacity = bytes[index(id)] * (kept_anyway ? 1 : 2);
    network.add_edge(2 * id, 2 * id + 1, is_never_kept(graph, id) ? kInfinity : capacity);
    if (on_sink[index(id)]) network.add_edge(2 * id + 1, sink, kInfinity);
    if (hangs_on_source(graph, id)) {
      network.add_edge(source, 2 * id, kInfinity);
      continue;
    }
    for (NodeId in : graph.node(id).in) {
      if (value[index(in)]) network.add_edge(2 * in + 1, 2 * id, kInfinity);
    }
  }
  network.maximize(source, sink);
  const std::vector<bool> backward_side = network.reaches(sink);
  std::vector<NodeId> cut;
  for (NodeId id : order) {
    const bool crosses =
        value[index(id)] && backward_side[index(2 * id + 1)] && !backward_side[index(2 * id)];
    if (crosses && graph.node(id).op != Op::input) cut.push_back(id);
  }
  return cut;
}

}  // namespace coda
