// Attention forward on the ordinary units (attention_plain.cuh).
#pragma once

namespace coda_device {

extern "C" __global__ void __launch_bounds__(kPlainThreads, kPlainCtas)
    coda_attention_plain_forward(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared& shared = *reinterpret_cast<PlainShared*>(memory);
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const int chunk = static_cast<int>(blockIdx.x % kPlainChunks) * kAttentionTile;
  const int head = static_cast<int>(blockIdx.x / kPlainChunks) % p.n_heads;
  AttentionBlock block;
  // The last tiles of a sequence see most keys: they go first.
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x / kPlainChunks) / p.n_heads, block))
    return;
  const float infinity = __int_as_float(0x7f800000);
  const int kv_column = head / p.group * kHeadDim;
  const PlainRows q{p.q, block.first, block.end, head * kHeadDim};

  float o[4][4] = {};
  float largest[4], total[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = -infinity;
    total[i] = 0;
  }
  const int first_key = block.begin + hidden_tiles(p, block) * kAttentionTile;
  for (int key = first_key; key <= block.first; key += kAttentionTile) {
    // Step 1: scores, -inf where a query must not look.
    const PlainRows k{p.k, key, block.end, kv_column}, v{p.v, key, block.end, kv_column};
    float s[4][4];
    dot_rows(q, k, shared, row, column, s);
    // Step 2: the running largest score; what was summed so far shrinks to it.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float here = -infinity;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool seen = is_seen(p, block.first + row + i - (key + column + j));
        s[i][j] = seen ? score_of(p, s[i][j]) : -infinity;
        here = s[i][j] > here ? s[i][j] : here;
      }
      here = row_largest(here);
      const float now = here > largest[i] ? here : largest[i];
      const float origin = now == -infinity ? 0.0f : now;  // rows that have seen no number yet
      const float shrink = exponential(largest[i] - origin);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = exponential(s[i][j] - origin);
        sum += s[i][j];
        o[i][j] *= shrink;
        shared.p[row + i][column + j] = s[i][j];
      }
      total[i] = total[i] * shrink + row_total(sum);
      largest[i] = now;
    }
    // Step 3: o += p v.
    add_tokens(&shared.p[0][0], kPlainPitch, 1, v, chunk, shared, row, column, o);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[i][j] /= total[i];
    const int t = block.first + row + i;
    if (chunk == 0 && column == 0 && t < block.end) {
      p.lse[t * p.lse_stride + head] = static_cast<float>(largest[i] + logarithm(total[i]));
    }
  }
  store_columns(PlainRows{p.o, block.first, block.end, head * kHeadDim}, chunk, row, column, o);
}

}  // namespace coda_device
