// A section of a lowered program (ir/lower.h) as text: the part of a GEMM's epilogue that works on
// one block of the accumulator's columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/epilogue_source.h"

namespace coda::cuda {

/// 64 columns of a tile operand that come through the ring for each chunk.
struct RingBox {
  int map = -1;        ///< of EpiloguePlan::loads
  std::string column;  ///< of the operand, from `chunk_column`
};

struct SectionText {
  std::string functions;
  std::vector<RingBox> boxes;  ///< in the order in which a chunk takes them
  /// Vectors that finish() needs: members, and what fetches them.
  std::string members, fetches;
  /// Of a lane, that hold a chunk of what waits; and steps in which the chunk leaves. 0: nothing
  /// waits.
  std::int64_t held_registers = 0;
  bool fetches_late = false;  ///< fetch_N comes after hold
  std::int64_t steps = 0;
};

/// The member functions of a section in `class Epilogue`. section_N takes the accumulators, chunk
/// by chunk; with `form.deferred`, leave_N makes a step of what waits. `ragged_chunks`: a block of
/// its columns ends within a chunk.
SectionText section_text(const Program& program, const EpiloguePlan& plan, std::int32_t section,
                         bool ragged_chunks, const EpilogueForm& form);

}  // namespace coda::cuda
