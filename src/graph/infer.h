// Kinds and shapes of nodes: what each op accepts and makes.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "coda/graph.h"

namespace coda {

/// Of rows and columns: indices fit 32 bits.
inline constexpr std::int64_t kMostExtent = std::numeric_limits<std::int32_t>::max();

/// The type of op(in...); UsageError that names the op and prints the shapes if it takes no such
/// operands. Fields of attrs that the op does not use are reset, periods are made explicit.
Type infer_type(const Graph& graph, Op op, const std::vector<NodeId>& in, Attrs& attrs);

/// Type of result `index` of an opaque node.
Type opaque_result(const Graph& graph, const Node& node, int index);

}  // namespace coda
