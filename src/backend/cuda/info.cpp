#include "backend/cuda/info.h"

#include <fmt/format.h>

#include <exception>

#include "backend/cuda/kernel_cache.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda/runtime.h"

namespace coda::cuda {
namespace {

std::string describe_gpu() {
  if (!why_no_gpu().empty()) return fmt::format("not usable: {}", why_no_gpu());
  const Device& device = Device::get();
  return fmt::format("{}, {} SMs, {} GiB, driver for CUDA {}.{}", device.name(), device.sm_count(),
                     device.memory_bytes() >> 30, device.driver_version() / 1000,
                     device.driver_version() % 1000 / 10);
}

std::string describe_compiler() {
  if (!Nvrtc::why_not().empty()) return Nvrtc::why_not();
  return fmt::format("NVRTC {} ({})", Nvrtc::get().version(), Nvrtc::get().path());
}

}  // namespace

std::string info() {
  std::string gpu;
  try {
    gpu = describe_gpu();
  } catch (const std::exception& error) {
    gpu = fmt::format("not usable: {}", error.what());
  }
  return fmt::format(
      "cuda: {}\ncuda compiler: {}\ncuda kernels: {}\ncuda attention: own kernels (cuDNN is not "
      "used)\n",
      gpu, describe_compiler(), KernelCache::default_path());
}

}  // namespace coda::cuda
