// Tiles of 64 rows of bf16 or f16 in shared memory, and a warp's products with them. The prelude
// defines kHeadDim (at most 256), kBf16, kVectorRows and Element.
//
// Notation of fragments: g = lane / 4, c = 2 (lane % 4). A warp's 16 x 8 n block of numbers is
// s[n][4]: s[j][2 h + e] is row g + 8 h, column 8 j + c + e.
#pragma once

namespace coda_device {

constexpr int kTileThreads = 128;                     // 4 warps of 16 rows
constexpr int kDim = (kHeadDim + 15) / 16 * 16;       // features, padded with zeros
constexpr int kSteps = kDim / 16;                     // of a product over features
constexpr int kPitch = kDim + 8;                      // 16 bytes off: rows of a matrix never collide
constexpr int kTileBytes = kAttentionTile * kPitch * 2;
// Columns of a result that one CTA makes: what fits into registers.
constexpr int kChunks = (kDim + 127) / 128;
constexpr int kChunkDim = (kDim / kChunks + 15) / 16 * 16;
constexpr int kChunkBlocks = kChunkDim / 8;
constexpr float kLog2E = 1.44269504f;

CODA_DEVICE u32 pack(float low, float high) {
  return kBf16 ? pack_bf16(low, high) : pack_f16(low, high);
}
CODA_DEVICE void warp_multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kBf16) {
    warp_multiply_bf16(d, a, b0, b1);
  } else {
    warp_multiply_f16(d, a, b0, b1);
  }
}

/// Rows [first, first + 64) of a head's columns into a tile; rows from `end` on and columns beyond
/// the head count as zero. Asynchronous if rows allow it: commit, wait, synchronise.
CODA_DEVICE void load_tile(u32 tile, const AttentionRows& x, int first, int end, int column,
                           bool aligned) {
  constexpr int kPieces = kDim / 8;
  const u16* base = static_cast<const u16*>(x.pointer) + column;
#pragma unroll 2
  for (int i = threadIdx.x; i < kAttentionTile * kPieces; i += kTileThreads) {
    const int r = i / kPieces, c = i % kPieces * 8;
    const u32 to = tile + (r * kPitch + c) * 2;
    const bool inside = first + r < end;
    const u16* row = base + (inside ? (first + r) * x.stride : 0);
    if (kVectorRows && aligned) {
      const bool real = inside && c < kHeadDim;
      copy_async(to, real ? row + c : base, !real);
    } else {
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int at = c + 2 * w;
        const u32 low = inside && at < kHeadDim ? row[at] : 0;
        const u32 high = inside && at + 1 < kHeadDim ? row[at + 1] : 0;
        words[w] = low | high << 16;
      }
      store_shared_v4(to, words[0], words[1], words[2], words[3]);
    }
  }
}

/// Rows [row, row + 16), columns [16 step, 16 step + 16) of a tile, as a left factor.
CODA_DEVICE void load_left(u32 tile, int row, int step, int lane, u32 (&a)[4]) {
  load_matrix_x4(tile + ((row + lane % 16) * kPitch + 16 * step + lane / 16 * 8) * 2, a[0], a[1],
                 a[2], a[3]);
}
/// The product over features: rows [row, row + 16) of a tile are columns of the right factor, which
/// is b[0], b[1] for the first 8 and b[2], b[3] for the others.
CODA_DEVICE void load_right_rows(u32 tile, int row, int step, int lane, u32 (&b)[4]) {
  const int matrix = lane / 8;
  load_matrix_x4(tile + ((row + matrix / 2 * 8 + lane % 8) * kPitch + 16 * step + matrix % 2 * 8) * 2,
                 b[0], b[1], b[2], b[3]);
}
/// The product over tokens: rows [row, row + 16) of a tile times columns [column, column + 16).
CODA_DEVICE void load_right_columns(u32 tile, int row, int column, int lane, u32 (&b)[4]) {
  const int matrix = lane / 8;
  load_matrix_x4_transposed(
      tile + ((row + matrix % 2 * 8 + lane % 8) * kPitch + column + matrix / 2 * 8) * 2, b[0], b[1],
      b[2], b[3]);
}

/// s = a[row .. row + 16) b^T over all features, for 8 kBlocks rows of b from b_row on.
template <int kBlocks>
CODA_DEVICE void dot_rows(u32 a_tile, int row, u32 b_tile, int b_row, int lane,
                          float (&s)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[j][e] = 0;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 a[4];
    load_left(a_tile, row, step, lane, a);
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      u32 b[4];
      load_right_rows(b_tile, b_row + 8 * j, step, lane, b);
      warp_multiply(s[j], a, b[0], b[1]);
      warp_multiply(s[j + 1], a, b[2], b[3]);
    }
  }
}

/// total += w x: w is the warp's 16 x 8 kBlocks numbers, rounded to 16 bits, x as many rows of a tile
/// from `row` on, of which columns [column, column + kChunkDim) are taken.
template <int kBlocks>
CODA_DEVICE void add_tokens(const float (&w)[kBlocks][4], u32 tile, int row, int column, int lane,
                            float (&total)[kChunkBlocks][4]) {
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
    const u32 a[4] = {pack(w[2 * k][0], w[2 * k][1]), pack(w[2 * k][2], w[2 * k][3]),
                      pack(w[2 * k + 1][0], w[2 * k + 1][1]),
                      pack(w[2 * k + 1][2], w[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < kChunkBlocks; j += 2) {
      u32 b[4];
      load_right_columns(tile, row + 16 * k, column + 8 * j, lane, b);
      warp_multiply(total[j], a, b[0], b[1]);
      warp_multiply(total[j + 1], a, b[2], b[3]);
    }
  }
}

/// Rows g and g + 8 of a warp's result times factor[0], factor[1], from row `row` of x on.
CODA_DEVICE void store_tile(const AttentionRows& x, int row, int end, int head, int chunk, int lane,
                            const float (&factor)[2], const float (&value)[kChunkBlocks][4],
                            bool aligned) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + lane / 4 + 8 * h;
    if (r >= end) continue;
    const long long at = r * x.stride + head * kHeadDim;
#pragma unroll
    for (int j = 0; j < kChunkBlocks; ++j) {
      const int c = chunk * kChunkDim + 8 * j + lane % 4 * 2;
      const float low = value[j][2 * h] * factor[h], high = value[j][2 * h + 1] * factor[h];
      if (kVectorRows && aligned) {
        if (c < kHeadDim) {
          *reinterpret_cast<u32*>(static_cast<u16*>(x.pointer) + at + c) = pack(low, high);
        }
      } else {
        if (c < kHeadDim) Element::store(x.pointer, at + c, low);
        if (c + 1 < kHeadDim) Element::store(x.pointer, at + c + 1, high);
      }
    }
  }
}

/// p of one q . k.
CODA_DEVICE float probability(const AttentionParams& p, float product, float lse) {
  return exp2_approximate((score_of(p, product) - lse) * kLog2E);
}

/// Over the 4 lanes that share a row.
CODA_DEVICE float quad_total(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
CODA_DEVICE float quad_largest(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace coda_device
