// R4. Products of one tile with several weights are one product with the weights as row blocks:
//
//   nt(A, B1), nt(A, B2), ...  ->  Y = nt(A, cat_rows(B1, B2, ...)), cols(Y, ...) each
//
// No weight is copied: operand B may be a list of row blocks. A is read once, forward and in the
// weight gradients, and its cotangent is one product.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "graph/rebuild.h"

namespace coda {
namespace {

class Merge {
 public:
  Merge(Graph& graph, std::span<const NodeId> roots)
      : graph_(graph), order_(needed_by(graph, roots)) {
    result_.map.assign(static_cast<std::size_t>(graph.size()), kNoNode);
    find_groups();
  }

  Rewritten run() {
    for (NodeId id : order_) visit(id);
    return std::move(result_);
  }

 private:
  using Key = std::pair<NodeId, DType>;  // A, memory type of B

  NodeId& mapped(NodeId id) { return result_.map[static_cast<std::size_t>(id)]; }

  void find_groups() {
    std::vector<NodeId> products;
    for (NodeId id : order_) {
      const Op op = graph_.node(id).op;
      if (op == Op::matmul || op == Op::opaque) products.push_back(id);
    }
    const std::vector<bool> computed = depends_on(graph_, products);
    for (NodeId id : products) {
      const Node& node = graph_.node(id);
      if (node.op != Op::matmul || !node.attrs.transpose_b) continue;
      if (!computed[static_cast<std::size_t>(node.in[1])]) groups_[key_of(node)].push_back(id);
    }
  }

  Key key_of(const Node& node) const { return {node.in[0], graph_.node(node.in[1]).type.dtype}; }

  void visit(NodeId id) {
    if (mapped(id) != kNoNode) return;
    const Node& node = graph_.node(id);
    if (node.op == Op::matmul && node.attrs.transpose_b) {
      const auto group = groups_.find(key_of(node));
      const bool member = group != groups_.end() && group->second.size() > 1 &&
                          std::count(group->second.begin(), group->second.end(), id) > 0;
      if (member) return merge(group->second);
    }
    mapped(id) = rebuild(graph_, id, result_.map).id();
  }

  /// Weights of later products, which contain no product, are rebuilt before their turn.
  void visit_weight(NodeId id) {
    for (NodeId in : std::vector<NodeId>(graph_.node(id).in)) visit_weight(in);
    visit(id);
  }

  void merge(const std::vector<NodeId>& group) {
    std::vector<Tensor> weights;
    std::string labels;
    for (NodeId id : group) {
      const NodeId b = graph_.node(id).in[1];
      visit_weight(b);
      weights.push_back(graph_.at(mapped(b)));
      labels += (labels.empty() ? "" : ", ") + label_of(graph_, b);
    }
    const NodeId a = graph_.node(group[0]).in[0];
    const Tensor product = matmul_nt(graph_.at(mapped(a)), cat_rows(weights));
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::int64_t end = begin + weights[i].type().rows;
      const Tensor part = graph_.named(cols(product, begin, end), graph_.node(group[i]).name);
      mapped(group[i]) = part.id();
      begin = end;
    }
    result_.notes.push_back(
        fmt::format("merge: products of {} with {}", label_of(graph_, a), labels));
  }

  Graph& graph_;
  const std::vector<NodeId> order_;
  std::map<Key, std::vector<NodeId>> groups_;  // products, ascending
  Rewritten result_;
};

}  // namespace

Rewritten merge(Graph& graph, std::span<const NodeId> roots) { return Merge(graph, roots).run(); }

}  // namespace coda
