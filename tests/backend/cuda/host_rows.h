// The very text that NVRTC gets for kernels without tensor cores, compiled by the host's compiler
// and run there: one fibre a CUDA thread, one block after another. Barriers and shuffles switch to
// the next fibre, so every thread of a block must meet the same ones.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/kernel_store.h"
#include "coda/error.h"

namespace coda::cuda {

/// What stands for CUDA's built-in names, in front of a kernel's text.
inline constexpr const char* kHostPrelude = R"host(
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __grid_constant__
namespace host {
struct Dim { unsigned x, y, z; };
inline Dim block_index, block_dim, grid_dim;
inline unsigned thread_index;
inline float* shared_memory;
inline float lanes[1024];
inline int counted[2];
inline std::vector<ucontext_t> fibres;
inline ucontext_t scheduler;
inline std::vector<char> done;
inline void yield() { const unsigned me = thread_index; swapcontext(&fibres[me], &scheduler); }
struct ThreadIndex { struct X { operator unsigned() const { return thread_index; } } x; };
}
#define threadIdx (host::ThreadIndex{})
#define blockIdx (host::block_index)
#define blockDim (host::block_dim)
#define gridDim (host::grid_dim)
inline void __syncthreads() { host::yield(); }
inline void __syncwarp() { host::yield(); }
inline float __shfl_xor_sync(unsigned, float x, int mask) {
  const unsigned me = host::thread_index;
  host::lanes[me] = x;
  host::yield();
  const float y = host::lanes[me ^ mask];
  host::yield();
  return y;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __uint_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
inline float cospif(float x) { return static_cast<float>(std::cos(M_PI * static_cast<double>(x))); }
inline float sinpif(float x) { return static_cast<float>(std::sin(M_PI * static_cast<double>(x))); }
inline unsigned atomicAdd(unsigned* at, unsigned x) { const unsigned old = *at; *at += x; return old; }
struct alignas(16) float4 { float x, y, z, w; };
namespace coda_device {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
#define CODA_DEVICE inline
inline u32 bits_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline u32 bits_f16(float x) { _Float16 h = static_cast<_Float16>(x); u16 b; std::memcpy(&b, &h, 2); return b; }
inline u32 pack_bf16(float low, float high) { return bits_bf16(low) | bits_bf16(high) << 16; }
inline u32 pack_f16(float low, float high) { return bits_f16(low) | bits_f16(high) << 16; }
inline float unpack_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
inline float unpack_f16(u16 bits) { _Float16 h; std::memcpy(&h, &bits, 2); return static_cast<float>(h); }
inline float approximate_reciprocal(float x) { return 1.0f / x; }
inline float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }
inline float* dynamic_shared() { return host::shared_memory; }
}
)host";

/// Runs a kernel whose only parameter is PARAMETER: defines coda_host_run.
inline constexpr const char* kHostRunner = R"host(
namespace host {
inline const void* parameter;
inline void enter() {
  coda_device::ENTRY(*static_cast<const coda_device::PARAMETER*>(parameter));
  done[thread_index] = 1;
  swapcontext(&fibres[thread_index], &scheduler);
}
}
extern "C" void coda_host_run(const void* parameter, unsigned grid, unsigned grid_y, unsigned block,
                              std::size_t shared_bytes) {
  using namespace host;
  host::parameter = parameter;
  grid_dim = {grid, grid_y, 1};
  block_dim = {block, 1, 1};
  constexpr std::size_t kStack = 64 * 1024;
  std::vector<char> stacks(block * kStack);
  fibres.resize(block);
  std::vector<float> memory(shared_bytes / 4 + 4);
  for (unsigned y = 0; y < grid_y; ++y) {
    for (unsigned x = 0; x < grid; ++x) {
      block_index = {x, y, 0};
      for (float& f : memory) f = NAN;
      shared_memory = memory.data();
      done.assign(block, 0);
      for (unsigned t = 0; t < block; ++t) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = stacks.data() + t * kStack;
        fibres[t].uc_stack.ss_size = kStack;
        fibres[t].uc_link = nullptr;
        makecontext(&fibres[t], enter, 0);
      }
      for (bool left = true; left;) {
        left = false;
        for (unsigned t = 0; t < block; ++t) {
          if (done[t]) continue;
          thread_index = t;
          swapcontext(&scheduler, &fibres[t]);
          left = left || !done[t];
        }
      }
    }
  }
}
)host";

/// Kernels compiled for the host, once a text.
class HostKernels {
 public:
  using Run = void (*)(const void* parameter, unsigned grid, unsigned grid_y, unsigned block,
                       std::size_t shared_bytes);

  HostKernels() {
    std::string folder = (std::filesystem::temp_directory_path() / "coda-host-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw BackendError("cannot make a temporary folder");
    folder_ = folder;
  }
  ~HostKernels() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// `parameter`: the type's name inside coda_device.
  Run get(const KernelSource& source, const std::string& parameter) {
    Run& run = runs_[source.entry + source.text];
    if (run == nullptr) run = compile(source, parameter);
    return run;
  }

 private:
  Run compile(const KernelSource& source, const std::string& parameter) {
    const auto path = folder_ / fmt::format("kernel{}", runs_.size());
    std::string text = without_ptx(source.text);
    std::string runner = kHostRunner;
    replace(runner, "ENTRY", source.entry);
    replace(runner, "PARAMETER", parameter);
    std::ofstream(path.string() + ".cpp") << kHostPrelude << text << runner;
    const std::string command = fmt::format(
        "c++ -std=c++20 -O1 -w -fPIC -shared -ffp-contract=off {0}.cpp -o {0}.so 2> {0}.log",
        path.string());
    if (std::system(command.c_str()) != 0) {
      std::ifstream log(path.string() + ".log");
      std::string lines{std::istreambuf_iterator<char>(log), {}};
      throw BackendError("host compiler: " + source.name + ": " + lines.substr(0, 3000));
    }
    void* library = dlopen((path.string() + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw BackendError(std::string("dlopen: ") + dlerror());
    return reinterpret_cast<Run>(dlsym(library, "coda_host_run"));
  }

  /// ptx.cuh is what the prelude stands for.
  static std::string without_ptx(std::string text) {
    const auto begin = text.find("#line 1 \"ptx.cuh\"");
    if (begin == std::string::npos) return text;
    const auto end = text.find("#line 1 ", begin + 1);
    return text.erase(begin, end - begin);
  }
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }

  std::filesystem::path folder_;
  std::map<std::string, Run> runs_;
};

}  // namespace coda::cuda
