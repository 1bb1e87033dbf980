// R8. The log-sum-exp as one number has an error of |x| * 2^-24; what is wanted of it are
// differences with numbers as large as itself. Those are taken in two steps, the first of which is
// exact for neighbours of the largest:
//
//   a - lse(x) -> (a - row_max(x)) - log_sum(x)
//   lse(x) - b -> (row_max(x) - b) + log_sum(x)
//   lse(x)     -> row_max(x) + log_sum(x)          everywhere else
//
// Derivatives are those of lse, which are simpler: this rule comes after gradients().
#include <fmt/format.h>

#include <algorithm>

#include "graph/rebuild.h"

namespace coda {
namespace {

class SplitLse {
 public:
  SplitLse(Graph& graph, std::span<const NodeId> roots, std::span<const NodeId> known)
      : graph_(graph), order_(needed_by(graph, roots)) {
    result_.map.assign(static_cast<std::size_t>(graph.size()), kNoNode);
    std::copy(known.begin(), known.end(), result_.map.begin());
  }

  Rewritten run() {
    for (const NodeId id : order_) {
      NodeId& mapped = result_.map[static_cast<std::size_t>(id)];
      if (mapped == kNoNode) mapped = visit(id).id();
    }
    return std::move(result_);
  }

 private:
  Tensor now(NodeId id) const { return graph_.at(result_.map[static_cast<std::size_t>(id)]); }
  bool is_lse(NodeId id) const { return graph_.node(id).op == Op::lse; }
  Tensor max_of(NodeId lse) { return row_max(now(graph_.node(lse).in[0])); }
  Tensor log_sum_of(NodeId lse) { return log_sum(now(graph_.node(lse).in[0])); }

  Tensor visit(NodeId id) {
    const Node node = graph_.node(id);  // a copy: making nodes moves the graph's
    if (node.op == Op::lse) {
      result_.notes.push_back(
          fmt::format("split_lse: {} of {}", label_of(graph_, id), label_of(graph_, node.in[0])));
      return graph_.named(max_of(id) + log_sum_of(id), node.name);
    }
    if (node.op != Op::sub || (!is_lse(node.in[0]) && !is_lse(node.in[1])))
      return rebuild(graph_, id, result_.map);
    const NodeId a = node.in[0], b = node.in[1];
    const Tensor difference = is_lse(b) ? less(a, max_of(b)) - log_sum_of(b) : less(a, now(b));
    return graph_.named(difference, node.name);
  }

  /// a - b, where a may be an lse.
  Tensor less(NodeId a, Tensor b) {
    return is_lse(a) ? (max_of(a) - b) + log_sum_of(a) : now(a) - b;
  }

  Graph& graph_;
  const std::vector<NodeId> order_;
  Rewritten result_;
};

}  // namespace

Rewritten split_lse(Graph& graph, std::span<const NodeId> roots, std::span<const NodeId> known) {
  return SplitLse(graph, roots, known).run();
}

}  // namespace coda
