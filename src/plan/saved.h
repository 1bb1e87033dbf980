// Which forward values to keep for the backward phase: completes a choice of tiles to a set from
// which backward can be computed, and improves it by hill climbing on the bytes that both plans
// move plus a price on the bytes held between them.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "coda/graph.h"
#include "graph/rewrite.h"
#include "plan/compile.h"
#include "plan/partition.h"

namespace coda {

/// Both phases, partitioned for one choice of saved values.
struct Split {
  std::set<NodeId> tiles;     ///< the choice: tiles kept
  std::vector<NodeId> saved;  ///< tiles, reductions and opaque results that backward reads
  Partition forward, backward;
  double moved = 0, held = 0;  ///< bytes
  bool feasible = false;
};

class SavedSearch {
 public:
  /// forward, backward: roots of the phases; cotangents: what makes a value a backward one.
  SavedSearch(const Graph& graph, const CompileOptions& options, std::vector<Root> forward,
              std::vector<Root> backward, const std::vector<NodeId>& forward_values,
              const std::vector<NodeId>& cotangents);
  /// keep_products: products that `tiles` leaves to be computed again are kept as well.
  Split evaluate(const std::set<NodeId>& tiles, bool keep_products = false) const;
  /// Hill climbing from a feasible split; price: of a byte held, in bytes moved.
  Split improve(Split start, double price) const;

 private:
  bool complete(const std::set<NodeId>& tiles, bool keep_products, Split& split) const;
  std::vector<std::vector<NodeId>> candidates(const Split& split) const;
  std::size_t sources(const Unit& unit, NodeId v) const;
  std::size_t signature(NodeId v, int depth) const;
  double bytes_of(NodeId v) const;

  const Graph& graph_;
  const CompileOptions& options_;
  std::vector<Root> forward_, backward_;
  std::vector<bool> in_forward_, needs_cotangent_;
  std::vector<std::vector<NodeId>> users_;
};

}  // namespace coda
