// AdamW on the GPU: one kernel over all weights, and the gradients' norm.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/kernel_store.h"

namespace coda::cuda {

/// device/adamw.cuh; `entry` names one of its kernels.
KernelSource adamw_source(const char* entry);

std::unique_ptr<DeviceAdamW> make_adamw_on(const Stream& stream,
                                           std::span<const AdamWTensor> tensors);

}  // namespace coda::cuda
