// Attention forward for bf16 and f16 on the tensor cores: a CTA has 64 queries of one head, a warp
// 16 of them, and walks over the keys they may see, 64 at a time, with running (largest, total).
#pragma once

namespace coda_device {

extern "C" __global__ void __launch_bounds__(kTileThreads)
    coda_attention_forward(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const u32 q_tile = shared_address(memory);
  const u32 k_tiles = q_tile + kTileBytes, v_tiles = k_tiles + 2 * kTileBytes;  // two buffers each
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunk = static_cast<int>(blockIdx.x % kChunks);
  const int head = static_cast<int>(blockIdx.x / kChunks) % p.n_heads;
  AttentionBlock block;
  // The last tiles of a sequence see most keys: they go first.
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x / kChunks) / p.n_heads, block)) return;
  const int kv_column = head / p.group * kHeadDim;
  const bool aligned = p.aligned != 0;
  const int tiles = (block.first - block.begin) / kAttentionTile + 1;
  const int first_tile = hidden_tiles(p, block);
  const float infinity = __int_as_float(0x7f800000);

  const auto load_keys = [&](int i) {
    const int key = block.begin + i * kAttentionTile;
    load_tile(k_tiles + i % 2 * kTileBytes, p.k, key, block.end, kv_column, aligned);
    load_tile(v_tiles + i % 2 * kTileBytes, p.v, key, block.end, kv_column, aligned);
  };
  load_tile(q_tile, p.q, block.first, block.end, head * kHeadDim, aligned);
  load_keys(first_tile);
  copy_async_commit();

  float o[kChunkBlocks][4] = {};
  float largest[2] = {-infinity, -infinity}, total[2] = {};  // of rows g and g + 8
  for (int i = first_tile; i < tiles; ++i) {
    // Step 1: the next keys on their way, this step's here.
    if (i + 1 < tiles) load_keys(i + 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    // Step 2: scores; a query must not look ahead, nor before its window.
    float s[8][4];
    dot_rows(q_tile, 16 * warp, k_tiles + i % 2 * kTileBytes, 0, lane, s);
    const int ahead = block.first - block.begin - i * kAttentionTile;
    const bool edge = has_hidden(p, ahead);
    float here[2] = {-infinity, -infinity};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = score_of(p, s[j][e]);
        const int query = 16 * warp + lane / 4 + 8 * (e / 2), key = 8 * j + lane % 4 * 2 + e % 2;
        if (edge && !is_seen(p, ahead + query - key)) s[j][e] = -infinity;
        here[e / 2] = fmaxf(here[e / 2], s[j][e]);
      }
    }

    // Step 3: exponentials against the running largest; what was summed so far shrinks to it.
    float origin[2], shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float now = fmaxf(largest[h], quad_largest(here[h]));
      origin[h] = now == -infinity ? 0.0f : now;  // rows that have seen no number yet
      shrink[h] = exp2_approximate((largest[h] - origin[h]) * kLog2E);
      largest[h] = now;
      total[h] *= shrink[h];
    }
#pragma unroll
    for (int j = 0; j < kChunkBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] *= shrink[e / 2];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = exp2_approximate((s[j][e] - origin[e / 2]) * kLog2E);
        total[e / 2] += s[j][e];  // this lane's columns; the quad's are added at the end
      }
    }

    // Step 4: o += p v.
    add_tokens(s, v_tiles + i % 2 * kTileBytes, 0, chunk * kChunkDim, lane, o);
    __syncthreads();
  }

  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_total(total[h]);
    factor[h] = 1.0f / sum;
    const int row = block.first + 16 * warp + lane / 4 + 8 * h;
    if (chunk == 0 && lane % 4 == 0 && row < block.end) {
      p.lse[row * p.lse_stride + head] = largest[h] + logf(sum);
    }
  }
  store_tile(p.o, block.first + 16 * warp, block.end, head, chunk, lane, factor, o, aligned);
}

}  // namespace coda_device
