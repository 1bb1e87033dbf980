// R5. A forward value v that the backward phase asks for, but that nobody stored and nothing can
// recompute (the result of a matrix product), from a value y made of it by invertible ops:
//
//   v, y = f(v, vectors), y stored or made from what will be saved  ->  f^-1(y, vectors)
//
// With the sums' rule that pulls factors out, sum_n dz * acc becomes sum_n dz * z / rstd.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "graph/rebuild.h"
#include "graph/rule.h"
#include "ops/op_table.h"

namespace coda {
namespace {

/// Is a factor safe to divide by? 1 / sqrt is zero only at infinity.
bool never_zero(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  switch (node.op) {
    case Op::rsqrt:
      return true;
    case Op::constant:
      return node.attrs.value != 0;
    case Op::mul:
    case Op::div:
      return never_zero(graph, node.in[0]) && never_zero(graph, node.in[1]);
    case Op::neg:
    case Op::broadcast:
      return never_zero(graph, node.in[0]);
    default:
      return false;
  }
}

/// Only a product, or columns of one: everything else is made from such values again.
bool is_anchored(const Graph& graph, NodeId id) {
  const Node* node = &graph.node(id);
  while (node->op == Op::cols) node = &graph.node(node->in[0]);
  return node->op == Op::matmul && node->type.kind == Kind::tile;
}

bool is_local(Op op) {
  const OpClass c = row_of(op).op_class;
  return c == OpClass::elementwise || c == OpClass::pairs || c == OpClass::addressing ||
         c == OpClass::segment;
}

class Recover {
 public:
  Recover(Graph& graph, const Phases& phases, std::span<const NodeId> stored)
      : graph_(graph),
        phases_(phases),
        forward_(mask_of(graph, phases.forward)),
        order_(needed_by(graph, phases.backward)),
        stored_(forward_.size()),
        useful_(forward_.size()),
        consumers_(forward_.size()) {
    for (NodeId id = phases.boundary; id < graph.size(); ++id) forward_[index(id)] = false;
    for (NodeId id : stored) stored_[index(id)] = true;
    for (NodeId id = 0; id < phases.boundary; ++id) {
      if (!forward_[index(id)]) continue;
      for (NodeId in : graph.node(id).in) consumers_[index(in)].push_back(id);
    }
    find_needed();
  }

  Rewritten run() {
    const AtomsBelow atoms(graph_, phases_.boundary);
    Rewritten result;
    std::vector<NodeId> replacement(forward_.size(), kNoNode);
    for (NodeId id : needed_) {
      if (stored_[index(id)] || !is_anchored(graph_, id)) continue;
      const std::vector<Step> path = path_from(id);
      if (path.empty()) continue;
      replacement[index(id)] = inverse_of(path).id();
      result.notes.push_back(fmt::format("recover: {} from {}", label_of(graph_, id),
                                         label_of(graph_, path.back().consumer)));
    }
    result.map.assign(forward_.size(), kNoNode);
    for (NodeId id : order_) result.map[index(id)] = id;
    std::vector<NodeId> operands = result.map;  // what the backward phase reads
    for (NodeId id : order_) {
      if (forward_[index(id)]) {
        if (replacement[index(id)] != kNoNode) operands[index(id)] = replacement[index(id)];
        continue;
      }
      const NodeId rebuilt = rebuild(graph_, id, operands).id();
      operands[index(id)] = result.map[index(id)] = rebuilt;
    }
    return result;
  }

 private:
  /// One invertible op on the way from v to what stands for it.
  struct Step {
    NodeId consumer;
    std::size_t operand;
  };

  static std::size_t index(NodeId id) { return static_cast<std::size_t>(id); }

  /// Forward values that the backward phase uses directly, and (useful_) the values from which
  /// those that are not stored are recomputed.
  void find_needed() {
    std::vector<bool> needed(forward_.size());
    for (NodeId id : order_) {
      if (forward_[index(id)]) continue;
      for (NodeId in : graph_.node(id).in) needed[index(in)] = forward_[index(in)];
    }
    for (NodeId id = phases_.boundary; id-- > 0;) {
      if (needed[index(id)]) needed_.push_back(id);
      const bool wanted = needed[index(id)] && !stored_[index(id)];
      if (wanted) useful_[index(id)] = true;
      if (!useful_[index(id)] || !is_local(graph_.node(id).op)) continue;
      for (NodeId in : graph_.node(id).in) {
        if (graph_.node(in).type.kind == Kind::tile) useful_[index(in)] = true;
      }
    }
    std::reverse(needed_.begin(), needed_.end());
  }

  bool invertible(const Node& node, std::size_t operand) const {
    const OpRow& row = row_of(node.op);
    if (row.inverse.empty()) return false;
    const bool commutative = node.op == Op::add || node.op == Op::mul;
    if (operand != 0 && !(commutative && operand == 1)) return false;
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      if (i == operand) continue;
      const Kind kind = graph_.node(node.in[i]).type.kind;
      if (node.in[i] == node.in[operand]) return false;
      if (kind == Kind::tile && !is_free(graph_, node.in[i])) return false;
      if (row.inverse_class == "R" &&
          ((kind != Kind::col && kind != Kind::scalar) || !never_zero(graph_, node.in[i]))) {
        return false;
      }
    }
    return true;
  }

  /// Breadth first through consumers; stops at the first value that is stored or useful.
  std::vector<Step> path_from(NodeId v) const {
    std::map<NodeId, std::vector<Step>> paths;
    std::deque<NodeId> queue = {v};
    paths[v] = {};
    while (!queue.empty()) {
      const NodeId at = queue.front();
      queue.pop_front();
      for (NodeId consumer : consumers_[index(at)]) {
        const Node& node = graph_.node(consumer);
        const auto operand = static_cast<std::size_t>(
            std::find(node.in.begin(), node.in.end(), at) - node.in.begin());
        if (paths.contains(consumer) || !invertible(node, operand)) continue;
        std::vector<Step> path = paths[at];
        path.push_back({consumer, operand});
        if (stored_[index(consumer)] || useful_[index(consumer)]) return path;
        paths[consumer] = std::move(path);
        queue.push_back(consumer);
      }
    }
    return {};
  }

  Tensor inverse_of(const std::vector<Step>& path) {
    Tensor value = graph_.at(path.back().consumer);
    for (auto step = path.rbegin(); step != path.rend(); ++step) {
      const Op op = graph_.node(step->consumer).op;
      const bool swapped = row_of(op).arity == 2 && step->operand == 1;
      value = apply_rule(row_of(op).inverse,
                         {graph_, step->consumer, step->operand, Tensor(), value, swapped});
    }
    return value;
  }

  Graph& graph_;
  const Phases& phases_;
  std::vector<bool> forward_;
  const std::vector<NodeId> order_;
  std::vector<bool> stored_, useful_;
  std::vector<std::vector<NodeId>> consumers_;  // forward ones, ascending, of each value
  std::vector<NodeId> needed_;
};

}  // namespace

Rewritten recover(Graph& graph, const Phases& phases, std::span<const NodeId> stored) {
  return Recover(graph, phases, stored).run();
}

}  // namespace coda
