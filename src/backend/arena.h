// Where the buffers that a plan owns lie in one block of memory, laid out from their lifetimes.
// Knows nothing of devices: any backend allocates arena.bytes and adds the offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace coda {

/// The matrix that holds a buffer when a run has `tokens` rows.
///   tile, weight         [rows, cols]
///   col                  [M, 1] with stride 1       row  [1, cols]      scalar  [1, 1]
///   partials of a col    [granules, M]; finish lse: [2 * granules, M], the maxima then the sums
///   partials of a row    [granules, cols]
///   partials of a scalar [granules, 1]
/// granules kTokens stands for ceil(M / kRowGranule).
struct Extents {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool operator==(const Extents&) const = default;
};
Extents extents_of(const Buffer& buffer, std::int64_t tokens);

struct Placement {
  std::size_t offset = 0;   ///< bytes from the start of the arena, a multiple of 256
  std::size_t bytes = 0;    ///< 0 for inputs and outputs
  std::int64_t stride = 0;  ///< elements from a row to the next; the same for every M
};

struct Arena {
  std::vector<Placement> placements;  ///< one for each of Plan::buffers
  std::size_t bytes = 0;
};

/// Places the plan's own buffers for runs of up to max_tokens rows. Rows are padded to 64 bytes
/// (but cols and results stay contiguous). Buffers that are never alive together share memory if
/// `reuse`; lifetimes are read off the steps; and a row program that is the last reader of a tile
/// writes a tile that it makes of it, element by element, in its place. element_size(dtype) is
/// taken after `widen`: floats become f64.
Arena layout_arena(const Plan& plan, std::int64_t max_tokens, bool reuse = true,
                   bool widen = false);

}  // namespace coda
