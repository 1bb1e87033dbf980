// Column blocks of a unit's values: where slices and concatenations cut them, so that emission
// reads and writes whole blocks only and every block of a GEMM's values belongs to a section of
// accumulator blocks of one width (ir/sections.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/partition.h"

namespace coda {

struct Blocks {
  /// For every tile among the unit's values (and for stored loads): 0 = cuts[0] < ... = width.
  std::map<NodeId, std::vector<std::int64_t>> cuts;
  NodeId culprit = kNoNode;  ///< not kNoNode: cannot be cut so; storing this value first helps
  bool linked = true;        ///< false: a value of a GEMM unit touches no accumulator block
};

Blocks blocks_of(const Graph& graph, const Unit& unit);

}  // namespace coda
