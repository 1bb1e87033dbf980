// The first kernel of attention's backward: delta[t, h] = dot(o[t, h], d_o[t, h]), a warp each.
// The prelude defines Element (of o and d_o) and kHeadDim.
#pragma once

namespace coda_device {

extern "C" __global__ void __launch_bounds__(256) coda_attention_delta(const AttentionParams p) {
  const long long item = blockIdx.x * 8ll + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (item >= static_cast<long long>(p.tokens) * p.n_heads) return;
  const long long row = item / p.n_heads, column = item % p.n_heads * kHeadDim;
  float total = 0;
  for (int c = lane; c < kHeadDim; c += 32) {
    total += Element::load(p.o.pointer, row * p.o.stride + column + c) *
             Element::load(p.d_o.pointer, row * p.d_o.stride + column + c);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (lane == 0) p.delta[item] = total;
}

}  // namespace coda_device
