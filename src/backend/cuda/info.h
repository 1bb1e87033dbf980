// What `coda info` says about CUDA.
#pragma once

#include <string>

namespace coda::cuda {

/// Lines such as "cuda: NVIDIA H200, 132 SMs, 139 GiB, driver for CUDA 13.0"; without a usable GPU
/// or compiler, a line that says why. Never throws.
std::string info();

}  // namespace coda::cuda
