// What the rewrites share: building nodes again on top of rewritten operands.
#pragma once

#include <string>

#include "graph/rewrite.h"

namespace coda {

/// The node again on what its operands became; itself if none changed.
Tensor rebuild(Graph& graph, NodeId id, const std::vector<NodeId>& map);

/// While it lives, nodes below `id` are atoms.
class AtomsBelow {
 public:
  AtomsBelow(Graph& graph, NodeId id) : graph_(graph), before_(graph.atoms_below()) {
    graph.set_atoms_below(id);
  }
  ~AtomsBelow() { graph_.set_atoms_below(before_); }
  AtomsBelow(const AtomsBelow&) = delete;
  AtomsBelow& operator=(const AtomsBelow&) = delete;

 private:
  Graph& graph_;
  NodeId before_;
};

/// Its name; without one, what it is made of, a few ops deep: ids of a graph that is rewritten
/// would mean nothing to who reads the printed one.
std::string label_of(const Graph& graph, NodeId id);

}  // namespace coda
