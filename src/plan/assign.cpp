// Homes: one pass over the graph in topological order.
#include <algorithm>

#include "base/check.h"
#include "ops/op_table.h"
#include "plan/partitioner.h"

namespace coda {

bool is_tile(const Node& node) {
  return node.type.kind == Kind::tile || node.type.kind == Kind::weight;
}

bool is_reduction(Op op) {
  return op == Op::row_sum || op == Op::row_max || op == Op::col_sum || is_online(op) ||
         op == Op::pick || op == Op::sum;
}

std::vector<UnitStore> parts_of(const Graph& graph, NodeId v) {
  if (graph.node(v).op != Op::cat_cols || !is_tile(graph.node(v))) return {{v, v}};
  std::vector<UnitStore> parts;
  std::int64_t col = 0;
  for (const NodeId part : graph.node(v).in) {
    for (const UnitStore& inner : parts_of(graph, part))
      parts.push_back({inner.value, v, col + inner.col});
    col += graph.node(part).type.cols;
  }
  return parts;
}

int Order::add_unit() {
  const int unit = static_cast<int>(reach_.size());
  const std::size_t words = static_cast<std::size_t>(unit) / 64 + 1;
  reach_.emplace_back();
  if (words > reach_[0].size())
    for (auto& bits : reach_) bits.resize(words * 2, 0);
  reach_.back().resize(reach_[0].size(), 0);
  return unit;
}

void Order::add_edge(int from, int to) {
  if (from < 0 || to < 0 || from == to) return;
  internal_check(!precedes(to, from), "partition: units {} and {} wait for each other", from, to);
  edges_.emplace(from, to);
  if (precedes(from, to)) return;
  const auto word = static_cast<std::size_t>(to) / 64;
  for (std::size_t u = 0; u < reach_.size(); ++u) {
    const bool before = static_cast<int>(u) == from || precedes(static_cast<int>(u), from);
    if (!before || precedes(static_cast<int>(u), to)) continue;
    for (std::size_t w = 0; w < reach_[u].size(); ++w)
      reach_[u][w] |= reach_[static_cast<std::size_t>(to)][w];
    reach_[u][word] |= std::uint64_t{1} << (to % 64);
  }
}

namespace {

void add(After& after, int unit, Dep dep) {
  const std::pair<int, Dep> entry{unit, dep};
  const auto at = std::lower_bound(after.begin(), after.end(), entry);
  if (at == after.end() || *at != entry) after.insert(at, entry);
}

void add(After& after, const After& more) {
  for (const auto& [unit, dep] : more) add(after, unit, dep);
}

}  // namespace

/// Marks what the roots need, stopping at leaves.
void Partitioner::find_live() {
  live_mark_.assign(n_, 0);
  std::vector<NodeId> stack;
  for (const Root& root : request_.roots) stack.push_back(root.node);
  while (!stack.empty()) {
    const NodeId v = stack.back();
    stack.pop_back();
    if (live_mark_[v]) continue;
    live_mark_[v] = 1;
    if (leaf_[v]) continue;
    for (const NodeId u : graph_.node(v).in) stack.push_back(u);
  }
  live_.clear();
  for (NodeId v = 0; v < static_cast<NodeId>(n_); ++v)
    if (live_mark_[v]) live_.push_back(v);
}

void Partitioner::assign() {
  home_.assign(n_, kFloating);
  after_.assign(n_, {});
  outside_.assign(n_, 0);
  units_.clear();
  stored_.clear();
  order_ = {};
  copy_units_.clear();
  placed_.clear();
  kept_reductions_.clear();
  banned_.clear();
  checked_.clear();
  for (const NodeId v : live_) {
    assign_node(v);
    if (sealed_[v] && !outside_[v] && is_tile(graph_.node(v))) seal(v);
  }
  for (const Root& root : request_.roots) place_root(root);
}

void Partitioner::assign_node(NodeId v) {
  const Node& node = graph_.node(v);
  if (leaf_[v]) {
    outside_[v] = 1;
    return;
  }
  if (node.op == Op::matmul) return assign_matmul(v);
  if (node.op == Op::opaque) return assign_opaque(v);
  if (node.op == Op::proj) {
    home_[v] = home_[node.in[0]];
    outside_[v] = 1;
    return;
  }
  if (is_reduction(node.op)) return assign_reduction(v);
  if (!is_tile(node) || node.op == Op::cat_cols || node.op == Op::cat_rows) {
    after_[v] = after_of_operands(v);
    return;
  }
  if (node.op == Op::cols || node.op == Op::rows) {
    const NodeId u = node.in[0];
    home_[v] = home_[u];
    outside_[v] = outside_[u];
    after_[v] = after_[u];
    return;
  }
  assign_elementwise(v);
}

int Partitioner::new_unit(UnitKind kind, NodeId node, std::int64_t axis) {
  const int unit = order_.add_unit();
  units_.push_back({.kind = kind, .node = node, .axis = axis});
  return unit;
}

void Partitioner::run_after(int unit, const After& after) {
  for (const auto& [before, dep] : after) order_.add_edge(before, unit);
}

/// What must have happened before v can be read: its home, or what its operands wait for.
After Partitioner::dependencies(NodeId v) const {
  if (home_[v] < 0 || is_reduction(graph_.node(v).op)) return after_[v];
  return {{home_[v], outside_[v] ? Dep::operand : Dep::tile}};
}

After Partitioner::after_of_operands(NodeId v) const {
  After after;
  for (const NodeId u : graph_.node(v).in) add(after, dependencies(u));
  return after;
}

void Partitioner::assign_matmul(NodeId v) {
  const Node& node = graph_.node(v);
  const int unit = new_unit(UnitKind::gemm, v, node.type.rows);
  for (const NodeId operand : node.in) materialise_operand(operand, unit);
  home_[v] = unit;
}

void Partitioner::assign_opaque(NodeId v) {
  const Node& node = graph_.node(v);
  const int unit = new_unit(UnitKind::opaque, v, kTokens);
  for (const NodeId operand : node.in) materialise_operand(operand, unit);
  home_[v] = unit;
}

/// Puts an operand of a GEMM or opaque node in memory: parts of cat_cols side by side in one
/// buffer, blocks of cat_rows each for itself.
void Partitioner::materialise_operand(NodeId operand, int reader) {
  const Node& node = graph_.node(operand);
  if (leaf_[operand]) {
    units_[reader].operands.push_back({operand, operand, 0, -1});
    return;
  }
  if (node.op == Op::cat_rows) {
    for (const NodeId block : node.in) materialise_operand(block, reader);
    return;
  }
  if (!is_tile(node)) {
    if (node.op == Op::input || is_reduction(node.op)) {
      kept_reductions_.insert(operand);
      run_after(reader, dependencies(operand));
    }
    units_[reader].operands.push_back({operand, operand, 0, -1});
    return;
  }
  const bool fresh = placed_.insert(operand).second;
  for (const UnitStore& part : parts_of(graph_, operand)) {
    if (fresh || part.into == part.value) materialise(part, reader);
    units_[reader].operands.push_back(part);
  }
  if (!fresh)
    for (const UnitStore& part : parts_of(graph_, operand))
      for (std::size_t u = 0; u < units_.size(); ++u)
        if (std::count(units_[u].required.begin(), units_[u].required.end(), part))
          order_.add_edge(static_cast<int>(u), reader);
}

void Partitioner::require(int unit, const UnitStore& store) {
  auto& required = units_[unit].required;
  const auto at = std::lower_bound(required.begin(), required.end(), store);
  if (at == required.end() || *at != store) required.insert(at, store);
}

void Partitioner::materialise(const UnitStore& store, int reader) {
  const NodeId v = store.value, into = store.into;
  const bool own = into == v && store.slot < 0;
  if (own && outside_[v]) {  // in memory already
    order_.add_edge(home_[v], reader);
    return;
  }
  int unit = outside_[v] || (home_[v] >= 0 && units_[home_[v]].kind == UnitKind::opaque) ? kFloating
                                                                                         : home_[v];
  if (unit < 0) {
    const auto copy = copy_units_.find(into);
    const bool outside = outside_[v] != 0;
    if (outside && !own && copy != copy_units_.end() &&
        (home_[v] < 0 || !order_.precedes(copy->second, home_[v])) &&
        units_[copy->second].axis == graph_.node(v).type.rows) {
      unit = copy->second;
    } else {
      unit = new_unit(UnitKind::rows, kNoNode, graph_.node(v).type.rows);
      if (outside) copy_units_[into] = unit;
    }
    if (outside)
      order_.add_edge(home_[v], unit);
    else
      run_after(unit, after_[v]), home_[v] = unit;
  }
  require(unit, store);
  order_.add_edge(unit, reader);
}

/// Stores v where it is made; from now on others only load it.
void Partitioner::seal(NodeId v) {
  if (graph_.node(v).op == Op::cat_rows) return;
  placed_.insert(v);
  int last = kFloating;
  for (const UnitStore& part : parts_of(graph_, v)) {
    if (part.into == part.value || !outside_[part.value]) {
      materialise(part, kFloating);
      last = home_[part.value];
    } else {
      materialise(part, kFloating);
      last = copy_units_[part.into];
    }
  }
  if (graph_.node(v).op == Op::cat_cols) {
    // Whoever reads it waits for all its writers: give it the last one, ordered after the others.
    for (std::size_t u = 0; u < units_.size(); ++u)
      for (const UnitStore& store : units_[u].required)
        if (store.into == v && static_cast<int>(u) != last &&
            !order_.precedes(last, static_cast<int>(u)))
          order_.add_edge(static_cast<int>(u), last);
        else if (store.into == v && static_cast<int>(u) != last)
          last = static_cast<int>(u);
    home_[v] = last;
  }
  outside_[v] = 1;
}

void Partitioner::assign_reduction(NodeId v) {
  const Node& node = graph_.node(v);
  if (node.op == Op::sum) return assign_sum(v);
  const NodeId t = node.in[0];
  After others;
  for (std::size_t i = 1; i < node.in.size(); ++i) add(others, dependencies(node.in[i]));
  int unit = outside_[t] ? kFloating : home_[t];
  if (unit >= 0 && units_[unit].kind == UnitKind::gemm && units_[unit].axis != kTokens)
    unit = kFloating;
  for (const auto& [before, dep] : others)
    if (unit >= 0 && (before == unit || order_.precedes(unit, before))) unit = kFloating;
  if (unit < 0) {
    unit = new_unit(UnitKind::rows, kNoNode, graph_.node(t).type.rows);
    run_after(unit, dependencies(t));
  }
  run_after(unit, others);
  home_[v] = unit;
  after_[v] = {{unit, node.op == Op::col_sum ? Dep::col : Dep::row}};
}

/// A vector program that may run after all of `after`; sums made in it are complete inside it.
int Partitioner::vectors_unit(const After& after) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].kind != UnitKind::vectors) continue;
    const int unit = static_cast<int>(u);
    const bool free = std::all_of(after.begin(), after.end(), [&](const auto& entry) {
      return entry.first == unit || !order_.precedes(unit, entry.first);
    });
    if (free) {
      run_after(unit, after);
      return unit;
    }
  }
  const int unit = new_unit(UnitKind::vectors, kNoNode, kTokens);
  run_after(unit, after);
  return unit;
}

void Partitioner::assign_sum(NodeId v) {
  home_[v] = vectors_unit(dependencies(graph_.node(v).in[0]));
  after_[v] = {{home_[v], Dep::col}};
}

void Partitioner::assign_elementwise(NodeId v) {
  const Node& node = graph_.node(v);
  std::vector<int> hosts;
  After after;
  for (const NodeId u : node.in) {
    add(after, dependencies(u));
    if (!is_tile(graph_.node(u)) || outside_[u] || home_[u] < 0) continue;
    if (graph_.node(u).op == Op::rows) {
      // A block of a weight gradient is stored, never computed with: it reads as memory.
      for (auto& [unit, dep] : after)
        if (unit == home_[u]) dep = Dep::operand;
      continue;
    }
    if (std::find(hosts.begin(), hosts.end(), home_[u]) == hosts.end()) hosts.push_back(home_[u]);
  }
  const int host = choose_host(v, hosts, after);
  if (host < 0) {
    after_[v] = after;
    return;
  }
  home_[v] = host;
  for (const auto& [before, dep] : after) order_.add_edge(before, host);
}

/// The valid host whose operands from elsewhere are the fewest bytes; none: kFloating.
int Partitioner::choose_host(NodeId v, const std::vector<int>& hosts, const After& after) {
  int best = kFloating;
  double best_bytes = 0;
  for (const int host : hosts) {
    const Work& unit = units_[host];
    if (unit.axis != graph_.node(v).type.rows || unit.kind == UnitKind::opaque) continue;
    const bool valid = std::all_of(after.begin(), after.end(), [&](const auto& entry) {
      const auto [before, dep] = entry;
      if (before != host) return !order_.precedes(host, before);
      return dep == Dep::tile || (dep == Dep::row && unit.kind == UnitKind::rows);
    });
    if (!valid) continue;
    double bytes = 0;
    for (const NodeId u : graph_.node(v).in) {
      if (!is_tile(graph_.node(u)) || home_[u] == host) continue;
      bytes += bytes_of(u) * (outside_[u] || is_stored(u) ? 1 : 2);
    }
    if (best < 0 || bytes < best_bytes || (bytes == best_bytes && host > best)) {
      best = host;
      best_bytes = bytes;
    }
  }
  return best;
}

void Partitioner::place_root(const Root& root) {
  const NodeId v = root.node;
  const Node& node = graph_.node(v);
  if (is_tile(node) && root.separate && outside_[v] && node.op == Op::cols) {
    const int unit = new_unit(UnitKind::rows, kNoNode, node.type.rows);
    order_.add_edge(home_[v], unit);
    require(unit, {v, v, 0, -1});
    return;
  }
  if (is_tile(node)) {
    // Weights are never read from an output, so that blocks of rows need no buffer of their own.
    const bool blocks = node.op == Op::cat_rows;
    internal_check(!blocks || root.slot >= 0, "partition: {} is cat_rows in a buffer", v);
    std::int64_t row = 0;
    for (const NodeId block : blocks ? node.in : std::vector<NodeId>{v}) {
      for (const UnitStore& part : parts_of(graph_, block)) {
        const NodeId into = part.into == part.value && root.slot < 0 ? part.value : v;
        materialise({part.value, into, part.col, root.slot, row}, kFloating);
      }
      row += graph_.node(block).type.rows;
    }
    return;
  }
  if (root.slot < 0) {
    if (is_reduction(node.op)) kept_reductions_.insert(v);
    return;
  }
  const int unit = vectors_unit(dependencies(v));
  require(unit, {v, v, 0, root.slot});
}

}  // namespace coda
