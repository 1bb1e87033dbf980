// For tests and benchmarks: random operands, poison, and errors against float64, all on the device.
#pragma once

namespace coda_device {

/// A counter-based hash; two of its outputs make one normal deviate (Box and Muller).
CODA_DEVICE u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Element i = a normal deviate, or (integers) one of -4 .. 4, of which sums are exact.
template <class T>
CODA_DEVICE void fill(void* pointer, long long count, u64 seed, bool integers) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const u64 bits = mix(seed * 0x100000001b3ull + i);
    if (integers) {
      T::store(pointer, i, static_cast<float>(static_cast<int>(bits % 9) - 4));
    } else {
      const float u = (static_cast<u32>(bits >> 40) + 0.5f) * 0x1p-24f;
      const float v = static_cast<u32>(bits & 0xffffff) * 0x1p-24f;
      T::store(pointer, i, sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
    }
  }
}
extern "C" __global__ void coda_fill_bf16(void* p, long long count, u64 seed, int integers) {
  fill<Bf16>(p, count, seed, integers != 0);
}
extern "C" __global__ void coda_fill_f16(void* p, long long count, u64 seed, int integers) {
  fill<F16>(p, count, seed, integers != 0);
}
extern "C" __global__ void coda_fill_f32(void* p, long long count, u64 seed, int integers) {
  fill<F32>(p, count, seed, integers != 0);
}

/// sums[0] += (x - ref)^2, sums[1] += ref^2, sums[2] += number of elements that are not finite.
template <class T>
CODA_DEVICE void compare(const void* x, long long x_row, const double* reference, long long m,
                         long long n, double* sums) {
  double error = 0, norm = 0, broken = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < m * n;
       i += step) {
    const double value = T::load(x, i / n * x_row + i % n);
    const double expected = reference[i];
    if (!(value - value == 0)) {
      broken += 1;
    } else {
      error += (value - expected) * (value - expected);
    }
    norm += expected * expected;
  }
  atomicAdd(&sums[0], error);
  atomicAdd(&sums[1], norm);
  atomicAdd(&sums[2], broken);
}
extern "C" __global__ void coda_compare_bf16(const void* x, long long x_row, const double* ref,
                                             long long m, long long n, double* sums) {
  compare<Bf16>(x, x_row, ref, m, n, sums);
}
extern "C" __global__ void coda_compare_f16(const void* x, long long x_row, const double* ref,
                                            long long m, long long n, double* sums) {
  compare<F16>(x, x_row, ref, m, n, sums);
}
extern "C" __global__ void coda_compare_f32(const void* x, long long x_row, const double* ref,
                                            long long m, long long n, double* sums) {
  compare<F32>(x, x_row, ref, m, n, sums);
}

/// different += number of 4-byte words in which x and y differ.
extern "C" __global__ void coda_count_differences(const u32* x, const u32* y, long long words,
                                                  u64* different) {
  u64 count = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < words;
       i += step) {
    count += x[i] != y[i];
  }
  if (count > 0) atomicAdd(different, count);
}

}  // namespace coda_device
