// d_q for bf16 and f16 on the tensor cores, after coda_attention_delta. Gradients of q, and of k
// and v, are two kernels, so that every sum has one owner and one order:
//   p = e^(scale q k^T - lse)   ds = p (d_o v^T - delta), times a capped score's slope
//   d_v = p^T d_o   d_k = scale ds^T q   d_q = scale ds k
#pragma once

namespace coda_device {

/// A CTA has 64 queries of one head, a warp 16 of them.
extern "C" __global__ void __launch_bounds__(kTileThreads)
    coda_attention_backward_q(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const u32 q_tile = shared_address(memory), d_o_tile = q_tile + kTileBytes;
  const u32 k_tiles = d_o_tile + kTileBytes, v_tiles = k_tiles + 2 * kTileBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunk = static_cast<int>(blockIdx.x % kChunks);
  const int head = static_cast<int>(blockIdx.x / kChunks) % p.n_heads;
  AttentionBlock block;
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x / kChunks) / p.n_heads, block)) return;
  const int kv_column = head / p.group * kHeadDim;
  const bool aligned = p.aligned != 0;
  const int tiles = (block.first - block.begin) / kAttentionTile + 1;
  const int first_tile = hidden_tiles(p, block);

  const auto load_keys = [&](int i) {
    const int key = block.begin + i * kAttentionTile;
    load_tile(k_tiles + i % 2 * kTileBytes, p.k, key, block.end, kv_column, aligned);
    load_tile(v_tiles + i % 2 * kTileBytes, p.v, key, block.end, kv_column, aligned);
  };
  load_tile(q_tile, p.q, block.first, block.end, head * kHeadDim, aligned);
  load_tile(d_o_tile, p.d_o, block.first, block.end, head * kHeadDim, aligned);
  load_keys(first_tile);
  copy_async_commit();

  float lse[2] = {}, delta[2] = {};  // of rows g and g + 8
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = block.first + 16 * warp + lane / 4 + 8 * h;
    if (row < block.end) {
      lse[h] = p.lse[row * p.lse_stride + head];
      delta[h] = p.delta[static_cast<long long>(row) * p.n_heads + head];
    }
  }

  float d_q[kChunkBlocks][4] = {};
  for (int i = first_tile; i < tiles; ++i) {
    if (i + 1 < tiles) load_keys(i + 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    const u32 k_tile = k_tiles + i % 2 * kTileBytes;
    float s[8][4], d_p[8][4];
    dot_rows(q_tile, 16 * warp, k_tile, 0, lane, s);
    dot_rows(d_o_tile, 16 * warp, v_tiles + i % 2 * kTileBytes, 0, lane, d_p);
    const int ahead = block.first - block.begin - i * kAttentionTile;
    const bool edge = has_hidden(p, ahead);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = 16 * warp + lane / 4 + 8 * (e / 2), key = 8 * j + lane % 4 * 2 + e % 2;
        const float ds = probability(p, s[j][e], lse[e / 2]) * (d_p[j][e] - delta[e / 2]) *
                         score_slope(p, s[j][e]);
        s[j][e] = edge && !is_seen(p, ahead + query - key) ? 0.0f : ds;
      }
    }
    add_tokens(s, k_tile, 0, chunk * kChunkDim, lane, d_q);
    __syncthreads();
  }
  const float factor[2] = {p.scale, p.scale};
  store_tile(p.d_q, block.first + 16 * warp, block.end, head, chunk, lane, factor, d_q, aligned);
}

}  // namespace coda_device
