#include "plan/saved.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

double SavedSearch::elements_of(NodeId v) const {
  const Type& type = graph_.node(v).type;
  const std::int64_t rows = type.rows == kTokens ? options_.budget_tokens : type.rows;
  return static_cast<double>(rows) * static_cast<double>(type.cols);
}

double SavedSearch::bytes_of(NodeId v) const {
  return elements_of(v) * static_cast<double>(size_of(options_.dtype));
}

/// What a product sums over.
double SavedSearch::depth_of(NodeId product) const {
  const Node& node = graph_.node(product);
  const Type& a = graph_.node(node.in[0]).type;
  const std::int64_t k = node.attrs.transpose_a ? a.rows : a.cols;
  return static_cast<double>(k == kTokens ? options_.budget_tokens : k);
}

/// Walks from the gradients to what is in memory. Reductions and opaque results of the forward
/// phase are always kept; a matmul of the forward phase that would have to run again does, if it is
/// in split.again, or is kept too, if keep_products; else infeasible.
bool SavedSearch::complete(const Choice& choice, bool keep_products, Split& split) const {
  std::vector<char> seen(static_cast<std::size_t>(graph_.size()), 0);
  std::vector<NodeId> stack;
  for (const Root& root : backward_) stack.push_back(root.node);
  split.again = choice.again;
  while (!stack.empty()) {
    const NodeId v = stack.back();
    stack.pop_back();
    const auto i = static_cast<std::size_t>(v);
    if (seen[i]) continue;
    seen[i] = 1;
    const Node& node = graph_.node(v);
    if (node.op == Op::input || node.op == Op::constant) continue;
    if (choice.remade.count(v)) split.remade.insert(v);
    if (!needs_cotangent_[i]) {
      const bool product = in_forward_[i] && node.op == Op::matmul;
      const bool runs_again = product && split.again.count(v) != 0;
      if (choice.tiles.count(v) || (keep_products && product && !runs_again)) {
        split.tiles.insert(v);
        split.saved.push_back(v);
        continue;
      }
      if (is_reduction(node.op) ||
          (node.op == Op::proj && in_forward_[static_cast<std::size_t>(node.in[0])])) {
        split.saved.push_back(v);
        continue;
      }
      if (runs_again) {
        split.flops_again += 2 * elements_of(v) * depth_of(v);
        split.rebuilt = std::max(split.rebuilt, bytes_of(v));
      } else if (product || (in_forward_[i] && node.op == Op::opaque)) {
        return false;
      }
    }
    for (const NodeId u : node.in) stack.push_back(u);
  }
  std::sort(split.saved.begin(), split.saved.end());
  return split.again.empty() || !takes_many(split, seen);
}

/// Does a value take more than two products to compute again? Sums of a whole chain of layers would
/// be made far ahead of what needs the last of them, and be held until then.
bool SavedSearch::takes_many(const Split& split, const std::vector<char>& walked) const {
  constexpr std::size_t kMost = 2;
  std::vector<std::set<NodeId>> taken(walked.size());  // operands have smaller numbers
  for (std::size_t i = 0; i < walked.size(); ++i) {
    const auto v = static_cast<NodeId>(i);
    const bool kept = std::binary_search(split.saved.begin(), split.saved.end(), v);
    if (!walked[i] || kept || needs_cotangent_[i]) continue;
    for (const NodeId u : graph_.node(v).in) {
      const std::set<NodeId>& below = taken[static_cast<std::size_t>(u)];
      taken[i].insert(below.begin(), below.end());
    }
    if (split.again.count(v) != 0) taken[i].insert(v);
    if (taken[i].size() > kMost) return true;
  }
  return false;
}

Split SavedSearch::evaluate(const Choice& choice, bool keep_products) const {
  Split split;
  if (!complete(choice, keep_products, split)) return split;
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
  for (const NodeId v : split.remade) request.roots.push_back({v, -1, false});
  request.leaves = split.saved;
  split.backward = partition(request);
  split.moved = split.forward.bytes + split.backward.bytes;
  double widest = 0;  // of which one piece is held (plan/pieces.h)
  for (const NodeId v : split.saved) {
    if (!is_tile(graph_.node(v))) continue;
    split.held += bytes_of(v);
    widest = std::max(widest, bytes_of(v));
  }
  split.held += split.rebuilt - widest * (1 - 1.0 / options_.pieces);
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

/// The products that v is computed again from, below what is kept.
std::set<NodeId> SavedSearch::products_below(const Split& split, NodeId v) const {
  std::set<NodeId> found, seen;
  std::vector<NodeId> stack{graph_.node(v).in};
  while (!stack.empty()) {
    const NodeId u = stack.back();
    stack.pop_back();
    const Node& node = graph_.node(u);
    if (!is_tile(node) || split.tiles.count(u) || !seen.insert(u).second) continue;
    if (node.op == Op::matmul) found.insert(u);
    if (node.op != Op::matmul || split.again.count(u))
      stack.insert(stack.end(), node.in.begin(), node.in.end());
  }
  std::erase_if(found, [&](NodeId product) { return split.again.count(product) != 0; });
  return found;
}

/// Products that might run again, those of equal layers together, by id.
std::vector<std::vector<SavedSearch::Product>> SavedSearch::products(const Split& split) const {
  std::map<NodeId, std::vector<NodeId>> tiles_of;
  for (const NodeId v : split.tiles) {
    const bool product = graph_.node(v).op == Op::matmul;
    const std::set<NodeId> below = product ? std::set<NodeId>{v} : products_below(split, v);
    if (below.size() == 1) tiles_of[*below.begin()].push_back(v);
  }
  std::map<std::size_t, std::vector<Product>> groups;
  for (auto& [product, tiles] : tiles_of)
    groups[signature(product, 3)].push_back({product, std::move(tiles)});
  std::vector<std::vector<Product>> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a[0].node < b[0].node; });
  return result;
}

namespace {

/// What an H200 computes while it moves a byte: 700 TFLOP/s over 4 TB/s.
constexpr double kFlopsPerByte = 175;

double cost_of(const Split& split, double price) {
  return split.moved + price * split.held + split.flops_again / kFlopsPerByte;
}

double kept_bytes(const Split& split) { return split.held - split.rebuilt; }

/// The choice with the first `count` of the products run again.
template <class Products>
Choice without(Choice choice, const Products& products, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    for (const NodeId v : products[i].tiles)
      if (choice.tiles.erase(v)) choice.remade.insert(v);
    choice.again.insert(products[i].node);
  }
  return choice;
}

}  // namespace

bool SavedSearch::take_if_better(Split& best, const Choice& choice, double price) const {
  // Dropping a value may take its product along: softmax(z) makes room for z.
  Split next = evaluate(choice, true);
  if (!next.feasible || cost_of(next, price) >= cost_of(best, price)) return false;
  best = std::move(next);
  return true;
}

/// Takes the group that gains most, and again: what runs again limits what else can.
bool SavedSearch::drop_products(Split& best, double price) const {
  bool better = false;
  while (true) {
    Split next = best;
    for (const auto& group : products(best)) {
      take_if_better(next, without(best, group, group.size()), price);
    }
    if (cost_of(next, price) >= cost_of(best, price)) return better;
    best = std::move(next);
    better = true;
  }
}

bool SavedSearch::toggle_tiles(Split& best, double price) const {
  bool better = false;
  for (const auto& group : candidates(best)) {
    Choice choice = best;
    for (const NodeId v : group)
      if (!choice.tiles.erase(v)) choice.tiles.insert(v);
    better = take_if_better(best, choice, price) || better;
  }
  return better;
}

Split SavedSearch::improve(Split best, double price, bool products) const {
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    const bool dropped = products && drop_products(best, price);
    if (!toggle_tiles(best, price) && !dropped) break;
  }
  return best;
}

/// Is the widest tile that is kept made from the product?
bool SavedSearch::makes_widest(const Split& split, const Product& product) const {
  double widest = 0, made = 0;
  for (const NodeId v : split.tiles) widest = std::max(widest, bytes_of(v));
  for (const NodeId v : product.tiles) made = std::max(made, bytes_of(v));
  return made >= widest;
}

Split SavedSearch::shrink(Split best, double budget) const {
  while (kept_bytes(best) > budget) {
    const auto groups = products(best);
    double least = std::numeric_limits<double>::infinity();
    Choice choice;
    for (const auto& group : groups) {
      if (options_.pieces > 1 && makes_widest(best, group[0])) continue;  // to be cut instead
      const Split one = evaluate(without(best, group, 1), true);
      const double saves = one.feasible ? kept_bytes(best) - kept_bytes(one) : 0;
      const double cost = (cost_of(one, 0) - cost_of(best, 0)) / saves;
      if (saves <= 0 || cost >= least) continue;
      least = cost;
      const auto wanted = static_cast<std::size_t>(std::ceil((kept_bytes(best) - budget) / saves));
      choice = without(best, group, std::min(wanted, group.size()));
    }
    if (std::isinf(least)) break;
    Split next = evaluate(choice, true);
    if (!next.feasible || kept_bytes(next) >= kept_bytes(best)) break;
    best = std::move(next);
  }
  return best;
}

}  // namespace coda
