// AdamW and the gradients' norm over all weight tensors at once: a block takes a run of one
// tensor's elements. The update has the operations of the host's, in its order, and so its bits.
#pragma once

namespace coda_device {

CODA_DEVICE float adamw_element(const AdamWCoefficients& u, float keep, float& value,
                                float gradient, float& first, float& second) {
  const float g = op::mul(gradient, u.scale);
  first = op::add(op::mul(u.beta1, first), op::mul(op::sub(1.0f, u.beta1), g));
  second = op::add(op::mul(u.beta2, second), op::mul(op::mul(op::sub(1.0f, u.beta2), g), g));
  const float root = op::add(op::mul(u.root_scale, __fsqrt_rn(second)), u.eps);
  value = op::sub(op::mul(keep, value), op::div(op::mul(u.size, first), root));
  return value;
}

// An fp32 in two halves, as base/split_f32.h has it.
CODA_DEVICE float join_halves(u32 rounded, u32 low) {
  return __uint_as_float((rounded << 16) + (low & 0x8000u ? low | 0xffff0000u : low));
}
CODA_DEVICE void split_halves(float value, u32& rounded, u32& low) {
  const u32 bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  rounded = is_nan ? bits >> 16 | 0x40u : (bits + 0x8000u) >> 16;
  low = is_nan ? 0u : bits & 0xffffu;
}

template <int N>
CODA_DEVICE void load_halves(const AdamWEntry& t, long long at, float (&value)[N]) {
  const u16* rounded = static_cast<const u16*>(t.rounded) + at;
  const u16* low = static_cast<const u16*>(t.low) + at;
  if constexpr (N == 1) {
    value[0] = join_halves(rounded[0], low[0]);
  } else {
    const auto upper = *reinterpret_cast<const Words<N / 2>*>(rounded);
    const auto lower = *reinterpret_cast<const Words<N / 2>*>(low);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      value[2 * i] = join_halves(upper.word[i] & 0xffffu, lower.word[i] & 0xffffu);
      value[2 * i + 1] = join_halves(upper.word[i] >> 16, lower.word[i] >> 16);
    }
  }
}

template <int N>
CODA_DEVICE void store_halves(const AdamWEntry& t, long long at, const float (&value)[N]) {
  u16* rounded = static_cast<u16*>(t.rounded) + at;
  u16* low = static_cast<u16*>(t.low) + at;
  u32 upper[N], lower[N];
#pragma unroll
  for (int i = 0; i < N; ++i) split_halves(value[i], upper[i], lower[i]);
  if constexpr (N == 1) {
    rounded[0] = static_cast<u16>(upper[0]);
    low[0] = static_cast<u16>(lower[0]);
  } else {
    Words<N / 2> pairs, low_pairs;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      pairs.word[i] = upper[2 * i] | upper[2 * i + 1] << 16;
      low_pairs.word[i] = lower[2 * i] | lower[2 * i + 1] << 16;
    }
    *reinterpret_cast<Words<N / 2>*>(rounded) = pairs;
    *reinterpret_cast<Words<N / 2>*>(low) = low_pairs;
  }
}

template <int N>
CODA_DEVICE void adamw_chunk(const AdamWCoefficients& u, const AdamWEntry& t, long long at) {
  const float keep = t.decays ? u.keep : 1.0f;
  float value[N], gradient[N], first[N], second[N];
  if (t.value == nullptr) {
    load_halves(t, at, value);
  } else {
    load_chunk<F32>(t.value, at, value);
  }
  load_chunk<F32>(t.gradient, at, gradient);
  load_chunk<F32>(t.first, at, first);
  load_chunk<F32>(t.second, at, second);
#pragma unroll
  for (int i = 0; i < N; ++i) adamw_element(u, keep, value[i], gradient[i], first[i], second[i]);
  store_chunk<F32>(t.first, at, first);
  store_chunk<F32>(t.second, at, second);
  if (t.value == nullptr) {
    store_halves(t, at, value);
    return;
  }
  store_chunk<F32>(t.value, at, value);
  if (t.rounded == nullptr) return;
  if (t.rounded_bf16) {
    store_chunk<Bf16>(t.rounded, at, value);
  } else {
    store_chunk<F16>(t.rounded, at, value);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    coda_adamw(const AdamWEntry* tensors, const AdamWRun* runs, const AdamWCoefficients u) {
  const AdamWRun run = runs[blockIdx.x];
  const AdamWEntry t = tensors[run.tensor];
  const long long end = run.first + kAdamWRun < t.count ? run.first + kAdamWRun : t.count;
  const long long whole = run.first + (end - run.first) / 4 * 4;
  for (long long at = run.first + 4 * threadIdx.x; at < whole; at += 4 * 256) {
    adamw_chunk<4>(u, t, at);
  }
  for (long long at = whole + threadIdx.x; at < end; at += 256) adamw_chunk<1>(u, t, at);
}

/// The sum of a block's 256 values, in fixed order.
CODA_DEVICE double block_sum(double x) {
  __shared__ double parts[256];
  parts[threadIdx.x] = x;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  __syncthreads();
  return parts[0];
}

/// sums[b] = the squares of run b's gradients.
extern "C" __global__ void __launch_bounds__(256)
    coda_square_sums(const AdamWEntry* tensors, const AdamWRun* runs, double* sums) {
  const AdamWRun run = runs[blockIdx.x];
  const AdamWEntry t = tensors[run.tensor];
  const long long end = run.first + kAdamWRun < t.count ? run.first + kAdamWRun : t.count;
  const long long whole = run.first + (end - run.first) / 4 * 4;
  double sum = 0;
  for (long long at = run.first + 4 * threadIdx.x; at < whole; at += 4 * 256) {
    float g[4];
    load_chunk<F32>(t.gradient, at, g);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(g[i]) * g[i];
  }
  for (long long at = whole + threadIdx.x; at < end; at += 256) {
    const double g = t.gradient[at];
    sum += g * g;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// *total = the sum of `count` numbers, by one block.
extern "C" __global__ void __launch_bounds__(256)
    coda_total(const double* sums, long long count, double* total) {
  double sum = 0;
  for (long long i = threadIdx.x; i < count; i += 256) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace coda_device
