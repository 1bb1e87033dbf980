// Row sums that one program makes and that end in one sum become one row sum: half the partials to
// store and finish. Needs to know which program makes what, so it runs on a finished partition;
// earlier, it would tie programs together that should stay apart.
#pragma once

#include <vector>

#include "graph/rewrite.h"
#include "plan/partition.h"

namespace coda {

/// (class A) row_sum(s) * c + row_sum(t) * c -> row_sum(s + t) * c (also with / c and without c),
/// where one unit of the partition computes both sums and s and t are equally wide. boundary: nodes
/// below it are forward values and stay as they are.
Rewritten join_partials(Graph& graph, const Partition& partition, const std::vector<NodeId>& roots,
                        NodeId boundary);

}  // namespace coda
