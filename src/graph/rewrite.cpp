#include "graph/rewrite.h"

#include <fmt/format.h>

#include "graph/rebuild.h"
#include "ops/op_table.h"

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

bool is_free(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.type.kind != Kind::tile) return false;
  const bool made =
      node.op == Op::input || node.op == Op::matmul || node.op == Op::opaque || node.op == Op::proj;
  if (made) return false;
  for (NodeId in : node.in) {
    if (graph.node(in).type.kind == Kind::tile && !is_free(graph, in)) return false;
  }
  return true;
}

Tensor rebuild(Graph& graph, NodeId id, const std::vector<NodeId>& map) {
  const Node node = graph.node(id);  // a copy: making nodes moves the graph's
  bool changed = false;
  std::vector<Tensor> operands;
  for (NodeId in : node.in) {
    operands.push_back(graph.at(map[static_cast<std::size_t>(in)]));
    changed = changed || operands.back().id() != in;
  }
  if (!changed) return graph.at(id);
  return graph.named(graph.make(node.op, operands, node.attrs), node.name);
}

namespace {

std::string described(const Graph& graph, NodeId id, int depth) {
  const Node& node = graph.node(id);
  if (!node.name.empty()) return "%" + node.name;
  if (node.op == Op::constant) return fmt::format("{}", node.attrs.value);
  if (node.in.empty()) return std::string(name_of(node.op));
  std::string text(name_of(node.op));
  text += '(';
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    if (i > 0) text += ", ";
    text += depth > 0 ? described(graph, node.in[i], depth - 1) : "..";
  }
  if (node.op == Op::cols || node.op == Op::rows)
    text += fmt::format(", {}, {}", node.attrs.lo, node.attrs.hi);
  return text + ')';
}

}  // namespace

std::string label_of(const Graph& graph, NodeId id) {
  constexpr int kDepth = 3;
  return described(graph, id, kDepth);
}

}  // namespace coda
