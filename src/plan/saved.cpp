#include "plan/saved.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda {

SavedSearch::SavedSearch(const Graph& graph, const CompileOptions& options,
                         std::vector<Root> forward, std::vector<Root> backward,
                         const std::vector<NodeId>& forward_values,
                         const std::vector<NodeId>& cotangents)
    : graph_(graph),
      options_(options),
      forward_(std::move(forward)),
      backward_(std::move(backward)) {
  const auto mask = [&](const std::vector<NodeId>& ids) {
    std::vector<bool> set = mask_of(graph_, needed_by(graph_, ids));
    set.resize(static_cast<std::size_t>(graph_.size()), false);
    return set;
  };
  in_forward_ = mask(forward_values);
  needs_cotangent_ = depends_on(graph_, cotangents);
  needs_cotangent_.resize(static_cast<std::size_t>(graph_.size()), false);
  users_.resize(static_cast<std::size_t>(graph_.size()));
  std::vector<NodeId> roots;
  for (const Root& root : forward_) roots.push_back(root.node);
  for (const Root& root : backward_) roots.push_back(root.node);
  for (const NodeId v : needed_by(graph_, roots))
    for (const NodeId u : graph_.node(v).in) users_[static_cast<std::size_t>(u)].push_back(v);
}

double SavedSearch::bytes_of(NodeId v) const {
  const Type& type = graph_.node(v).type;
  const double rows =
      static_cast<double>(type.rows == kTokens ? options_.budget_tokens : type.rows);
  return rows * static_cast<double>(type.cols) * static_cast<double>(size_of(options_.dtype));
}

/// Walks from the gradients to what is in memory. Reductions and opaque results of the forward
/// phase are always kept; a matmul of the forward phase that would have to run again is kept too,
/// if keep_products, else infeasible.
bool SavedSearch::complete(const std::set<NodeId>& tiles, bool keep_products, Split& split) const {
  std::vector<char> seen(static_cast<std::size_t>(graph_.size()), 0);
  std::vector<NodeId> stack;
  for (const Root& root : backward_) stack.push_back(root.node);
  split.tiles.clear();
  split.saved.clear();
  while (!stack.empty()) {
    const NodeId v = stack.back();
    stack.pop_back();
    const auto i = static_cast<std::size_t>(v);
    if (seen[i]) continue;
    seen[i] = 1;
    const Node& node = graph_.node(v);
    if (node.op == Op::input || node.op == Op::constant) continue;
    if (!needs_cotangent_[i]) {
      if (tiles.count(v) || (keep_products && in_forward_[i] && node.op == Op::matmul)) {
        split.tiles.insert(v);
        split.saved.push_back(v);
        continue;
      }
      if (is_reduction(node.op) ||
          (node.op == Op::proj && in_forward_[static_cast<std::size_t>(node.in[0])])) {
        split.saved.push_back(v);
        continue;
      }
      if (in_forward_[i] && (node.op == Op::matmul || node.op == Op::opaque)) return false;
    }
    for (const NodeId u : node.in) stack.push_back(u);
  }
  std::sort(split.saved.begin(), split.saved.end());
  return true;
}

Split SavedSearch::evaluate(const std::set<NodeId>& tiles, bool keep_products) const {
  Split split;
  if (!complete(tiles, keep_products, split)) return split;
  PartitionRequest request{.graph = &graph_,
                           .roots = forward_,
                           .leaves = {},
                           .fuse = options_.fuse,
                           .search = options_.search,
                           .dtype = options_.dtype,
                           .output_dtype = options_.output_dtype,
                           .tokens = options_.budget_tokens};
  std::set<NodeId> outputs;
  for (const Root& root : forward_)
    if (root.slot < 0) outputs.insert(root.node);
  for (const NodeId v : split.saved)
    if (!outputs.count(v)) request.roots.push_back({v, -1, false});
  split.forward = partition(request);
  request.roots = backward_;
  request.leaves = split.saved;
  split.backward = partition(request);
  split.moved = split.forward.bytes + split.backward.bytes;
  for (const NodeId v : split.saved)
    if (is_tile(graph_.node(v))) split.held += bytes_of(v);
  split.feasible = true;
  return split;
}

/// Equal for values that play the same part in equal layers: op, shape and neighbours, some steps
/// up and down.
std::size_t SavedSearch::signature(NodeId v, int depth) const {
  const Node& node = graph_.node(v);
  const auto mix = [](std::size_t a, std::size_t b) {
    return a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2));
  };
  std::size_t hash =
      mix(static_cast<std::size_t>(node.op), static_cast<std::size_t>(node.type.kind));
  hash = mix(hash, static_cast<std::size_t>(node.type.cols));
  hash = mix(hash, static_cast<std::size_t>(node.type.rows));
  if (depth == 0) return hash;
  for (const NodeId u : node.in) hash = mix(hash, signature(u, depth - 1));
  std::vector<std::size_t> users;
  for (const NodeId u : users_[static_cast<std::size_t>(v)]) {
    const Node& user = graph_.node(u);
    users.push_back(
        mix(static_cast<std::size_t>(user.op), static_cast<std::size_t>(user.type.cols)));
  }
  std::sort(users.begin(), users.end());
  for (const std::size_t user : users) hash = mix(hash, user);
  return hash;
}

/// Tiles that the unit loads to compute v.
std::size_t SavedSearch::sources(const Unit& unit, NodeId v) const {
  std::set<NodeId> seen, loads;
  std::vector<NodeId> stack{v};
  while (!stack.empty()) {
    const NodeId u = stack.back();
    stack.pop_back();
    if (!is_tile(graph_.node(u)) || !seen.insert(u).second) continue;
    if (std::binary_search(unit.loads.begin(), unit.loads.end(), u)) {
      loads.insert(u);
      continue;
    }
    for (const NodeId w : graph_.node(u).in) stack.push_back(w);
  }
  return loads.size();
}

/// What may pay: dropping a kept tile that can be computed again; keeping one that backward writes
/// although no cotangent is in it, or that several programs compute from several tiles. Equal
/// layers toggle together.
std::vector<std::vector<NodeId>> SavedSearch::candidates(const Split& split) const {
  std::set<NodeId> nodes;
  for (const NodeId v : split.tiles)
    if (graph_.node(v).op != Op::matmul) nodes.insert(v);
  const auto free_of_cotangents = [&](NodeId v) {
    const Node& node = graph_.node(v);
    return is_tile(node) && node.op != Op::input && !split.tiles.count(v) &&
           !needs_cotangent_[static_cast<std::size_t>(v)];
  };
  std::map<NodeId, int> computed;  // units that compute it from several tiles
  for (const Unit& unit : split.backward.units) {
    for (const UnitStore& store : unit.stores)
      if (free_of_cotangents(store.value)) nodes.insert(store.value);
    for (const NodeId v : unit.values)
      if (free_of_cotangents(v) && graph_.node(v).in.size() > 1 && sources(unit, v) > 1)
        ++computed[v];
  }
  for (const Unit& unit : split.forward.units)
    for (const NodeId v : unit.values)
      if (computed.count(v)) ++computed[v];
  for (const auto& [v, units] : computed)
    if (units > 1) nodes.insert(v);
  std::map<std::pair<bool, std::size_t>, std::vector<NodeId>> groups;
  for (const NodeId v : nodes) groups[{split.tiles.count(v) != 0, signature(v, 3)}].push_back(v);
  std::vector<std::vector<NodeId>> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  std::sort(result.begin(), result.end());
  return result;
}

Split SavedSearch::improve(Split best, double price) const {
  constexpr int kRounds = 3;
  const auto cost = [&](const Split& split) { return split.moved + price * split.held; };
  for (int round = 0; round < kRounds; ++round) {
    bool better = false;
    for (const auto& group : candidates(best)) {
      std::set<NodeId> tiles = best.tiles;
      for (const NodeId v : group)
        if (!tiles.erase(v)) tiles.insert(v);
      // Dropping a value may take its product along: softmax(z) makes room for z.
      Split next = evaluate(tiles, true);
      if (!next.feasible || cost(next) >= cost(best)) continue;
      best = std::move(next);
      better = true;
    }
    if (!better) break;
  }
  return best;
}

}  // namespace coda
