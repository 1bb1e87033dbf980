// Embedding on the GPU, as a step of a plan.
#pragma once

#include "backend/cuda/kernel_store.h"
#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

/// device/embedding.cuh; `entry` names one of its kernels. columns: of a chunk, a power of two.
KernelSource embedding_source(const char* entry, DType table, DType x, int columns);

}  // namespace coda::cuda
