// What each unit loads, stores and computes again. Units are visited from last to first, so that a
// load can ask for a store in a unit not visited yet; twice, since load-or-recompute depends on
// what is stored anyway.
#include <algorithm>
#include <limits>
#include <queue>

#include "base/check.h"
#include "ops/op_table.h"
#include "plan/partitioner.h"

namespace coda {
namespace {
constexpr double kNever = std::numeric_limits<double>::infinity();
}

double Partitioner::bytes_of(NodeId v) const {
  const Node& node = graph_.node(v);
  const Node* base = &node;
  while (base->op == Op::cols || base->op == Op::rows) base = &graph_.node(base->in[0]);
  const DType dtype = base->op == Op::input ? base->type.dtype : request_.dtype;
  const std::int64_t rows = node.type.rows == kTokens ? request_.tokens : node.type.rows;
  return static_cast<double>(rows) * static_cast<double>(node.type.cols) *
         static_cast<double>(size_of(dtype));
}

double Partitioner::store_bytes(const UnitStore& store) const {
  const Node& node = graph_.node(store.value);
  if (!is_tile(node)) return 0;
  if (store.slot < 0) return bytes_of(store.value);
  const std::int64_t rows = node.type.rows == kTokens ? request_.tokens : node.type.rows;
  return static_cast<double>(rows) * static_cast<double>(node.type.cols) *
         static_cast<double>(size_of(request_.output_dtype));
}

/// A slice of a floating value that got a home later lives there too.
int Partitioner::home_of(NodeId v) const {
  if (home_[v] >= 0) return home_[v];
  const Node& node = graph_.node(v);
  if ((node.op == Op::cols || node.op == Op::rows) && !outside_[v]) return home_of(node.in[0]);
  return kFloating;
}

bool Partitioner::is_stored(NodeId v) const {
  if (stored_.empty()) return false;
  if (stored_[v] || before_[v]) return true;
  const Node& node = graph_.node(v);
  return (node.op == Op::cols || node.op == Op::rows) && is_stored(node.in[0]);
}

bool Partitioner::emit() {
  before_.assign(n_, 0);
  stored_.assign(n_, 0);
  for (int pass = 0; pass < 2; ++pass) {
    if (!emit_pass()) return false;
    before_ = stored_;
  }
  return sort_units();
}

bool Partitioner::emit_pass() {
  failed_ = false;
  edges_.clear();
  stored_.assign(n_, 0);
  for (Work& unit : units_) {
    unit.derived.clear();
    unit.reductions.clear();
    for (const UnitStore& store : unit.required)
      if (store.slot < 0) {
        stored_[store.value] = 1;
        stored_[store.into] = 1;
      }
  }
  collect_operand_edges();
  for (const NodeId r : kept_reductions_)
    if (home_[r] >= 0) units_[home_[r]].reductions.insert(r);
  for (std::size_t i = sorted_.size(); i-- > 0 && !failed_;) emit_unit(sorted_[i]);
  return !failed_;
}

void Partitioner::emit_unit(int index) {
  current_ = index;
  ++stamp_;
  Work& unit = units_[index];
  unit.loads.clear();
  unit.values.clear();
  unit.uses_own_reduction = false;
  for (const UnitStore& store : unit.required) visit(store.value);
  for (const NodeId v : unit.derived) visit(v);
  const std::vector<NodeId> reductions(unit.reductions.begin(), unit.reductions.end());
  for (const NodeId r : reductions) {
    unit.values.push_back(r);  // not marked as visited: to use it here is another matter
    visit_operands(r);
  }
  std::sort(unit.loads.begin(), unit.loads.end());
  std::sort(unit.values.begin(), unit.values.end());
  unit.values.erase(std::unique(unit.values.begin(), unit.values.end()), unit.values.end());
}

void Partitioner::add_dep(int from, Dep dep) {
  if (from < 0 || from == current_) return;
  if (position_[from] > position_[current_]) failed_ = true;
  edges_.push_back({from, current_, dep});
}

void Partitioner::visit_operands(NodeId v) {
  for (const NodeId u : graph_.node(v).in) visit(u);
}

void Partitioner::load(NodeId v, int from) {
  loaded_[v] = stamp_;
  units_[current_].loads.push_back(v);
  if (from < 0) return;
  add_dep(from, Dep::tile);
  for (const int writer : writers_of(v)) {
    if (writer == current_) failed_ = true;  // it would read what it has not written yet
    add_dep(writer, Dep::tile);
  }
  const auto in_memory = [&](NodeId u) { return stored_[u] != 0; };
  NodeId base = v;
  while (!in_memory(base) && (graph_.node(base).op == Op::cols || graph_.node(base).op == Op::rows))
    base = graph_.node(base).in[0];
  if (in_memory(base) || units_[from].kind == UnitKind::opaque) return;
  stored_[v] = 1;
  units_[from].derived.insert(v);
}

/// Units that write parts of the sealed cat_cols that v is or lies in.
std::vector<int> Partitioner::writers_of(NodeId v) const {
  while (graph_.node(v).op == Op::cols) v = graph_.node(v).in[0];
  std::vector<int> writers;
  if (graph_.node(v).op != Op::cat_cols) return writers;
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const UnitStore& store : units_[u].required)
      if (store.into == v && store.slot < 0) writers.push_back(static_cast<int>(u));
  return writers;
}

void Partitioner::visit_vector(NodeId v) {
  const Node& node = graph_.node(v);
  if (leaf_[v]) return;
  if (is_reduction(node.op)) {
    const int home = home_[v];
    if (home != current_) {
      add_dep(home, node.op == Op::col_sum || node.op == Op::sum ? Dep::col : Dep::row);
      units_[home].reductions.insert(v);
      return;
    }
    const Work& unit = units_[current_];
    const bool complete = unit.kind == UnitKind::vectors
                              ? node.op == Op::sum
                              : unit.kind == UnitKind::rows && node.op != Op::col_sum;
    if (!complete) failed_ = true;
    if (unit.kind == UnitKind::rows) units_[current_].uses_own_reduction = true;
  }
  units_[current_].values.push_back(v);
  visit_operands(v);
}

void Partitioner::visit(NodeId v) {
  if (failed_ || visited_[v] == stamp_) return;
  visited_[v] = stamp_;
  const Node& node = graph_.node(v);
  if (!is_tile(node)) return visit_vector(v);
  const int home = home_of(v);
  if (outside_[v] && home != current_) return load(v, home);
  if (home < 0 || home == current_) {
    units_[current_].values.push_back(v);
    if (node.op != Op::matmul) visit_operands(v);
    return;
  }
  const bool loadable = position_[home] < position_[current_];
  const double load_bytes = loadable ? bytes_of(v) * (is_stored(v) ? 1 : 2) : kNever;
  ++probe_;
  const double again = recompute_bytes(v, true);
  if (again < load_bytes) {
    units_[current_].values.push_back(v);
    visit_operands(v);
  } else if (loadable) {
    load(v, home);
  } else {
    failed_ = true;
  }
}

/// Bytes of the loads that computing v in the current unit would add.
double Partitioner::recompute_bytes(NodeId v, bool top) {
  if (probed_[v] == probe_) return 0;
  probed_[v] = probe_;
  if (!top && visited_[v] == stamp_) return 0;
  const Node& node = graph_.node(v);
  if (leaf_[v] && !is_tile(node)) return 0;
  const auto before = [&](int unit) { return position_[unit] < position_[current_]; };
  if (is_reduction(node.op)) {
    const int home = home_[v];
    if (home == current_) {
      const bool complete = units_[home].kind == UnitKind::rows && node.op != Op::col_sum;
      if (!complete) return kNever;
    } else {
      return before(home) ? 0 : kNever;
    }
  }
  if (is_tile(node)) {
    const int home = home_of(v);
    if (outside_[v] && home != current_) return home < 0 || before(home) ? bytes_of(v) : kNever;
    if (!top && home >= 0 && home != current_ && is_stored(v) && before(home)) return bytes_of(v);
    if (node.op == Op::matmul) return home == current_ ? 0 : kNever;
  }
  double bytes = 0;
  for (const NodeId u : node.in) bytes += recompute_bytes(u, false);
  return bytes;
}

/// A GEMM or opaque node waits for whoever writes its operands.
void Partitioner::collect_operand_edges() {
  std::map<std::pair<NodeId, NodeId>, std::vector<int>> writers;  // (value, into)
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const UnitStore& store : units_[u].required)
      if (store.slot < 0) writers[{store.value, store.into}].push_back(static_cast<int>(u));
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const UnitStore& operand : units_[u].operands) {
      if (leaf_[operand.value] && operand.into == operand.value) continue;  // also if copied out
      const int reader = static_cast<int>(u);
      // What is in memory already is read there, not from a copy made for an output.
      const bool own = operand.value == operand.into && outside_[operand.value];
      const auto found = writers.find({operand.value, operand.into});
      if (found != writers.end() && !own) {
        for (const int writer : found->second) edges_.push_back({writer, reader, Dep::operand});
        continue;
      }
      const int home = home_of(operand.value);
      if (home < 0 || home == reader) continue;
      edges_.push_back({home, reader, Dep::operand});
      for (const int writer : writers_of(operand.value))
        edges_.push_back({writer, reader, Dep::operand});
      if (is_tile(graph_.node(operand.value)) && units_[home].kind != UnitKind::opaque &&
          !is_stored(operand.value)) {
        // A slice of a sealed value that no required store covers.
        units_[home].derived.insert(operand.value);
        stored_[operand.value] = 1;
      }
    }
  for (const Edge& edge : edges_)
    if (position_[edge.from] > position_[edge.to]) failed_ = true;
}

/// Launch order from the edges of the last emission, smallest unit first; false if there is none.
bool Partitioner::sort_units() {
  next_.assign(units_.size(), {});
  std::vector<int> waiting(units_.size(), 0);
  for (const Edge& edge : edges_) {
    next_[edge.from].push_back(edge.to);
    ++waiting[edge.to];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  std::size_t alive = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u].alive) continue;
    ++alive;
    if (waiting[u] == 0) ready.push(static_cast<int>(u));
  }
  sorted_.clear();
  while (!ready.empty()) {
    const int unit = ready.top();
    ready.pop();
    sorted_.push_back(unit);
    for (const int to : next_[unit])
      if (--waiting[to] == 0) ready.push(to);
  }
  position_.assign(units_.size(), 0);
  for (std::size_t i = 0; i < sorted_.size(); ++i) position_[sorted_[i]] = static_cast<int>(i);
  return sorted_.size() == alive;
}

double Partitioner::total_bytes() const {
  double bytes = 0;
  for (const Work& unit : units_) {
    if (!unit.alive) continue;
    for (const NodeId v : unit.loads) bytes += bytes_of(v);
    for (const NodeId v : unit.derived) bytes += bytes_of(v);
    for (const UnitStore& store : unit.required) bytes += store_bytes(store);
    for (const UnitStore& operand : unit.operands)
      if (is_tile(graph_.node(operand.value))) bytes += bytes_of(operand.value);
  }
  return bytes;
}

Unit Partitioner::finished(int index) const {
  const Work& work = units_[index];
  Unit unit{.kind = work.kind,
            .node = work.node,
            .axis = work.axis,
            .stores = work.required,
            .reductions = {work.reductions.begin(), work.reductions.end()},
            .loads = work.loads,
            .values = work.values,
            .note = {}};
  for (const NodeId v : work.derived) {
    // Where the whole is stored, its slices are.
    NodeId base = v;
    while (graph_.node(base).op == Op::cols || graph_.node(base).op == Op::rows) {
      base = graph_.node(base).in[0];
      if (stored_[base]) break;
    }
    if (base != v && stored_[base]) continue;
    unit.stores.push_back({v, v, 0, -1});
  }
  std::sort(unit.stores.begin(), unit.stores.end());
  return unit;
}

}  // namespace coda
