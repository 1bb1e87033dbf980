// What generated row and vector programs (rows_source.cpp) are made of: chunks of columns between
// memory and registers, and reductions over the threads of a row.
//
// A row belongs to `kThreads` neighbouring threads of a block (a power of two from 32 on); each takes
// chunks of N neighbouring columns. All loops over a chunk unroll, so that arrays are registers.
#pragma once

namespace coda_device {

/// Adds to what is there (fp32).
template <int N>
CODA_DEVICE void add_chunk(void* data, long long at, const float (&x)[N]) {
  float sum[N];
  load_chunk<F32>(data, at, sum);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = op::add(sum[i], x[i]);
  store_chunk<F32>(data, at, sum);
}

// ---- Reductions over the threads of a row. Every warp leaves its part in `scratch`; after a
// barrier of the block all threads combine them in the same order.

CODA_DEVICE float shuffle_xor(float x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

CODA_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = op::add(x, shuffle_xor(x, mask));
  return x;
}
CODA_DEVICE float warp_max(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = op::maximum(x, shuffle_xor(x, mask));
  return x;
}
CODA_DEVICE LogSum warp_log_sum(LogSum x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    LogSum low = x, high;
    high.max = shuffle_xor(x.max, mask);
    high.sum = shuffle_xor(x.sum, mask);
    // Both threads of a pair add in the same order, or their sums could differ.
    const bool upper = (threadIdx.x & mask) != 0;
    if (upper) {
      const LogSum swap = low;
      low = high;
      high = swap;
    }
    low.add(high.max, high.sum);
    x = low;
  }
  return x;
}

template <int kWarps>
CODA_DEVICE float sum_of(const float* scratch) {
  float sum = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum = op::add(sum, scratch[i]);
  return sum;
}
template <int kWarps>
CODA_DEVICE float max_of(const float* scratch) {
  float max = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) max = op::maximum(max, scratch[i]);
  return max;
}
/// Maxima, then sums.
template <int kWarps>
CODA_DEVICE LogSum log_sum_of(const float* scratch) {
  LogSum all;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) all.add(scratch[i], scratch[kWarps + i]);
  return all;
}

/// The log-sum-exp of a chunk: one exponential an element.
template <int N>
CODA_DEVICE LogSum chunk_log_sum(const float (&x)[N]) {
  LogSum part;
#pragma unroll
  for (int i = 0; i < N; ++i) part.max = op::maximum(part.max, x[i]);
  const bool finite = part.max - part.max == 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (finite) part.sum = op::add(part.sum, op::exp(op::sub(x[i], part.max)));
  }
  if (part.max == -minus_infinity()) part.sum = 1.0f;
  return part;
}

// ---- Partials of a col in shared memory, in ascending order

CODA_DEVICE float finish_sum(const float* parts, int granules) {
  float sum = 0.0f;
#pragma unroll 4
  for (int g = 0; g < granules; ++g) sum = op::add(sum, parts[g]);
  return sum;
}
CODA_DEVICE float finish_max(const float* parts, int granules) {
  float max = minus_infinity();
#pragma unroll 4
  for (int g = 0; g < granules; ++g) max = op::maximum(max, parts[g]);
  return max;
}
CODA_DEVICE LogSum finish_online(const float* parts, int granules) {
  LogSum all;
  for (int g = 0; g < granules; ++g) all.add(parts[g], parts[granules + g]);
  return all;
}

CODA_DEVICE float nan_value() { return __uint_as_float(0x7fffffffu); }

/// Neither a class nor the one that does not count. Tells the host so.
CODA_DEVICE bool bad_target(long long target, long long classes, long long ignored, u32* flag) {
  const bool bad = (target < 0 || target >= classes) && target != ignored;
  if (bad) *flag = 1;
  return bad;
}

#ifdef __CUDA_ARCH__
CODA_DEVICE float* dynamic_shared() {
  extern __shared__ float4 coda_dynamic_shared[];
  return reinterpret_cast<float*>(coda_dynamic_shared);
}
#endif

}  // namespace coda_device
