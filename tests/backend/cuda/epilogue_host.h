// Runs generated kernels on the host: the very text that NVRTC gets, but for device/ptx.cuh, whose
// functions are given here in plain C++. The threads of a block are fibers that run in turns and
// meet at barriers and shuffles, so fragments, shuffles and shared memory mean what they mean on a
// GPU.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/program_gemm.h"

namespace coda::cuda::host {

inline const char* const kShim = R"cpp(
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __align__(n)
#define CODA_DEVICE inline
  struct HostIndex {
    unsigned x;
  };
  static HostIndex threadIdx, blockIdx;
  alignas(1024) static unsigned char memory[232448];

  // ---- Fibers
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
  };
  static std::vector<Fiber> fibers;
  static ucontext_t scheduler;
  static unsigned running;
  static void (*body)();
  static void yield() { swapcontext(&fibers[running].context, &scheduler); }
  static void enter() {
    body();
    fibers[running].done = true;
  }
  struct Barrier {
    unsigned arrived = 0, generation = 0;
  };
  static Barrier barriers[64];  // 0: the block; 1..15: named; 16 + w: a warp
  static void meet(unsigned id, unsigned threads) {
    Barrier& barrier = barriers[id];
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == threads) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) yield();
  }
  static unsigned block_threads;
  static float slots[2][512];
  static unsigned phase[512];
  static float __shfl_xor_sync(unsigned, float v, int mask) {
    const unsigned t = running, p = phase[t]++ & 1;
    slots[p][t] = v;
    meet(16 + t / 32, 32);
    return slots[p][t ^ mask];
  }
  static void __syncwarp() { meet(16 + running / 32, 32); }
  static void __syncthreads() { meet(0, block_threads); }

  // ---- Intrinsics
  static float __fadd_rn(float a, float b) { return a + b; }
  static float __fsub_rn(float a, float b) { return a - b; }
  static float __fmul_rn(float a, float b) { return a * b; }
  static float __fdiv_rn(float a, float b) { return a / b; }
  static float __fsqrt_rn(float a) { return std::sqrt(a); }
  static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
  static float __uint_as_float(unsigned bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  static unsigned __float_as_uint(float f) {
    unsigned bits;
    std::memcpy(&bits, &f, 4);
    return bits;
  }
  static float sinpif(float x) { return static_cast<float>(std::sin(3.14159265358979323846 * x)); }
  static float cospif(float x) { return static_cast<float>(std::cos(3.14159265358979323846 * x)); }
  static int min(int a, int b) { return a < b ? a : b; }

  namespace coda_device {
  using u8 = unsigned char;
  using u16 = unsigned short;
  using u32 = unsigned int;
  using u64 = unsigned long long;
  inline u32 shared_address(const void* p) {
    return static_cast<u32>(static_cast<const unsigned char*>(p) - memory);
  }
  inline void store_shared(u32 at, float x) { std::memcpy(memory + at, &x, 4); }
  inline float load_shared(u32 at) {
    float x;
    std::memcpy(&x, memory + at, 4);
    return x;
  }
  inline void named_barrier_sync(int id, int threads) { meet(id, threads); }
  inline float approximate_exp2(float x) { return std::exp2(x); }
  inline float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }
  inline float approximate_reciprocal(float x) { return 1.0f / x; }
  inline u32 bf16_bits(float f) {
    const u32 bits = __float_as_uint(f);
    if (f != f) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  inline u32 f16_bits(float f) {
    _Float16 h = static_cast<_Float16>(f);
    u16 bits;
    std::memcpy(&bits, &h, 2);
    return f != f ? 0x7fff : bits;
  }
  inline u32 pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
  inline u32 pack_f16(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }
  inline float unpack_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
  inline float unpack_f16(u16 bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return static_cast<float>(h);
  }
  inline u32 load_global_once(const u16* address) {
    u32 v;
    std::memcpy(&v, address, 4);
    return v;
  }
  // Four 8x8 matrices: lane l gives the address of row l % 8 of matrix l / 8, and holds of each
  // matrix columns 2 (l % 4), + 1 of row l / 4.
  inline void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
    static u32 addresses[512];
    const unsigned t = running, first = t / 32 * 32, lane = t % 32;
    addresses[t] = address;
    __syncwarp();
    const u32 values[4] = {r0, r1, r2, r3};
    for (unsigned m = 0; m < 4; ++m)
      std::memcpy(memory + addresses[first + 8 * m + lane / 4] + 4 * (lane % 4), &values[m], 4);
    __syncwarp();
  }
  inline void fence_proxy_async() {}
  inline void bulk_commit_group() {}
  template <int kPending>
  void bulk_wait_group_read() {}
  // What the test's encoder leaves in a tensor map.
  struct HostMap {
    char* pointer;
    long long rows, columns, stride;
  };
  /// 16 rows of 64 elements of 16 bits with 128-byte swizzle, clipped.
  template <class Map>
  inline void tma_store_2d(const Map* map, u32 source, int x, int y) {
    HostMap to;
    std::memcpy(&to, map, sizeof to);
    for (int r = 0; r < 16; ++r)
      for (int c = 0; c < 64; ++c)
        if (y + r < to.rows && x + c < to.columns)
          std::memcpy(to.pointer + ((y + r) * to.stride + x + c) * 2,
                      memory + source + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2, 2);
  }
  // Parts of the schedule and the ring that plain kernels never reach.
  inline u32 sm_id() { return 0; }
  inline u32 atomic_add(u32*, u32) { return 0; }
  inline u32 atomic_add_ordered(u32*, u32) { return 0; }
  inline void mbarrier_arrive(u32) {}
  inline void mbarrier_arrive_cluster(u32) {}
  inline u32 map_to_rank(u32 address, u32) { return address; }
  }  // namespace coda_device
)cpp";

inline const char* const kRunner = R"cpp(
  static const void* arguments[4];
  static void call();
  extern "C" void run_host(const void* const* given, unsigned grid, unsigned block) {
    for (int i = 0; i < 4; ++i) arguments[i] = given[i];
    body = call;
    block_threads = block;
    fibers.resize(block);
    for (auto& fiber : fibers) fiber.stack.resize(128 * 1024);
    for (unsigned b = 0; b < grid; ++b) {
      std::memset(memory, 0xff, sizeof memory);  // NaN
      for (unsigned t = 0; t < block; ++t) {
        getcontext(&fibers[t].context);
        fibers[t].context.uc_stack.ss_sp = fibers[t].stack.data();
        fibers[t].context.uc_stack.ss_size = fibers[t].stack.size();
        fibers[t].context.uc_link = &scheduler;
        fibers[t].done = false;
        makecontext(&fibers[t].context, enter, 0);
      }
      for (bool more = true; more;) {
        more = false;
        for (unsigned t = 0; t < block; ++t) {
          if (fibers[t].done) continue;
          more = true;
          running = t;
          threadIdx.x = t;
          blockIdx.x = b;
          swapcontext(&scheduler, &fibers[t].context);
        }
      }
    }
  }
)cpp";

/// A tensor map for the shim's tma_store_2d.
inline coda_device::TensorMap encode(const MatrixBlock& block, DType, int) {
  coda_device::TensorMap map{};
  map.opaque[0] = block.pointer;
  map.opaque[1] = static_cast<unsigned long long>(block.rows);
  map.opaque[2] = static_cast<unsigned long long>(block.columns);
  map.opaque[3] = static_cast<unsigned long long>(block.stride);
  return map;
}

using RunHost = void (*)(const void* const*, unsigned, unsigned);

/// What tests plant in the text of every kernel: replaces `from` by `to`.
struct Planted {
  std::string from, to;
};
inline Planted& planted() {
  static Planted error;
  return error;
}

/// Compiled once a text.
inline RunHost compile(const KernelSource& source, const std::string& call) {
  static std::map<std::string, RunHost> compiled;
  std::string text = source.text;
  // ptx.cuh is what the shim stands for; the kernel's shared memory is the shim's.
  const std::string begin = "#line 1 \"ptx.cuh\"", end = "#line 1 \"elements.cuh\"";
  const auto from = text.find(begin), to = text.find(end);
  if (from == std::string::npos || to == std::string::npos)
    throw std::runtime_error("no ptx.cuh in " + source.name);
  text.erase(from, to - from);
  const std::string shared = "  extern __shared__ __align__(1024) u8 memory[];\n";
  if (const auto at = text.find(shared); at != std::string::npos) text.erase(at, shared.size());
  if (!planted().from.empty()) {
    const auto at = text.find(planted().from);
    if (at == std::string::npos) throw std::runtime_error("nothing to plant in " + source.name);
    text.replace(at, planted().from.size(), planted().to);
  }
  text = std::string(kShim) + text + kRunner + call;
  RunHost& run = compiled[text];
  if (run) return run;
  const char* folder = std::getenv("TMPDIR");
  const std::string stem =
      fmt::format("{}/coda_epilogue_{}_{}", folder ? folder : "/tmp", getpid(), compiled.size());
  std::ofstream(stem + ".cpp") << text;
  const char* compiler = std::getenv("CXX");
  const std::string command =
      fmt::format("{} -std=c++20 -O1 -w -Wno-psabi -ffp-contract=off -shared -fPIC {}.cpp -o {}.so",
                  compiler ? compiler : "c++", stem, stem);
  if (std::system(command.c_str()) != 0)
    throw std::runtime_error("the host compiler refused " + stem + ".cpp");
  void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  unlink((stem + ".cpp").c_str());
  unlink((stem + ".so").c_str());
  return run = reinterpret_cast<RunHost>(dlsym(library, "run_host"));
}

inline void launch(const ProgramLaunch& launch) {
  if (launch.grid == 0) return;
  std::string call =
      "static void call() {\n  using namespace coda_device;\n  " + launch.source.entry + "(";
  if (launch.source.entry == "coda_plain_fragments")
    call +=
        "*(const PlainFragmentParams*)arguments[0], *(const EpilogueParams*)arguments[1], "
        "*(const Schedule*)arguments[2]";
  if (launch.source.entry == "coda_general") call += "*(const GeneralParams*)arguments[0]";
  if (launch.source.entry == "coda_vectors") call += "*(const VectorParams*)arguments[0]";
  call += ");\n}\n";
  const RunHost run = compile(launch.source, call);
  const void* arguments[4] = {};
  for (std::size_t i = 0; i < launch.parameters.size(); ++i)
    arguments[i] = launch.parameters[i].data();
  run(arguments, launch.grid, launch.block);
}

}  // namespace coda::cuda::host
