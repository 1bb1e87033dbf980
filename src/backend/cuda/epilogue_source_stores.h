// Which stores of an epilogue can leave by TMA, and through which tensor map.
#pragma once

#include "backend/cuda/epilogue_source.h"

namespace coda::cuda {

/// The tensor map that a store leaves through, -1: none.
int store_map(const EpiloguePlan& plan, const Program& program,
              const lowering::LoweredSection& section, const lowering::Sink& sink);

}  // namespace coda::cuda
