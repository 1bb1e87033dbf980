// A section of a lowered program (ir/lower.h) as text: the part of a GEMM's epilogue that works on
// one block of the accumulator's columns.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/epilogue_source.h"

namespace coda::cuda {

/// The member function section_N of `class Epilogue`, which works chunk by chunk.
/// `ragged_chunks`: a block of its columns ends within a chunk. `staged`: stores that can leave by
/// TMA do.
std::string section_text(const Program& program, const EpiloguePlan& plan, std::int32_t section,
                         bool ragged_chunks, bool staged);

}  // namespace coda::cuda
