#include "graph/simplify.h"

#include "ops/op_table.h"

namespace coda {

bool is_constant(const Graph& graph, NodeId id, double value) {
  const Node& node = graph.node(id);
  if (node.op == Op::broadcast) return is_constant(graph, node.in[0], value);
  return node.op == Op::constant && node.attrs.value == value;
}

bool is_atom(const Graph& graph, NodeId id) { return id < graph.atoms_below(); }

Tensor zero_of(Graph& graph, Type type) { return broadcast(graph.constant(0), type); }

Tensor simplify(Graph& graph, const Node& node) {
  switch (row_of(node.op).op_class) {
    case OpClass::elementwise:
      return simplify_elementwise(graph, node);
    case OpClass::addressing:
      return simplify_addressing(graph, node);
    case OpClass::pairs:
    case OpClass::segment:
      return simplify_pairs(graph, node);
    case OpClass::reduction:
      return simplify_reduction(graph, node);
    case OpClass::matmul:
      for (NodeId id : node.in) {
        if (is_constant(graph, id, 0)) return zero_of(graph, node.type);
      }
      return {};
    default:
      return {};
  }
}

}  // namespace coda
