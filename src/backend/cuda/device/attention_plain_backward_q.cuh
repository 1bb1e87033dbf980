// d_q on the ordinary units (attention_plain.cuh), after coda_attention_plain_delta: a CTA walks over the
// keys of its queries.
#pragma once

namespace coda_device {

extern "C" __global__ void __launch_bounds__(kPlainThreads, kPlainCtas)
    coda_attention_plain_backward_q(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared& shared = *reinterpret_cast<PlainShared*>(memory);
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const int chunk = static_cast<int>(blockIdx.x % kPlainChunks) * kAttentionTile;
  const int head = static_cast<int>(blockIdx.x / kPlainChunks) % p.n_heads;
  AttentionBlock block;
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x / kPlainChunks) / p.n_heads, block))
    return;
  const int kv_column = head / p.group * kHeadDim;
  const PlainRows q{p.q, block.first, block.end, head * kHeadDim};
  const PlainRows d_o{p.d_o, block.first, block.end, head * kHeadDim};
  float d_q[4][4] = {};
  const int first_key = block.begin + hidden_tiles(p, block) * kAttentionTile;
  for (int key = first_key; key <= block.first; key += kAttentionTile) {
    const PlainRows k{p.k, key, block.end, kv_column}, v{p.v, key, block.end, kv_column};
    score_gradients(p, q, d_o, k, v, head, row, column, shared);
    add_tokens(&shared.ds[0][0], kPlainPitch, 1, k, chunk, shared, row, column, d_q);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) d_q[i][j] *= p.scale;
  }
  store_columns(PlainRows{p.d_q, block.first, block.end, head * kHeadDim}, chunk, row, column, d_q);
}

}  // namespace coda_device
