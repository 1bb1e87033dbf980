// Evaluates math as it is written, node by node in double: the oracle that knows nothing of fusion,
// partition, plans and memory types.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/reference/evaluate.h"
#include "coda/graph.h"

namespace coda::reference {

/// What stands for each input, by name: tile, weight [rows, cols]; col [M, 1]; row [1, n];
/// scalar [1, 1]; list [1, count]. Integers as doubles.
using GraphBindings = std::map<std::string, Matrix>;

/// The values of the roots for M = tokens rows, in their order. Only what the roots need is
/// evaluated. Throws UsageError for an input that is missing or has other extents.
std::vector<Matrix> evaluate(const Graph& graph, const std::vector<Tensor>& roots,
                             const GraphBindings& bindings, std::int64_t tokens);

}  // namespace coda::reference
