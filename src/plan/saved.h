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

/// What backward is to have of the forward phase.
struct Choice {
  std::set<NodeId> tiles;   ///< kept
  std::set<NodeId> again;   ///< products that run again
  std::set<NodeId> remade;  ///< tiles made of those, stored as they would be if they were kept
};

/// Both phases, partitioned for one choice of saved values.
struct Split : Choice {
  std::vector<NodeId> saved;  ///< tiles, reductions and opaque results that backward reads
  Partition forward, backward;
  double moved = 0, held = 0;  ///< bytes; held: with what is rebuilt at one time
  double flops_again = 0;      ///< of the products in `again`
  double rebuilt = 0;          ///< bytes of the largest of them
  bool feasible = false;
};

class SavedSearch {
 public:
  /// forward, backward: roots of the phases; cotangents: what makes a value a backward one.
  SavedSearch(const Graph& graph, const CompileOptions& options, std::vector<Root> forward,
              std::vector<Root> backward, const std::vector<NodeId>& forward_values,
              const std::vector<NodeId>& cotangents);
  /// keep_products: products that the choice leaves out are kept as well.
  Split evaluate(const Choice& choice, bool keep_products = false) const;
  /// Hill climbing from a feasible split; price: of a byte held, in bytes moved. products: whether
  /// products may run again.
  Split improve(Split start, double price, bool products) const;
  /// Lets as few products run again as it takes to keep no more than `budget` bytes (or as little
  /// as can be), those first that cost least for what they save; of equal layers the first, since
  /// backward comes to them when most of the rest is no longer held.
  Split shrink(Split best, double budget) const;

 private:
  /// A product that might run again, and the kept tiles that are made from it and from no other.
  struct Product {
    NodeId node;
    std::vector<NodeId> tiles;
  };
  bool complete(const Choice& choice, bool keep_products, Split& split) const;
  bool takes_many(const Split& split, const std::vector<char>& walked) const;
  std::vector<std::vector<NodeId>> candidates(const Split& split) const;
  std::vector<std::vector<Product>> products(const Split& split) const;
  std::set<NodeId> products_below(const Split& split, NodeId v) const;
  bool drop_products(Split& best, double price) const;
  bool toggle_tiles(Split& best, double price) const;
  bool take_if_better(Split& best, const Choice& choice, double price) const;
  bool makes_widest(const Split& split, const Product& product) const;
  std::size_t sources(const Unit& unit, NodeId v) const;
  std::size_t signature(NodeId v, int depth) const;
  double elements_of(NodeId v) const;
  double bytes_of(NodeId v) const;
  double depth_of(NodeId product) const;

  const Graph& graph_;
  const CompileOptions& options_;
  std::vector<Root> forward_, backward_;
  std::vector<bool> in_forward_, needs_cotangent_;
  std::vector<std::vector<NodeId>> users_;
};

}  // namespace coda
