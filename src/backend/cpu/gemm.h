// One tile of a matrix product at a time, by one thread, into fp32 scratch. Operands are f32, bf16
// or f16, row-major with any stride, either one transposed; 16-bit panels are widened while they
// are packed, K block by K block, so nothing larger than a panel exists in fp32.
//
// Why not a library: a run allocates nothing, and on AVX2 every call of oneDNN 2.6 does (a matmul
// primitive six times even with a user's scratchpad, dnnl_sgemm once, for its packing buffers); and
// packing here widens 16-bit operands on the way. Measured on one thread of a Zen 3 (AVX2), fp32,
// processor time, storing the result included: 1024 x 2816 x 1024 86 GFLOP/s nt, 86 nn, 84 tn
// (oneDNN's sgemm 90 to 92, OpenBLAS 91 to 94 in the same run); 2048 x 1536 x 256 nt 80 (94, 88);
// with bf16 operands 85 to 88. The inner kernel alone: 102. Processors that multiply 16-bit types
// natively use onednn_gemm.h for those.
//
// The order of summation over K depends on K alone, never on the tile: bits do not change with the
// size of tiles.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace coda::cpu {

/// op(A) [M, K] times op(B) [K, N]. B is a list of row blocks, one above the other.
struct Factors {
  TensorView a;                   ///< [M, K], or [K, M] if transpose_a
  std::span<const TensorView> b;  ///< blocks of [K, N], or of [N, K] if transpose_b
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t k = 0;
  const float* packed_b = nullptr;  ///< all of op(B), from pack_b; null: packed with every tile
  std::int64_t packed_cols = 0;     ///< columns of op(B), if packed
};

/// Columns [col, col + n) of the product, written to c: rows are `stride` apart.
struct TileBlock {
  std::int64_t col = 0;
  std::int64_t n = 0;
  float* c = nullptr;
  std::int64_t stride = 0;
};

/// Rows of c that a tile of `rows` rows writes: a few more, up to a multiple of the kernel's
/// height. Columns are written up to padded(n).
std::int64_t tile_rows(std::int64_t rows);

/// Floats of packing space for tiles of up to `rows` rows.
std::int64_t packing_floats(std::int64_t rows);

// Packing op(B) [K, n] once for all tiles of rows. Tiles that use it start at multiples of
// packed_unit() columns.
std::int64_t packed_unit();
std::int64_t packed_b_floats(std::int64_t k, std::int64_t n);
/// It is done in parts, in any order.
std::int64_t pack_b_parts(std::int64_t k, std::int64_t n);
void pack_b(const Factors& factors, std::int64_t n, std::int64_t part, float* packed);

/// Computes rows [row, row + rows) of each block. K = 0 gives zeros. `packing` is 64-byte aligned.
void multiply_tile(const Factors& factors, std::int64_t row, std::int64_t rows,
                   std::span<const TileBlock> blocks, float* packing);

}  // namespace coda::cpu
