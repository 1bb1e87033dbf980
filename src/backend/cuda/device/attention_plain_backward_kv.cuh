// d_k and d_v on the ordinary units (attention_plain.cuh), after coda_attention_plain_delta.
#pragma once

namespace coda_device {

/// One tile of keys and one key-value head, whose query heads and queries are taken in order.
extern "C" __global__ void __launch_bounds__(kPlainThreads, kPlainCtas)
    coda_attention_plain_backward_kv(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared& shared = *reinterpret_cast<PlainShared*>(memory);
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const int chunk = static_cast<int>(blockIdx.x % kPlainChunks) * kAttentionTile;
  const int kv_heads = p.n_heads / p.group;
  const int kv_head = static_cast<int>(blockIdx.x / kPlainChunks) % kv_heads;
  AttentionBlock block;
  if (!find_block(p, static_cast<int>(blockIdx.x / kPlainChunks) / kv_heads, block)) return;
  const int kv_column = kv_head * kHeadDim;
  const PlainRows k{p.k, block.first, block.end, kv_column};
  const PlainRows v{p.v, block.first, block.end, kv_column};
  float d_k[4][4] = {}, d_v[4][4] = {};
  for (int h = 0; h < p.group; ++h) {
    const int head = kv_head * p.group + h;
    for (int query = block.first; query < queries_end(p, block); query += kAttentionTile) {
      const PlainRows q{p.q, query, block.end, head * kHeadDim};
      const PlainRows d_o{p.d_o, query, block.end, head * kHeadDim};
      score_gradients(p, q, d_o, k, v, head, row, column, shared);
      add_tokens(&shared.p[0][0], 1, kPlainPitch, d_o, chunk, shared, row, column, d_v);
      add_tokens(&shared.ds[0][0], 1, kPlainPitch, q, chunk, shared, row, column, d_k);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) d_k[i][j] *= p.scale;
  }
  store_columns(PlainRows{p.d_k, block.first, block.end, kv_column}, chunk, row, column, d_k);
  store_columns(PlainRows{p.d_v, block.first, block.end, kv_column}, chunk, row, column, d_v);
}

}  // namespace coda_device
