// d_k and d_v for bf16 and f16 on the tensor cores, after coda_attention_delta. Gradients of q, and of k
// and v, are two kernels, so that every sum has one owner and one order:
//   p = e^(scale q k^T - lse)   ds = p (d_o v^T - delta), times a capped score's slope
//   d_v = p^T d_o   d_k = scale ds^T q   d_q = scale ds k
#pragma once

namespace coda_device {

/// A CTA has 64 keys of one key-value head, a warp 16 of them; all its query heads, in order, and
/// the queries at and after its keys. Numbers are transposed: rows are keys, columns queries.
// Left alone, ptxas 13.0 aims at four CTAs an SM for narrow heads, and spills.
constexpr int kCtas = kHeadDim <= 64 ? 3 : 1;

extern "C" __global__ void __launch_bounds__(kTileThreads, kCtas)
    coda_attention_backward_kv(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const u32 k_tile = shared_address(memory), v_tile = k_tile + kTileBytes;
  const u32 q_tiles = v_tile + kTileBytes, d_o_tiles = q_tiles + 2 * kTileBytes;
  // lse and delta of the 64 queries, two buffers each.
  float* const vectors = reinterpret_cast<float*>(memory + 6 * kTileBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_heads = p.n_heads / p.group;
  const int chunk = static_cast<int>(blockIdx.x % kChunks);
  const int kv_head = static_cast<int>(blockIdx.x / kChunks) % kv_heads;
  AttentionBlock block;
  if (!find_block(p, static_cast<int>(blockIdx.x / kChunks) / kv_heads, block)) return;
  const bool aligned = p.aligned != 0;

  const auto load_queries = [&](int head, int query, int buffer) {
    load_tile(q_tiles + buffer * kTileBytes, p.q, query, block.end, head * kHeadDim, aligned);
    load_tile(d_o_tiles + buffer * kTileBytes, p.d_o, query, block.end, head * kHeadDim, aligned);
    if (threadIdx.x < kAttentionTile) {
      const int row = query + static_cast<int>(threadIdx.x);
      const bool exists = row < block.end;
      float* to = vectors + buffer * 2 * kAttentionTile + threadIdx.x;
      to[0] = exists ? p.lse[row * p.lse_stride + head] : 0.0f;
      to[kAttentionTile] =
          exists ? p.delta[static_cast<long long>(row) * p.n_heads + head]
                 : 0.0f;
    }
  };
  load_tile(k_tile, p.k, block.first, block.end, kv_head * kHeadDim, aligned);
  load_tile(v_tile, p.v, block.first, block.end, kv_head * kHeadDim, aligned);
  load_queries(kv_head * p.group, block.first, 0);
  copy_async_commit();

  float d_k[kChunkBlocks][4] = {}, d_v[kChunkBlocks][4] = {};
  const int end = queries_end(p, block);
  int head = kv_head * p.group, query = block.first, buffer = 0;
  const int heads_end = head + p.group;
  while (head < heads_end) {
    const bool last = query + kAttentionTile >= end;  // of this head
    const int next_head = last ? head + 1 : head;
    const int next_query = last ? block.first : query + kAttentionTile;
    if (next_head < heads_end) load_queries(next_head, next_query, buffer ^ 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    const u32 q_tile = q_tiles + buffer * kTileBytes, d_o_tile = d_o_tiles + buffer * kTileBytes;
    const float* lse = vectors + buffer * 2 * kAttentionTile;
    const float* delta = lse + kAttentionTile;
    const bool edge = last || has_hidden(p, query - block.first);
    // By halves of 32 queries, which is what registers allow beside 128 columns of d_k and d_v.
#pragma unroll 1
    for (int half = 0; half < kAttentionTile; half += 32) {
      // Step 1: p, and d_v += p^T d_o.
      float s[4][4], slope[4][4];
      dot_rows(k_tile, 16 * warp, q_tile, half, lane, s);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = block.first + 16 * warp + lane / 4 + 8 * (e / 2);
          const int column = half + 8 * j + lane % 4 * 2 + e % 2;
          const bool hidden =
              edge && (!is_seen(p, query + column - row) || query + column >= block.end);
          slope[j][e] = score_slope(p, s[j][e]);
          s[j][e] = hidden ? 0.0f : probability(p, s[j][e], lse[column]);
        }
      }
      add_tokens(s, d_o_tile, half, chunk * kChunkDim, lane, d_v);

      // Step 2: ds, and d_k += ds^T q.
      float d_p[4][4];
      dot_rows(v_tile, 16 * warp, d_o_tile, half, lane, d_p);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[j][e] *= slope[j][e] * (d_p[j][e] - delta[half + 8 * j + lane % 4 * 2 + e % 2]);
        }
      }
      add_tokens(s, q_tile, half, chunk * kChunkDim, lane, d_k);
    }
    __syncthreads();
    head = next_head;
    query = next_query;
    buffer ^= 1;
  }
  const float scale[2] = {p.scale, p.scale}, one[2] = {1.0f, 1.0f};
  store_tile(p.d_k, block.first + 16 * warp, block.end, kv_head, chunk, lane, scale, d_k, aligned);
  store_tile(p.d_v, block.first + 16 * warp, block.end, kv_head, chunk, lane, one, d_v, aligned);
}

}  // namespace coda_device
