#include "backend/cuda/info.h"

#include <fmt/format.h>

#include <exception>

#include "backend/cuda/attention_cudnn.h"
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

/// Of the usual heads; attention_choice() says what a step takes.
std::string describe_attention() {
  const std::string forward = attention_choice({DType::bf16, 64, false}).text;
  const std::string backward = attention_choice({DType::bf16, 64, true}).text;
  if (forward == backward) return forward;
  return fmt::format("forward {} ({}), backward {}", forward, CudnnAttention::path(), backward);
}

}  // namespace

std::string info() {
  const auto line = [](auto describe) -> std::string {
    try {
      return describe();
    } catch (const std::exception& error) {
      return fmt::format("not usable: {}", error.what());
    }
  };
  return fmt::format("cuda: {}\ncuda compiler: {}\ncuda kernels: {}\ncuda attention: {}\n",
                     line(describe_gpu), describe_compiler(), KernelCache::default_path(),
                     line(describe_attention));
}

}  // namespace coda::cuda
