// Which tiles of an epilogue can move by TMA, and through which tensor map.
#pragma once

#include "backend/cuda/epilogue_source.h"

namespace coda::cuda {

/// The tensor map that a store leaves through, -1: none.
int store_map(const EpiloguePlan& plan, const Program& program,
              const lowering::LoweredSection& section, const lowering::Sink& sink);

/// Do the tile operands of a launch (of one section) fit in a configuration's ring?
bool ring_fits(const Program& program, const EpiloguePlan& plan, const EpilogueLaunch& launch,
               const GemmConfig& config);

}  // namespace coda::cuda
