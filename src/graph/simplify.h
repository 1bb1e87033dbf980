// Local simplification of a node about to be made; every rule holds for all values (0 * x = 0
// aside, which assumes that x is finite: zeros arise from cotangents that do not exist).
#pragma once

#include "coda/graph.h"

namespace coda {

/// A simpler Tensor equal to the node, or null. The node's type is inferred and commutative
/// operands are in order of id.
Tensor simplify(Graph& graph, const Node& node);

// The parts of simplify, by class of op.
Tensor simplify_elementwise(Graph& graph, const Node& node);
Tensor simplify_addressing(Graph& graph, const Node& node);
Tensor simplify_pairs(Graph& graph, const Node& node);
Tensor simplify_reduction(Graph& graph, const Node& node);

/// Is it the constant `value`, or a broadcast of it?
bool is_constant(const Graph& graph, NodeId id, double value);

/// May no rule undo what the node does, because its value is stored? (Graph::set_atoms_below)
bool is_atom(const Graph& graph, NodeId id);

/// The constant 0 with the shape of type.
Tensor zero_of(Graph& graph, Type type);

}  // namespace coda
