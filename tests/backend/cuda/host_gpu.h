// A GPU made of fibers: what stands for CUDA's language and for our PTX functions (ptx.cuh,
// attention_ptx.cuh) when a kernel's text is compiled for the host. One fiber a thread, one CTA at
// a time. Instructions of a whole warp, and barriers, wait for their last thread, which does the
// work; threads that meet in different instructions, threads that wait for ever, and accesses
// outside shared memory end the program with a message. Shared memory is NaN at first. Copies land
// when they are waited for, not before. Included by text that host_kernel.h writes; never by tests.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
// Static arrays; host_kernel.h drops the word where a kernel declares dynamic shared memory.
#define __shared__ static __attribute__((section("coda_shared")))

struct HostIndex {
  unsigned x, y, z;
};
static HostIndex threadIdx, blockIdx, blockDim, gridDim;

// ---- CUDA's arithmetic

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int min(int a, int b) { return a < b ? a : b; }
// Newer C libraries have functions of these names too.
#define sinpif host_sinpif
#define cospif host_cospif
inline float host_sinpif(float x) {
  return static_cast<float>(std::sin(M_PI * static_cast<double>(x)));
}
inline float host_cospif(float x) {
  return static_cast<float>(std::cos(M_PI * static_cast<double>(x)));
}
inline unsigned atomicAdd(unsigned* at, unsigned x) { return std::exchange(*at, *at + x); }
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float __uint_as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::uint32_t __float_as_uint(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<std::uint32_t>(bits)); }

extern "C" __attribute__((weak, visibility("hidden"))) char __start_coda_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_coda_shared[];

namespace coda_device {

alignas(1024) unsigned char memory[232448];  // dynamic shared memory
static unsigned shared_bytes = 0;

/// A meeting of the threads of a warp or of the CTA.
struct Meeting {
  const char* what = nullptr;
  unsigned arrived = 0, turn = 0;
  struct Words {
    std::uint64_t word[8];
  } in[32], out[32];  // by lane
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  struct Copy {
    std::uint32_t to;
    const void* from;
    bool zero;
    unsigned bytes = 16;
  };
  std::vector<Copy> open;                            // not committed
  std::vector<std::vector<Copy>> groups;             // committed, oldest first
  std::vector<std::function<void()>> open_products;  // of wgmma, likewise
  std::vector<std::vector<std::function<void()>>> product_groups;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current = 0;
static std::vector<Meeting> warps;
static Meeting named_barriers[16];  // 0: __syncthreads
struct Mbarrier {
  unsigned expected = 0, arrived = 0, phase = 0;
};
static std::map<std::uint32_t, Mbarrier> mbarriers;  // by address
static unsigned long long progress = 0;  // of any fiber, to find those that wait for ever

[[noreturn]] inline void fail(const char* what, const char* other) {
  std::fprintf(stderr, "host_gpu: CTA %u, thread %u: %s%s\n", blockIdx.x, current, what, other);
  std::abort();
}
inline void yield() {
  const unsigned mine = current;
  swapcontext(&fibers[mine].context, &scheduler);
  threadIdx.x = current = mine;
}

/// Waits for `count` threads; the last calls work().
template <class Work>
void meet(Meeting& meeting, unsigned count, const char* what, const Work& work) {
  if (meeting.arrived > 0 && std::strcmp(meeting.what, what) != 0) fail(what, meeting.what);
  meeting.what = what;
  const unsigned turn = meeting.turn;
  ++progress;
  if (++meeting.arrived == count) {
    work();
    meeting.arrived = 0;
    ++meeting.turn;
  } else {
    while (meeting.turn == turn) yield();
  }
}

/// One instruction of a warp: this lane's words go in, its results come out.
template <class Work>
Meeting::Words warp_instruction(const char* what, const Meeting::Words& in, const Work& work) {
  Meeting& warp = warps[current / 32];
  const unsigned lane = current % 32;
  warp.in[lane] = in;
  const auto threads = static_cast<unsigned>(fibers.size()) - current / 32 * 32;
  meet(warp, threads < 32 ? threads : 32, what, [&] { work(warp); });
  return warp.out[lane];
}

static const std::function<void()>* entry;

inline void start(Fiber& fiber) {
  constexpr std::size_t kStackBytes = 128 << 10;
  fiber.done = false;
  fiber.open.clear();
  fiber.groups.clear();
  fiber.open_products.clear();
  fiber.product_groups.clear();
  fiber.stack.resize(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler;
  makecontext(
      &fiber.context,
      +[] {
        (*entry)();
        fibers[current].done = true;
        ++progress;
      },
      0);
}

inline void run_cta() {
  std::memset(memory, 0xff, sizeof(memory));  // NaN in every format
  if (__start_coda_shared) {
    std::memset(__start_coda_shared, 0xff,
                static_cast<std::size_t>(__stop_coda_shared - __start_coda_shared));
  }
  warps.assign((fibers.size() + 31) / 32, Meeting{});
  for (Meeting& barrier : named_barriers) barrier = Meeting{};
  mbarriers.clear();
  for (Fiber& fiber : fibers) start(fiber);
  for (bool left = true; left;) {
    left = false;
    const auto before = progress;
    // Later warps first, so that a missing barrier is not hidden by the order of threads.
    for (auto i = static_cast<unsigned>(fibers.size()); i-- > 0;) {
      if (fibers[i].done) continue;
      threadIdx.x = current = i;
      swapcontext(&scheduler, &fibers[i].context);
      left = left || !fibers[i].done;
    }
    if (left && progress == before) fail("waits for ever, as do all that have not returned", "");
  }
}

template <class... Params, std::size_t... kIndex>
void call_with(void (*kernel)(Params...), const void* const* arguments,
               std::index_sequence<kIndex...>) {
  kernel(*static_cast<const Params*>(arguments[kIndex])...);
}

/// Runs grid_x * grid_y CTAs of a kernel, whose parameters lie at `arguments`.
template <class... Params>
void launch(void (*kernel)(Params...), unsigned grid_x, unsigned grid_y, unsigned block,
            unsigned dynamic_bytes, const void* const* arguments) {
  const std::function<void()> call = [&] {
    call_with(kernel, arguments, std::index_sequence_for<Params...>{});
  };
  entry = &call;
  shared_bytes = dynamic_bytes;
  fibers.resize(block);
  blockDim = {block, 1, 1};
  gridDim = {grid_x, grid_y, 1};
  for (blockIdx.y = 0; blockIdx.y < grid_y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid_x; ++blockIdx.x) run_cta();
  }
}

// ---- CUDA's barriers and shuffles

inline void named_barrier_sync(int id, int threads) {
  meet(named_barriers[id], static_cast<unsigned>(threads), "bar.sync", [] {});
}
inline void __syncthreads() { named_barrier_sync(0, static_cast<int>(fibers.size())); }
inline void __syncwarp() {
  warp_instruction("__syncwarp", {}, [](Meeting&) {});
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  Meeting::Words words{};
  std::memcpy(words.word, &value, sizeof(T));
  words.word[1] = static_cast<std::uint64_t>(mask);
  const auto out = warp_instruction("__shfl_xor_sync", words, [](Meeting& warp) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      warp.out[lane] = warp.in[lane ^ static_cast<unsigned>(warp.in[lane].word[1])];
    }
  });
  T result;
  std::memcpy(&result, out.word, sizeof(T));
  return result;
}

inline bool __any_sync(unsigned, bool value) {
  Meeting::Words words{};
  words.word[0] = value ? 1 : 0;
  const auto out = warp_instruction("__any_sync", words, [](Meeting& warp) {
    std::uint64_t any = 0;
    for (unsigned lane = 0; lane < 32; ++lane) any |= warp.in[lane].word[0];
    for (unsigned lane = 0; lane < 32; ++lane) warp.out[lane].word[0] = any;
  });
  return out.word[0] != 0;
}

// ---- ptx.cuh and attention_ptx.cuh

#define CODA_DEVICE inline
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;

inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(static_cast<const unsigned char*>(pointer) - memory);
}
inline unsigned char* shared_at(u64 address, unsigned bytes) {
  if (address % bytes != 0 || address + bytes > shared_bytes) fail("shared memory: bad access", "");
  return memory + address;
}

inline float* dynamic_shared() { return reinterpret_cast<float*>(memory); }
inline void store_shared(u32 address, float x) { std::memcpy(shared_at(address, 4), &x, 4); }
inline float load_shared(u32 address) {
  float x;
  std::memcpy(&x, shared_at(address, 4), 4);
  return x;
}
inline void store_shared_v4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  const u32 words[4] = {a, b, c, d};
  std::memcpy(shared_at(address, 16), words, 16);
}
inline void reduce_add(float* address, float value) { *address += value; }
inline void reduce_add_two(float* address, float low, float high) {
  if (reinterpret_cast<std::uintptr_t>(address) % 8 != 0) fail("reduce_add_two: bad access", "");
  address[0] += low;
  address[1] += high;
}
inline u32 load_global_once(const u16* address) {
  u32 value;
  std::memcpy(&value, address, 4);
  return value;
}

// Arithmetic and conversion

inline void keep_branch() {}
inline float approximate_exp2(float x) { return std::exp2(x); }
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float approximate_reciprocal(float x) { return 1.0f / x; }
inline float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }

inline u16 bf16_bits(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float unpack_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
inline u16 f16_bits(float value) {
  if (value != value) return 0x7fff;
  const u16 sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7c00;
  int exponent;
  std::frexp(magnitude, &exponent);
  if (exponent < -13 || magnitude == 0) exponent = -13;  // subnormal: a step of 2^-24
  const double step = std::ldexp(1.0, exponent - 11);
  const double steps = std::nearbyint(magnitude / step);  // up to 2048
  if (exponent == -13) return static_cast<u16>(sign + static_cast<u16>(steps));
  return static_cast<u16>(sign + ((exponent + 14) << 10) + static_cast<u16>(steps - 1024));
}
inline float unpack_f16(u16 bits);
template <class Unpack>
u32 larger_pair(u32 a, u32 b, Unpack unpack) {
  u32 both = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const u16 x = static_cast<u16>(a >> shift), y = static_cast<u16>(b >> shift);
    both |= static_cast<u32>(unpack(x) != unpack(x) || unpack(x) > unpack(y) ? x : y) << shift;
  }
  return both;
}
inline u32 larger_bf16_or_nan(u32 a, u32 b) { return larger_pair(a, b, unpack_bf16); }
inline u32 larger_f16_or_nan(u32 a, u32 b) { return larger_pair(a, b, unpack_f16); }
inline float unpack_f16(u16 bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}
inline u32 pack_bf16(float low, float high) {
  return bf16_bits(low) | static_cast<u32>(bf16_bits(high)) << 16;
}
inline u32 pack_f16(float low, float high) {
  return f16_bits(low) | static_cast<u32>(f16_bits(high)) << 16;
}

// Instructions of a warp

/// Four 8 x 8 matrices; lane 8 m + r gives the address of row r of matrix m, and holds of each
/// matrix columns 2 (l % 4) and the next of row l / 4.
inline void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  warp_instruction("stmatrix", {{address, r0, r1, r2, r3}}, [](Meeting& warp) {
    for (unsigned m = 0; m < 4; ++m) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        const u32 pair = static_cast<u32>(warp.in[lane].word[1 + m]);
        std::memcpy(shared_at(warp.in[8 * m + lane / 4].word[0], 16) + 4 * (lane % 4), &pair, 4);
      }
    }
  });
}
/// Four 8 x 8 matrices; lane 8 m + r gave the address of row r of matrix m.
inline void load_matrices(const char* what, bool transposed, u32 address, u32& r0, u32& r1, u32& r2,
                          u32& r3) {
  const auto out = warp_instruction(what, {{address}}, [&](Meeting& warp) {
    for (unsigned m = 0; m < 4; ++m) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        u16 pair[2];
        for (unsigned e = 0; e < 2; ++e) {
          const unsigned a = lane / 4, b = lane % 4 * 2 + e;
          const unsigned row = transposed ? b : a, column = transposed ? a : b;
          std::memcpy(&pair[e], shared_at(warp.in[8 * m + row].word[0], 16) + 2 * column, 2);
        }
        warp.out[lane].word[m] = pair[0] | static_cast<u32>(pair[1]) << 16;
      }
    }
  });
  r0 = static_cast<u32>(out.word[0]);
  r1 = static_cast<u32>(out.word[1]);
  r2 = static_cast<u32>(out.word[2]);
  r3 = static_cast<u32>(out.word[3]);
}
inline void load_matrix_x4(u32 address, u32& r0, u32& r1, u32& r2, u32& r3) {
  load_matrices("ldmatrix", false, address, r0, r1, r2, r3);
}
inline void load_matrix_x4_transposed(u32 address, u32& r0, u32& r1, u32& r2, u32& r3) {
  load_matrices("ldmatrix.trans", true, address, r0, r1, r2, r3);
}

/// PTX ISA, mma.m16n8k16: the layouts of a, b and d by lane and register.
template <class Unpack>
void multiply_matrices(const char* what, const Unpack& unpack, float (&d)[4], const u32 (&a)[4],
                       u32 b0, u32 b1) {
  Meeting::Words in{{a[0], a[1], a[2], a[3], b0, b1}};
  std::memcpy(&in.word[6], d, 16);
  const auto out = warp_instruction(what, in, [&](Meeting& warp) {
    static double left[16][16], right[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned g = lane / 4, c = lane % 4 * 2;
      for (unsigned e = 0; e < 2; ++e) {
        for (unsigned i = 0; i < 4; ++i) {
          left[g + i % 2 * 8][c + i / 2 * 8 + e] =
              unpack(static_cast<u16>(warp.in[lane].word[i] >> 16 * e));
        }
        for (unsigned i = 0; i < 2; ++i) {
          right[c + 8 * i + e][g] = unpack(static_cast<u16>(warp.in[lane].word[4 + i] >> 16 * e));
        }
      }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      float sums[4];
      std::memcpy(sums, &warp.in[lane].word[6], 16);
      for (unsigned i = 0; i < 4; ++i) {
        double sum = sums[i];
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
        sums[i] = static_cast<float>(sum);
      }
      std::memcpy(warp.out[lane].word, sums, 16);
    }
  });
  std::memcpy(d, out.word, 16);
}
inline void warp_multiply_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_matrices("mma.bf16", unpack_bf16, d, a, b0, b1);
}
inline void warp_multiply_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_matrices("mma.f16", unpack_f16, d, a, b0, b1);
}

inline void copy_async(u32 destination, const void* source, bool zero) {
  if (reinterpret_cast<std::uintptr_t>(source) % 16 != 0) fail("cp.async: unaligned source", "");
  fibers[current].open.push_back({destination, source, zero});
}
inline void copy_async_commit() {
  Fiber& fiber = fibers[current];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
template <int kPending>
void copy_async_wait() {
  auto& groups = fibers[current].groups;
  while (groups.size() > kPending) {
    for (const auto& copy : groups.front()) {
      unsigned char* to = shared_at(copy.to, copy.bytes);
      if (copy.zero) {
        std::memset(to, 0, copy.bytes);
      } else {
        std::memcpy(to, copy.from, copy.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

inline void copy_async_word(u32 destination, const void* source, bool zero) {
  fibers[current].open.push_back({destination, source, zero, 4});
}
inline void load_shared_v2(u32 address, float& x, float& y) {
  std::memcpy(&x, shared_at(address, 8), 4);
  std::memcpy(&y, shared_at(address + 4, 4), 4);
}

// Barriers in shared memory

inline void mbarrier_init(u32 barrier, u32 arrivals) {
  shared_at(barrier, 8);
  mbarriers[barrier] = {arrivals};
}
inline void mbarrier_init_fence() {}
inline Mbarrier& mbarrier_at(u32 address) {
  const auto it = mbarriers.find(address);
  if (it == mbarriers.end()) fail("mbarrier: not initialised", "");
  return it->second;
}
inline void mbarrier_arrive(u32 address) {
  Mbarrier& barrier = mbarrier_at(address);
  ++progress;
  if (++barrier.arrived < barrier.expected) return;
  barrier.arrived = 0;
  barrier.phase ^= 1;
}
/// Copies are complete when they are issued.
inline void mbarrier_arrive_expect(u32 address, u32) { mbarrier_arrive(address); }
inline bool mbarrier_try_wait(u32 address, u32 parity) {
  return mbarrier_at(address).phase != parity;
}
inline void mbarrier_wait(u32 address, u32 parity) {
  while (!mbarrier_try_wait(address, parity)) yield();
}
template <int>
void set_max_registers_down() {}
template <int>
void set_max_registers_up() {}

// wgmma, m64 n64 k16: what is issued is computed when it is waited for, from what shared memory
// holds then

inline void wgmma_fence() {}
inline void wgmma_commit() {
  Fiber& fiber = fibers[current];
  fiber.product_groups.push_back(std::move(fiber.open_products));
  fiber.open_products.clear();
}
template <int kPending>
void wgmma_wait() {
  auto& groups = fibers[current].product_groups;
  while (groups.size() > kPending) {
    for (const auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
}
inline void pin_register(float&) {}
inline void pin_register(u32&) {}

/// Row r, column c of rows of 128 bytes with 128-byte swizzle.
inline u16 swizzled(u32 tile, int r, int c) {
  u32 address = tile + static_cast<u32>(r * 128 + c * 2);
  address ^= (address >> 7 & 7) << 4;
  u16 bits;
  std::memcpy(&bits, shared_at(address, 2), 2);
  return bits;
}
template <class Unpack, class Left, class Right>
void issue_product(float (&d)[32], bool add, const Unpack& unpack, const Left& left,
                   const Right& right) {
  const int lane = static_cast<int>(current % 32), warp = static_cast<int>(current % 128 / 32);
  fibers[current].open_products.push_back([=, &d] {
    for (int i = 0; i < 32; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = add ? d[i] : 0;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(unpack(left(row, k))) * unpack(right(column, k));
      }
      d[i] = static_cast<float>(sum);
    }
  });
}
template <class Unpack>
void multiply_rows_of(const Unpack& unpack, float (&d)[32], u32 a, u32 b, int add) {
  issue_product(
      d, add != 0, unpack, [a](int row, int k) { return swizzled(a, row, k); },
      [b](int column, int k) { return swizzled(b, column, k); });
}
template <class Unpack>
void multiply_tokens_of(const Unpack& unpack, float (&d)[32], const u32 (&w)[4], u32 x) {
  // The four lanes of a row hold its 16 factors.
  const auto out = warp_instruction("wgmma", {{w[0], w[1], w[2], w[3]}}, [](Meeting& warp) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 8; ++i) {
        const auto& from = warp.in[lane / 4 * 4 + i / 2].word;
        warp.out[lane].word[i] = i % 2 ? from[2] | from[3] << 32 : from[0] | from[1] << 32;
      }
    }
  });
  const int first = static_cast<int>(current % 128 / 32 * 16 + current % 32 / 4);
  issue_product(
      d, true, unpack,
      [out, first](int row, int k) {
        const auto pair = out.word[k % 8 / 2 * 2 + k / 8] >> (row == first ? 0 : 32);
        return static_cast<u16>(pair >> 16 * (k % 2));
      },
      [x](int column, int k) { return swizzled(x, k, column); });
}
inline void multiply_rows_bf16(float (&d)[32], u32 a, u32 b, int add) {
  multiply_rows_of(unpack_bf16, d, a, b, add);
}
inline void multiply_rows_f16(float (&d)[32], u32 a, u32 b, int add) {
  multiply_rows_of(unpack_f16, d, a, b, add);
}
inline void multiply_tokens_bf16(float (&d)[32], const u32 (&w)[4], u32 x) {
  multiply_tokens_of(unpack_bf16, d, w, x);
}
inline void multiply_tokens_f16(float (&d)[32], const u32 (&w)[4], u32 x) {
  multiply_tokens_of(unpack_f16, d, w, x);
}

// The copy engine

/// What host_tensor_map (host_kernel.h) leaves in a tensor map.
struct HostMap {
  char* pointer;
  long long rows, columns, stride;
};
/// 64 rows of 64 elements of 16 bits with 128-byte swizzle, zeros outside.
template <class Map>
void tma_load_2d(const Map* map, u32, u32 destination, int x, int y) {
  HostMap from;
  std::memcpy(&from, map, sizeof(from));
  unsigned char* tile = shared_at(destination, 1);
  shared_at(destination + 64 * 128 - 1, 1);
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < 64; ++c) {
      unsigned char* to = tile + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2;
      if (y + r < from.rows && x + c < from.columns) {
        std::memcpy(to, from.pointer + ((y + r) * from.stride + x + c) * 2, 2);
      } else {
        std::memset(to, 0, 2);
      }
    }
  }
}
/// 16 rows of 64 elements of 16 bits with 128-byte swizzle, clipped.
template <class Map>
void tma_store_2d(const Map* map, u32 source, int x, int y) {
  HostMap to;
  std::memcpy(&to, map, sizeof(to));
  const unsigned char* tile = shared_at(source, 1);
  shared_at(source + 16 * 128 - 1, 1);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 64; ++c) {
      if (y + r >= to.rows || x + c >= to.columns) continue;
      std::memcpy(to.pointer + ((y + r) * to.stride + x + c) * 2,
                  tile + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2, 2);
    }
  }
}
inline void fence_proxy_async() {}
template <class Map>
void warp_tma_store_2d(const Map* map, u32 source, int x, int y) {
  if (threadIdx.x % 32 == 0) tma_store_2d(map, source, x, y);
}
inline void bulk_commit_group() {}
template <int kPending>
void bulk_wait_group_read() {}

// One kernel at a time runs here.

inline void launch_dependents() {}
inline void await_dependencies() {}

// Named by the schedule and the ring, but never reached by the kernels that run here.

inline u32 sm_id() { return 0; }
inline u32 atomic_add(u32*, u32) { return 0; }
inline u32 atomic_add_ordered(u32*, u32) { return 0; }
inline void mbarrier_arrive_cluster(u32) {}
inline u32 map_to_rank(u32 address, u32) { return address; }

}  // namespace coda_device
