#include "graph/rewrite.h"

namespace coda {

std::vector<bool> mask_of(const Graph& graph, std::span<const NodeId> ids) {
  std::vector<bool> needed(static_cast<std::size_t>(graph.size()), false);
  for (NodeId id : ids) {
    if (id != kNoNode) needed[static_cast<std::size_t>(id)] = true;
  }
  for (NodeId id = graph.size(); id-- > 0;) {
    if (!needed[static_cast<std::size_t>(id)]) continue;
    for (NodeId in : graph.node(id).in) needed[static_cast<std::size_t>(in)] = true;
  }
  return needed;
}

std::vector<NodeId> needed_by(const Graph& graph, std::span<const NodeId> roots) {
  const std::vector<bool> needed = mask_of(graph, roots);
  std::vector<NodeId> order;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (needed[static_cast<std::size_t>(id)]) order.push_back(id);
  }
  return order;
}

std::vector<bool> depends_on(const Graph& graph, std::span<const NodeId> sources) {
  std::vector<bool> depends(static_cast<std::size_t>(graph.size()), false);
  for (NodeId id : sources) {
    if (id != kNoNode) depends[static_cast<std::size_t>(id)] = true;
  }
  for (NodeId id = 0; id < graph.size(); ++id) {
    for (NodeId in : graph.node(id).in) {
      if (depends[static_cast<std::size_t>(in)]) depends[static_cast<std::size_t>(id)] = true;
    }
  }
  return depends;
}

}  // namespace coda
