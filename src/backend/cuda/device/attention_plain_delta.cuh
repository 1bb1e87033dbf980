// The first kernel of attention's backward on the ordinary units (attention_plain.cuh). Of a row:
//   inverse = 1 / sum of p    delta = sum of p d_p / sum of p
// The same number as dot(o, d_o), but of the very p and d_p that it is subtracted from: with few keys
// d_q is a small difference of the two, and other roundings would stay in it.
#pragma once

namespace coda_device {

extern "C" __global__ void __launch_bounds__(kPlainThreads, kPlainCtas)
    coda_attention_plain_delta(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared& shared = *reinterpret_cast<PlainShared*>(memory);
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const int head = static_cast<int>(blockIdx.x) % p.n_heads;
  AttentionBlock block;
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x) / p.n_heads, block)) return;
  const int kv_column = head / p.group * kHeadDim;
  const PlainRows q{p.q, block.first, block.end, head * kHeadDim};
  const PlainRows d_o{p.d_o, block.first, block.end, head * kHeadDim};
  float total[4] = {}, delta[4] = {};
  const int first_key = block.begin + hidden_tiles(p, block) * kAttentionTile;
  for (int key = first_key; key <= block.first; key += kAttentionTile) {
    const PlainRows k{p.k, key, block.end, kv_column}, v{p.v, key, block.end, kv_column};
    float s[4][4], d_p[4][4];
    form_scores(p, q, d_o, k, v, head, row, column, shared, s, d_p);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float of_p = 0, of_product = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        of_p += shared.p[row + i][column + j];
        of_product += shared.p[row + i][column + j] * d_p[i][j];
      }
      total[i] += row_total(of_p);
      delta[i] += row_total(of_product);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = block.first + row + i;
    if (column == 0 && t < block.end) {
      const long long at = static_cast<long long>(t) * p.n_heads + head;
      p.delta[at] = delta[i] / total[i];
      p.inverse[at] = 1.0f / total[i];
    }
  }
}

}  // namespace coda_device
