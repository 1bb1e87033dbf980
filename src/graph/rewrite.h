// Rewrites of a Graph, each for one pattern (docs/design.md). A Graph is append-only: a rewrite
// builds what changes through Graph::make and says which node stands for which. The order that
// plan/compile.cpp applies: defer, merge, gradients() and split_lse, recover, min_cut.
//
// No rule here names an operator. Everything iterates by node id, so that a compilation depends on
// nothing but its input.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coda/graph.h"

namespace coda {

/// Ancestors of the roots and the roots themselves, ascending (so operands come first). Ids that
/// are kNoNode are skipped.
std::vector<NodeId> needed_by(const Graph& graph, std::span<const NodeId> roots);

/// needed_by as a mask over all ids of the graph.
std::vector<bool> mask_of(const Graph& graph, std::span<const NodeId> ids);

/// For each id: does it depend on one of the sources (or is one)?
std::vector<bool> depends_on(const Graph& graph, std::span<const NodeId> sources);

/// A value of kind tile that is made of vectors only: it costs nothing to recompute anywhere.
bool is_free(const Graph& graph, NodeId id);

/// What became of each node that the roots need: map[old id] = new id (kNoNode: not needed). Names
/// stay. notes: one line for each time the rule fired, for `coda explain`.
struct Rewritten {
  std::vector<NodeId> map;
  std::vector<std::string> notes;
  NodeId operator[](NodeId id) const { return map[static_cast<std::size_t>(id)]; }
  Tensor operator[](Tensor t) const { return Tensor(&t.graph(), (*this)[t.id()]); }
};

/// R1 (class R: moves one rounding): nt(A, B) where A's product normal form holds a col factor c
/// that depends on a reduction made where the tile itself is made -> c * nt(A / c, B). Repeats. A
/// factor that is available before the tile stays in A.
Rewritten defer(Graph& graph, std::span<const NodeId> roots);

/// R4 (class E): all nt with one A and with B free of matmuls and of one memory type ->
/// one nt(A, cat_rows(B...)) and cols of it. Run after defer, before gradients.
Rewritten merge(Graph& graph, std::span<const NodeId> roots);

/// R8 (class E): lse(x) -> row_max(x) + log_sum(x), and in differences one term after the other:
/// a - lse(x) -> (a - row_max(x)) - log_sum(x), lse(x) - b -> (row_max(x) - b) + log_sum(x). So the
/// log-sum-exp of large numbers, which has no room for their differences, is never formed. known:
/// what the forward nodes became, when the roots are gradients.
Rewritten split_lse(Graph& graph, std::span<const NodeId> roots,
                    std::span<const NodeId> known = {});

/// A differentiated graph in two phases.
struct Phases {
  std::vector<NodeId> forward;     ///< roots of the forward phase
  std::vector<NodeId> backward;    ///< roots of the backward phase: gradients
  std::vector<NodeId> cotangents;  ///< seeds: what the forward phase does not know
  /// Nodes below existed before gradients() was called; those that the forward roots need are the
  /// forward values, and atoms for every rewrite of the backward phase.
  NodeId boundary = 0;
};

/// R5 (class E for rotations and addressing, R for a row scale, C for a bias): a forward value that
/// the backward phase uses directly, that is not stored and that nothing can recompute (a matmul,
/// or columns of one) -> the inverse of a consumer that is stored or from which other needed values
/// are recomputed. stored: ids of forward values that are in memory anyway (inputs, outputs,
/// operands of matmuls and opaque nodes, opaque results). Maps the nodes that the backward roots
/// need.
Rewritten recover(Graph& graph, const Phases& phases, std::span<const NodeId> stored);

/// R6 (class E): the values to keep between the phases, by a minimum cut between what only the
/// forward phase can make and what needs a cotangent; of all minimum cuts the one nearest the
/// backward phase. bytes[id] is what reading the value moves; a value that is not stored anyway
/// counts twice (write and read). Inputs and constants are not listed. Values may be cotangent-free
/// ones that only the backward phase asked for; they contain no matmul that the forward lacks.
std::vector<NodeId> min_cut(const Graph& graph, const Phases& phases,
                            std::span<const NodeId> stored, std::span<const double> bytes);

}  // namespace coda
