// What of a section can wait. Where a program rounds the product to 16 bits before it goes on, the
// rounded tile is half as many registers: a kernel holds it, starts the next tile, and computes and
// stores the rest, a step at a time, beside that tile's multiplies. The bits are those of a kernel
// that does all of it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/epilogue_source_layout.h"

namespace coda::cuda {

struct DeferredStep {
  std::size_t sink = 0;
  int number = 0, count = 1;  ///< which of the sink's steps
};

struct Deferral {
  std::vector<std::int32_t> held;  ///< casts to 16 bits, which everything that waits begins at
  /// Of a chunk: of the sinks that send a tile, then of the others.
  std::vector<DeferredStep> steps;
};

/// All of a section's sinks wait, or (no parts) none.
Deferral defer_section(const Program& program, const EpiloguePlan& plan,
                       const lowering::LoweredSection& section, const FragmentLayout& layout);

/// Registers of a lane that hold a chunk of what `deferral` holds.
std::int64_t held_registers(const EpiloguePlan& plan, const Deferral& deferral,
                            const FragmentLayout& layout);

}  // namespace coda::cuda
