// Can a section of an epilogue run on accumulator fragments, and where does a lane hold the columns
// of each node? The layouts are those of device/epilogue_fragment.cuh.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/lower.h"

namespace coda::cuda {

/// A layout of no particular kind: whatever the reader likes best (loads, broadcasts).
inline constexpr int kAnyLayout = -1;

/// How a section runs: in steps, the fewest columns that hold whole pairs, segments and heads.
struct FragmentLayout {
  std::int64_t step = 0;       ///< columns of an acc block that a warp works on at a time
  std::int64_t chunk = 0;      ///< a tile must be whole chunks: steps and granules
  std::int64_t acc_scale = 1;  ///< columns of the section for one of an acc block
  std::vector<int> layout;     ///< per node of the lowered program: L, or kAnyLayout
};

/// Columns of a group and values of it that a lane holds.
constexpr std::int64_t group_columns(int layout) { return layout == 0 ? 1 : 4 * layout; }
constexpr std::int64_t group_values(int layout) { return layout == 0 ? 2 : 2 * layout; }

/// Nothing if columns would have to move between lanes, or a chunk would be too wide.
std::optional<FragmentLayout> fragment_layout(const lowering::Lowered& lowered,
                                              const lowering::LoweredSection& section);

}  // namespace coda::cuda
