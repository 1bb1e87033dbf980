// How the epilogue of a GEMM program falls apart by column blocks of its accumulator. A merged
// GEMM has one acc of full width, sliced by cols(acc, lo, hi); slices that some tile operation
// links (g and u of silu(g) * u) must be at hand together, all others run on their own. Backends
// run, for every section and each (row tile, tile of columns j within width): one GEMM tile for
// each acc block, at columns acc_offset + j, then the section's values at columns j.
#pragma once

#include <cstdint>
#include <vector>

#include "coda/program.h"

namespace coda {

struct Section {
  /// Columns of each acc block and of every tile in it, except for results of first_of_pair,
  /// second_of_pair and segment_sum (narrower) and join and segment_broadcast (wider).
  std::int64_t width = 0;
  /// First column in acc of each block, ascending. The value that names a block is acc itself or
  /// a cols of it, whose attrs.lo is the offset. Empty: the section reads no accumulator.
  std::vector<std::int64_t> acc_offsets;
  /// Indices into Program::values in order of definition: the block values (acc or cols), all
  /// tiles that follow from them or link to them, their reductions, and their stores.
  std::vector<std::int32_t> values;
};

/// Sections of a Form::gemm program whose widths are numbers, ordered by first value. Blocks of
/// one section have equal width; overlapping blocks may occur in different sections. Throws
/// ProgramError if blocks of different width are linked.
std::vector<Section> sections_of(const Program& program);

/// Values that depend on no tile: loaded vectors and scalars, and arithmetic on them, with the
/// stores of such values. Shared by all sections; to be computed first.
std::vector<std::int32_t> prologue_of(const Program& program);

}  // namespace coda
