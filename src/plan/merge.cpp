// Row programs into GEMMs and into each other, homes for floating values, and the whole search.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "ops/op_table.h"
#include "ops/opaque.h"
#include "plan/column_blocks.h"
#include "plan/partitioner.h"

namespace coda {

/// What a rolled-back attempt restores.
struct Partitioner::Snapshot {
  std::vector<int> home;
  std::vector<Work> units;
  std::vector<int> sorted, position;
  std::vector<Edge> edges;
  std::vector<std::vector<int>> next;
  std::vector<char> stored, before;
  std::vector<std::size_t> checked;

  explicit Snapshot(const Partitioner& p)
      : home(p.home_),
        units(p.units_),
        sorted(p.sorted_),
        position(p.position_),
        edges(p.edges_),
        next(p.next_),
        stored(p.stored_),
        before(p.before_),
        checked(p.checked_) {}
  void restore(Partitioner& p) {
    p.home_ = std::move(home);
    p.units_ = std::move(units);
    p.sorted_ = std::move(sorted);
    p.position_ = std::move(position);
    p.edges_ = std::move(edges);
    p.next_ = std::move(next);
    p.stored_ = std::move(stored);
    p.before_ = std::move(before);
    p.checked_ = std::move(checked);
  }
};

namespace {

std::size_t hash_of(const Work& work) {
  std::size_t hash = work.values.size() + 1;
  const auto mix = [&](std::size_t v) {
    hash ^= v + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  };
  for (const NodeId v : work.values) mix(static_cast<std::size_t>(v));
  for (const NodeId v : work.loads) mix(static_cast<std::size_t>(v) + 1);
  return hash;
}

}  // namespace

/// Every unit whose values changed since it was last checked: can they be cut into blocks?
bool Partitioner::check_blocks(NodeId& culprit) {
  checked_.resize(units_.size(), 0);
  for (const int index : sorted_) {
    const Work& work = units_[index];
    if (work.kind != UnitKind::gemm && work.kind != UnitKind::rows) continue;
    const std::size_t hash = hash_of(work);
    if (checked_[index] == hash) continue;
    const Blocks blocks = blocks_of(graph_, finished(index));
    culprit = blocks.culprit;
    if (culprit != kNoNode || !blocks.linked) return false;
    checked_[index] = hash;
  }
  return true;
}

/// From one unit to another through a third, along the launch order.
bool Partitioner::path_between(int from, int to) const {
  if (position_[from] > position_[to]) return false;
  std::vector<char> reached(units_.size(), 0);
  std::vector<int> stack{from};
  while (!stack.empty()) {
    const int unit = stack.back();
    stack.pop_back();
    for (const int next : next_[unit]) {
      if (unit == from && next == to) continue;
      if (next == to) return true;
      if (reached[next] || position_[next] > position_[to]) continue;
      reached[next] = 1;
      stack.push_back(next);
    }
  }
  return false;
}

bool Partitioner::may_merge(int from, int into) const {
  const Work& rows = units_[from];
  const Work& host = units_[into];
  if (rows.axis != host.axis || host.axis != kTokens) {
    if (rows.axis != host.axis || host.kind != UnitKind::rows) return false;
  }
  if (host.kind == UnitKind::gemm && rows.uses_own_reduction) return false;
  for (const Edge& edge : edges_) {
    const bool between =
        (edge.from == from && edge.to == into) || (edge.from == into && edge.to == from);
    if (!between) continue;
    if (edge.dep == Dep::tile) continue;
    if (edge.dep == Dep::row && host.kind == UnitKind::rows) continue;
    return false;
  }
  return !path_between(from, into) && !path_between(into, from);
}

/// Pairs (row program, host) by bytes of tiles that both touch, most first.
std::vector<std::pair<double, std::pair<int, int>>> Partitioner::merge_candidates() const {
  std::map<NodeId, std::vector<int>> readers, writers, buffers;
  for (const int index : sorted_) {
    const Work& unit = units_[index];
    if (unit.kind != UnitKind::gemm && unit.kind != UnitKind::rows) continue;
    for (const NodeId v : unit.loads) readers[v].push_back(index);
    for (const NodeId v : unit.derived) writers[v].push_back(index);
    for (const UnitStore& store : unit.required) {
      if (store.slot < 0) writers[store.value].push_back(index);
      if (store.into != store.value || store.slot >= 0) buffers[store.into].push_back(index);
    }
  }
  std::map<std::pair<int, int>, double> gains;
  const auto gain = [&](int a, int b, double bytes) {
    if (a == b) return;
    if (units_[a].kind == UnitKind::rows) gains[{a, b}] += bytes;
    if (units_[b].kind == UnitKind::rows) gains[{b, a}] += bytes;
  };
  for (const auto& [v, units] : readers) {
    for (std::size_t i = 0; i < units.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) gain(units[i], units[j], bytes_of(v));
    const auto found = writers.find(v);
    if (found == writers.end()) continue;
    for (const int reader : units)
      for (const int writer : found->second) gain(reader, writer, bytes_of(v));
  }
  for (const auto& [into, units] : buffers)
    for (std::size_t i = 0; i < units.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) gain(units[i], units[j], 1);
  std::vector<std::pair<double, std::pair<int, int>>> sorted;
  for (const auto& [pair, bytes] : gains)
    if (!banned_.count(pair)) sorted.push_back({bytes, pair});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return sorted;
}

void Partitioner::merge_unit(int from, int into) {
  for (const NodeId v : live_)
    if (home_[v] == from) home_[v] = into;
  for (const UnitStore& store : units_[from].required) require(into, store);
  units_[from] = {.kind = UnitKind::rows, .axis = units_[from].axis, .alive = false};
  for (Edge& edge : edges_) {
    if (edge.from == from) edge.from = into;
    if (edge.to == from) edge.to = into;
  }
}

/// Merges all pairs or none.
bool Partitioner::try_merge(const std::vector<std::pair<int, int>>& pairs) {
  const double bytes = total_bytes();
  Snapshot snapshot(*this);
  for (const auto& [from, into] : pairs) merge_unit(from, into);
  std::erase_if(edges_, [](const Edge& edge) { return edge.from == edge.to; });
  NodeId culprit = kNoNode;
  bool good = sort_units() && emit() && check_blocks(culprit) && total_bytes() <= bytes;
  for (const auto& [from, into] : pairs)
    good = good && !(units_[into].kind == UnitKind::gemm && units_[into].uses_own_reduction);
  if (!good) snapshot.restore(*this);
  return good;
}

/// Best gain first; pairs of equal gain that touch different units (those of equal layers) at once.
void Partitioner::merge_rows() {
  for (bool merged = true; merged;) {
    merged = false;
    const auto candidates = merge_candidates();
    for (std::size_t i = 0; i < candidates.size() && !merged; ++i) {
      const auto& [gain, first] = candidates[i];
      if (!may_merge(first.first, first.second)) {
        banned_.insert(first);
        continue;
      }
      std::vector<std::pair<int, int>> batch{first};
      std::set<int> touched{first.first, first.second};
      for (std::size_t j = i + 1; j < candidates.size() && candidates[j].first == gain; ++j) {
        const auto& pair = candidates[j].second;
        if (touched.count(pair.first) || touched.count(pair.second)) continue;
        if (!may_merge(pair.first, pair.second)) continue;
        touched.insert({pair.first, pair.second});
        batch.push_back(pair);
      }
      merged = (batch.size() > 1 && try_merge(batch)) || try_merge({first});
      if (!merged) banned_.insert(first);
    }
  }
}

/// A floating value that several units compute may be cheaper at home in the first of them.
void Partitioner::search_homes() {
  constexpr int kMaxTries = 64;  // per phase; blocks have a handful
  int tries = 0;
  for (const NodeId v : live_) {
    const Node& node = graph_.node(v);
    if (!is_tile(node) || home_of(v) >= 0 || outside_[v] || node.op == Op::cols ||
        node.op == Op::cat_cols || node.op == Op::cat_rows)
      continue;
    std::vector<int> users;
    for (const int index : sorted_) {
      const auto& values = units_[index].values;
      if (std::binary_search(values.begin(), values.end(), v)) users.push_back(index);
    }
    std::size_t tiles = 0;
    for (const NodeId u : node.in) tiles += is_tile(graph_.node(u)) ? 1 : 0;
    if (users.size() < 2 || tiles < 2) continue;
    if (++tries > kMaxTries) return;
    const double bytes = total_bytes();
    Snapshot snapshot(*this);
    home_[v] = users.front();
    NodeId culprit = kNoNode;
    if (!(emit() && check_blocks(culprit) && total_bytes() < bytes)) snapshot.restore(*this);
  }
}

std::string Partitioner::note_of(int index) const {
  const Work& work = units_[index];
  const auto name = [&](NodeId v) {
    const Node& node = graph_.node(v);
    if (!node.name.empty()) return node.name;
    if (node.op == Op::proj)
      return std::string(row_of(graph_.node(node.in[0]).attrs.opaque)
                             .outputs[static_cast<std::size_t>(node.attrs.index)]);
    return fmt::format("{}_{}", coda::name_of(node.op), v);
  };
  std::string opaque, leaves;
  int opaque_count = 0, leaf_count = 0;
  for (const NodeId v : work.loads) {
    const int home = home_of(v);
    if (home >= 0 && units_[home].kind == UnitKind::opaque)
      opaque += (opaque_count++ ? ", " : "") + name(v);
    else if (home < 0)
      leaves += (leaf_count++ ? ", " : "") + name(v);
  }
  // A GEMM beside it, and why its epilogue could not do this.
  for (const NodeId v : work.loads) {
    const int home = home_of(v);
    if (home < 0 || units_[home].kind != UnitKind::gemm) continue;
    for (const Edge& edge : edges_)
      if (edge.from == home && edge.to == index && edge.dep == Dep::row)
        return fmt::format(
            "needs a reduction over whole rows of {}, which is complete only after the GEMM that "
            "makes it",
            name(v));
  }
  if (work.axis != kTokens) return "works on weights, whose rows are features";
  if (work.uses_own_reduction)
    return "uses a reduction over whole rows while it makes the result; a GEMM's tile does not "
           "hold whole rows";
  for (const Edge& edge : edges_)
    if (edge.to == index && edge.dep == Dep::row)
      return "needs a reduction that is complete only after the program that makes its tiles";
  if (opaque_count > 0)
    return fmt::format("operand{} {} {} of an opaque node, so no GEMM is beside it",
                       opaque_count > 1 ? "s" : "", opaque,
                       opaque_count > 1 ? "are results" : "is a result");
  if (leaf_count > 0)
    return fmt::format("operand{} {} {} in memory before, so no GEMM is beside it",
                       leaf_count > 1 ? "s" : "", leaves, leaf_count > 1 ? "are" : "is");
  return "no GEMM beside it can take it";
}

Partitioner::Partitioner(const PartitionRequest& request)
    : request_(request), graph_(*request.graph), n_(static_cast<std::size_t>(graph_.size())) {
  leaf_.assign(n_, 0);
  sealed_.assign(n_, 0);
  visited_.assign(n_, 0);
  loaded_.assign(n_, 0);
  probed_.assign(n_, 0);
  for (const NodeId v : request.leaves) leaf_[v] = 1;
  for (NodeId v = 0; v < graph_.size(); ++v) {
    const Node& node = graph_.node(v);
    if (node.op == Op::input) leaf_[v] = 1;
    if ((node.op == Op::cols || node.op == Op::rows) && is_tile(node) && leaf_[node.in[0]])
      leaf_[v] = 1;
  }
  find_live();
}

namespace {

/// fuse = false: every tile is stored. Free values (made of vectors only) and slices are not worth
/// a tensor.
std::vector<char> seal_all(const Graph& graph) {
  std::vector<char> sealed(static_cast<std::size_t>(graph.size()), 0);
  for (NodeId v = 0; v < graph.size(); ++v) {
    const Node& node = graph.node(v);
    if (!is_tile(node) || node.op == Op::opaque || node.op == Op::proj || node.op == Op::input ||
        node.op == Op::cols || node.op == Op::rows || node.op == Op::cat_rows)
      continue;
    bool free = node.op != Op::matmul;
    for (const NodeId u : node.in) free = free && !is_tile(graph.node(u));
    sealed[static_cast<std::size_t>(v)] = free ? 0 : 1;
  }
  return sealed;
}

}  // namespace

Partition Partitioner::run() {
  if (!request_.fuse) sealed_ = seal_all(graph_);
  // Each failed round stores one more value whole; with all of them stored nothing can fail.
  constexpr int kMaxRounds = 100;
  for (int round = 0;; ++round) {
    if (round == kMaxRounds) sealed_ = seal_all(graph_);
    internal_check(round <= kMaxRounds, "partition: no order of programs found");
    assign();
    edges_.clear();
    for (const auto& [from, to] : order_.edges()) edges_.push_back({from, to, Dep::operand});
    NodeId culprit = kNoNode;
    if (sort_units() && emit() && check_blocks(culprit)) break;
    if (culprit == kNoNode || sealed_[culprit])
      round = std::max(round, kMaxRounds - 1);
    else
      sealed_[culprit] = 1;
  }
  if (request_.fuse) {
    merge_rows();
    if (request_.search) search_homes();
  }
  Partition result;
  result.bytes = total_bytes();
  for (const int index : sorted_) {
    Unit unit = finished(index);
    const bool idle = unit.stores.empty() && unit.reductions.empty();
    if (idle && unit.kind != UnitKind::opaque) continue;
    if (unit.kind == UnitKind::rows) unit.note = note_of(index);
    if (unit.kind == UnitKind::vectors)
      unit.note = "vectors and scalars that are complete only after all rows";
    result.units.push_back(std::move(unit));
  }
  return result;
}

Partition partition(const PartitionRequest& request) { return Partitioner(request).run(); }

}  // namespace coda
