// What generated row and vector programs (rows_source.cpp) are made of: chunks of columns between
// memory and registers, and reductions over the threads of a row.
//
// A row belongs to `kThreads` neighbouring threads of a block (a power of two from 32 on); each takes
// chunks of N neighbouring columns. All loops over a chunk unroll, so that arrays are registers.
#pragma once

namespace coda_device {

// ---- Chunks of N elements at `at`, a multiple of N

/// 16 bytes, or what a smaller chunk has, moved by one instruction.
template <int kWords>
struct alignas(4 * kWords) Words {
  u32 word[kWords];
};

template <class T>
struct IsHalf {
  static constexpr bool value = true;
};
template <>
struct IsHalf<F32> {
  static constexpr bool value = false;
};

template <class T>
CODA_DEVICE u32 pack_pair(float low, float high);
template <>
CODA_DEVICE u32 pack_pair<Bf16>(float low, float high) {
  return pack_bf16(low, high);
}
template <>
CODA_DEVICE u32 pack_pair<F16>(float low, float high) {
  return pack_f16(low, high);
}
template <class T>
CODA_DEVICE float unpack_half(u16 bits);
template <>
CODA_DEVICE float unpack_half<Bf16>(u16 bits) {
  return unpack_bf16(bits);
}
template <>
CODA_DEVICE float unpack_half<F16>(u16 bits) {
  return unpack_f16(bits);
}

template <class T, int N>
CODA_DEVICE void load_chunk(const void* data, long long at, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = T::load(data, at);
  } else if constexpr (IsHalf<T>::value) {
    constexpr int kWords = N / 2 < 4 ? N / 2 : 4;
    const auto* from = reinterpret_cast<const Words<kWords>*>(static_cast<const u16*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / (2 * kWords); ++i) {
      const Words<kWords> words = from[i];
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        x[2 * (i * kWords + k)] = unpack_half<T>(static_cast<u16>(words.word[k] & 0xffffu));
        x[2 * (i * kWords + k) + 1] = unpack_half<T>(static_cast<u16>(words.word[k] >> 16));
      }
    }
  } else {
    constexpr int kWords = N < 4 ? N : 4;
    const auto* from = reinterpret_cast<const Words<kWords>*>(static_cast<const float*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / kWords; ++i) {
      const Words<kWords> words = from[i];
#pragma unroll
      for (int k = 0; k < kWords; ++k) x[i * kWords + k] = __uint_as_float(words.word[k]);
    }
  }
}

template <class T, int N>
CODA_DEVICE void store_chunk(void* data, long long at, const float (&x)[N]) {
  if constexpr (N == 1) {
    T::store(data, at, x[0]);
  } else if constexpr (IsHalf<T>::value) {
    constexpr int kWords = N / 2 < 4 ? N / 2 : 4;
    auto* to = reinterpret_cast<Words<kWords>*>(static_cast<u16*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / (2 * kWords); ++i) {
      Words<kWords> words;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int j = 2 * (i * kWords + k);
        words.word[k] = pack_pair<T>(x[j], x[j + 1]);
      }
      to[i] = words;
    }
  } else {
    constexpr int kWords = N < 4 ? N : 4;
    auto* to = reinterpret_cast<Words<kWords>*>(static_cast<float*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / kWords; ++i) {
      Words<kWords> words;
#pragma unroll
      for (int k = 0; k < kWords; ++k) words.word[k] = __float_as_uint(x[i * kWords + k]);
      to[i] = words;
    }
  }
}

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
