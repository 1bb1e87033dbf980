// Attention on the ordinary arithmetic units: any head_dim.
// Slow and right. A CTA has one tile of 64 rows of one head and 64 columns of the result, and forms
// every score from all columns: so a head of 128 computes its scores twice. The prelude defines
// Element and kHeadDim.
//
// 256 threads; a thread holds 4 x 4 of every 64 x 64 tile: rows row + i, columns column + j. The 16
// threads that share a row are half a warp.
#pragma once

namespace coda_device {

constexpr int kPlainThreads = 256;
constexpr int kPlainDepth = 32;                   // features or tokens a step
constexpr int kPlainRun = 8;  // terms that are added up by themselves: long fp32 sums lose digits
constexpr int kPlainPitch = kAttentionTile + 1;
constexpr int kPlainCtas = kSoftcap ? 1 : 2;      // of a multiprocessor: what registers allow
constexpr int kPlainChunks = (kHeadDim + kAttentionTile - 1) / kAttentionTile;

/// Exponentials and logarithms at the sums' precision.
CODA_DEVICE float exponential(float x) { return expf(x); }
CODA_DEVICE float logarithm(float x) { return logf(x); }

struct PlainShared {
  float a[kPlainDepth][kPlainPitch];
  float b[kPlainDepth][kPlainPitch];
  float p[kAttentionTile][kPlainPitch];
  float ds[kAttentionTile][kPlainPitch];  ///< backward only
};

/// Which rows of a matrix, from which column on: rows [first, end) exist, the others count as zero.
struct PlainRows {
  AttentionRows rows;
  int first, end, column;
};

/// Features [depth, depth + 32) of 64 rows, transposed; 0 outside.
CODA_DEVICE void load_features(const PlainRows& x, int depth, float (&to)[kPlainDepth][kPlainPitch]) {
  for (int i = threadIdx.x; i < kAttentionTile * kPlainDepth; i += kPlainThreads) {
    const int r = i / kPlainDepth, c = i % kPlainDepth;
    const bool inside = x.first + r < x.end && depth + c < kHeadDim;
    to[c][r] = inside ? Element::load(x.rows.pointer, (x.first + r) * x.rows.stride + x.column +
                                                            depth + c)
                      : 0.0f;
  }
}

/// total += part, and part = 0.
CODA_DEVICE void move_into(float (&total)[4][4], float (&part)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      total[i][j] += part[i][j];
      part[i][j] = 0;
    }
  }
}

/// s = a b^T over all features.
CODA_DEVICE void dot_rows(const PlainRows& a, const PlainRows& b, PlainShared& shared, int row,
                          int column, float (&s)[4][4]) {
  float part[4][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = 0;
  }
  for (int depth = 0; depth < kHeadDim; depth += kPlainDepth) {
    __syncthreads();
    load_features(a, depth, shared.a);
    load_features(b, depth, shared.b);
    __syncthreads();
    for (int k = 0; k < kPlainDepth; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) part[i][j] += shared.a[k][row + i] * shared.b[k][column + j];
      }
      if (k % kPlainRun == kPlainRun - 1) move_into(s, part);
    }
  }
}

/// Tokens of a tile in the sum: total += w x, with x's 64 columns from x.column + chunk on. Element
/// (r, k) of w is w[r * row_pitch + k * pitch]. One partial sum a tile, made of shorter ones.
CODA_DEVICE void add_tokens(const float* w, int row_pitch, int pitch, const PlainRows& x, int chunk,
                            PlainShared& shared, int row, int column, float (&total)[4][4]) {
  float tile[4][4] = {}, part[4][4] = {};
  for (int k0 = 0; k0 < kAttentionTile; k0 += kPlainDepth) {
    __syncthreads();  // w has been written, and the last reads of b are done
    for (int i = threadIdx.x; i < kPlainDepth * kAttentionTile; i += kPlainThreads) {
      const int k = i / kAttentionTile, c = i % kAttentionTile;
      const bool inside = x.first + k0 + k < x.end && chunk + c < kHeadDim;
      shared.b[k][c] = inside ? Element::load(x.rows.pointer, (x.first + k0 + k) * x.rows.stride +
                                                                    x.column + chunk + c)
                              : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < kPlainDepth; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = w[(row + i) * row_pitch + (k0 + k) * pitch];
#pragma unroll
        for (int j = 0; j < 4; ++j) part[i][j] += weight * shared.b[k][column + j];
      }
      if (k % kPlainRun == kPlainRun - 1) move_into(tile, part);
    }
  }
  move_into(total, tile);
}

CODA_DEVICE void store_columns(const PlainRows& x, int chunk, int row, int column,
                               const float (&value)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (x.first + row + i < x.end && chunk + column + j < kHeadDim) {
        Element::store(x.rows.pointer,
                      (x.first + row + i) * x.rows.stride + x.column + chunk + column + j,
                      value[i][j]);
      }
    }
  }
}

/// Over the 16 threads that share rows.
CODA_DEVICE float row_total(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
CODA_DEVICE float row_largest(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other > x ? other : x;
  }
  return x;
}

/// Of queries (rows) against keys (columns): s = q . k, d_p = d_o . v, and into shared memory p before
/// it is divided by its sum. p and d_p are 0 where a query does not see a key.
CODA_DEVICE void form_scores(const AttentionParams& p, const PlainRows& q, const PlainRows& d_o,
                             const PlainRows& k, const PlainRows& v, int head, int row, int column,
                             PlainShared& shared, float (&s)[4][4], float (&d_p)[4][4]) {
  dot_rows(q, k, shared, row, column, s);
  unsigned seen = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = q.first + row + i;
    const bool exists = t < q.end;
    const float lse = exists ? p.lse[t * p.lse_stride + head] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool sees = exists && is_seen(p, t - (k.first + column + j));
      shared.p[row + i][column + j] = sees ? exponential(score_of(p, s[i][j]) - lse) : 0.0f;
      seen |= (sees ? 1u : 0u) << (4 * i + j);
    }
  }
  dot_rows(d_o, v, shared, row, column, d_p);
#pragma unroll
  for (int i = 0; i < 16; ++i) d_p[i / 4][i % 4] = seen >> i & 1 ? d_p[i / 4][i % 4] : 0.0f;
}

/// p and ds = p (d_o v^T - delta), times the score's slope, of queries q (rows) against keys k
/// (columns), into shared memory.
CODA_DEVICE void score_gradients(const AttentionParams& p, const PlainRows& q, const PlainRows& d_o,
                                 const PlainRows& k, const PlainRows& v, int head, int row,
                                 int column, PlainShared& shared) {
  float s[4][4], d_p[4][4];
  form_scores(p, q, d_o, k, v, head, row, column, shared, s, d_p);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = q.first + row + i;
    const long long at = static_cast<long long>(t) * p.n_heads + head;
    const float delta = t < q.end ? p.delta[at] : 0.0f;
    const float inverse = t < q.end ? p.inverse[at] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Where p is 0, nothing of the row may reach the key, be it NaN.
      float& weight = shared.p[row + i][column + j];
      const bool weighs = weight != 0.0f;
      const float probability = weighs ? weight * inverse : 0.0f;
      const float ds = probability * (d_p[i][j] - delta) * score_slope(p, s[i][j]);
      weight = probability;
      shared.ds[row + i][column + j] = weighs ? ds : 0.0f;
    }
  }
}

}  // namespace coda_device
