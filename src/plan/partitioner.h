// The state and steps of partition(), in the order of the .cpp files:
// assign.cpp (homes), emission.cpp (loads, stores, recomputation), merge.cpp (row programs into
// others). Internal to src/plan.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/partition.h"

namespace coda {

inline constexpr int kFloating = -1;

/// How one unit depends on another.
enum class Dep : std::uint8_t {
  tile,     ///< a tile of the other, value by value
  row,      ///< a finished reduction over columns: complete inside a row program
  col,      ///< a finished reduction over rows, or a sum: complete after the unit only
  operand,  ///< the whole tensor, before the unit's own work starts
};

using After = std::vector<std::pair<int, Dep>>;  // sorted, unique

/// Which units must run before which, with transitive closure.
class Order {
 public:
  int add_unit();
  void add_edge(int from, int to);
  bool precedes(int from, int to) const {
    return (reach_[from][static_cast<std::size_t>(to) / 64] >> (to % 64)) & 1u;
  }
  const std::set<std::pair<int, int>>& edges() const { return edges_; }

 private:
  std::vector<std::vector<std::uint64_t>> reach_;
  std::set<std::pair<int, int>> edges_;
};

/// A unit under construction.
struct Work {
  UnitKind kind = UnitKind::rows;
  NodeId node = kNoNode;
  std::int64_t axis = kTokens;
  bool alive = true;
  std::vector<UnitStore> required =
      {};  // operands of GEMMs and opaque nodes, outputs, saved values
  std::vector<UnitStore> operands = {};  // what the GEMM or opaque node itself reads
  // Results of emission:
  std::set<NodeId> derived = {};     // stored because another unit loads them
  std::set<NodeId> reductions = {};  // finished or combined elsewhere
  std::vector<NodeId> loads = {}, values = {};
  bool uses_own_reduction = false;
};

struct Edge {
  int from, to;
  Dep dep;
  auto operator<=>(const Edge&) const = default;
};

class Partitioner {
 public:
  explicit Partitioner(const PartitionRequest& request);
  Partition run();

 private:
  // assign.cpp
  void find_live();
  void assign();
  void assign_node(NodeId v);
  void assign_matmul(NodeId v);
  void assign_opaque(NodeId v);
  void assign_reduction(NodeId v);
  void assign_sum(NodeId v);
  void assign_elementwise(NodeId v);
  int choose_host(NodeId v, const std::vector<int>& hosts, const After& after);
  void place_root(const Root& root);
  void materialise(const UnitStore& store, int reader);
  void materialise_operand(NodeId operand, int reader);
  void seal(NodeId v);
  int new_unit(UnitKind kind, NodeId node, std::int64_t axis);
  int vectors_unit(const After& after);
  void require(int unit, const UnitStore& store);
  void run_after(int unit, const After& after);
  After dependencies(NodeId v) const;
  After after_of_operands(NodeId v) const;

  // emission.cpp
  bool emit();
  bool emit_pass();
  void emit_unit(int unit);
  void visit(NodeId v);
  void visit_vector(NodeId v);
  void visit_operands(NodeId v);
  void load(NodeId v, int from);
  int home_of(NodeId v) const;
  std::vector<int> writers_of(NodeId v) const;
  bool is_stored(NodeId v) const;
  double recompute_bytes(NodeId v, bool top);
  void add_dep(int from, Dep dep);
  void collect_operand_edges();
  bool sort_units();
  double bytes_of(NodeId v) const;
  double store_bytes(const UnitStore& store) const;
  double total_bytes() const;
  Unit finished(int unit) const;

  // merge.cpp
  struct Snapshot;
  bool check_blocks(NodeId& culprit);
  void merge_rows();
  bool try_merge(const std::vector<std::pair<int, int>>& pairs);
  void merge_unit(int from, int into);
  bool may_merge(int from, int into) const;
  bool path_between(int from, int to) const;
  std::vector<std::pair<double, std::pair<int, int>>> merge_candidates() const;
  void search_homes();
  std::string note_of(int unit) const;

  const PartitionRequest& request_;
  const Graph& graph_;
  std::size_t n_;
  std::vector<char> leaf_, sealed_, outside_, live_mark_;
  std::vector<NodeId> live_;
  std::set<NodeId> kept_reductions_;
  std::vector<int> home_;
  std::vector<After> after_;
  std::vector<Work> units_;
  Order order_;
  std::map<NodeId, int> copy_units_;
  std::set<NodeId> placed_;  // operands already materialised

  // emission
  std::vector<int> sorted_;            // units in launch order
  std::vector<int> position_;          // unit -> index in sorted_
  std::vector<Edge> edges_;            // of the last emission
  std::vector<char> stored_, before_;  // stored in this pass; in the pass before
  std::vector<int> visited_, loaded_, probed_;
  int stamp_ = 0, probe_ = 0;
  int current_ = 0;
  bool failed_ = false;
  std::set<std::pair<int, int>> banned_;
  std::vector<std::vector<int>> next_;  // edges_ by unit, as of the last sort
  std::vector<std::size_t> checked_;    // hash of the values and loads that passed check_blocks
};

}  // namespace coda
