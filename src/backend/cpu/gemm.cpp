#include "backend/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/gemm_kernel.h"
#include "backend/cpu/kernels.h"

namespace coda::cpu {
namespace {

/// Depth of a packed panel: B's strip (256 x 16 floats) fills half of a 32 KiB first-level cache.
constexpr i64 kDepth = 256;

i64 round_up(i64 n, i64 step) { return (n + step - 1) / step * step; }

const char* address(const TensorView& view, i64 row, i64 col) {
  return static_cast<const char*>(view.data) +
         (row * view.stride + col) * static_cast<i64>(size_of(view.dtype));
}

/// Row `index` of blocks that lie one above the other, from column `col` on, and how many rows its
/// block still has from there.
struct BlockRow {
  const char* data = nullptr;
  i64 left = 0;
  i64 step = 0;  ///< bytes to the next row
  DType dtype = DType::f32;
};
BlockRow row_of(std::span<const TensorView> blocks, i64 index, i64 col) {
  for (const TensorView& block : blocks) {
    if (index < block.rows)
      return {address(block, index, col), block.rows - index,
              block.stride * static_cast<i64>(size_of(block.dtype)), block.dtype};
    index -= block.rows;
  }
  return {};
}

/// Strips of `height` of the matrix' rows [row, row + n), K along memory: element (r, k) of a strip
/// at y[r * depth + k].
void pack_rows(float* y, std::span<const TensorView> matrix, i64 row, i64 n, i64 height, i64 k0,
               i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  i64 r = 0;
  while (r < n) {
    const BlockRow source = row_of(matrix, row + r, k0);
    const i64 end = std::min(n, r + source.left);
    const char* x = source.data;
    for (; r < end; ++r, x += source.step) kernel.widen(y + r * depth, x, source.dtype, depth);
  }
  std::memset(y + n * depth, 0,
              static_cast<std::size_t>((round_up(n, height) - n) * depth) * sizeof(float));
}

/// Strips of `width` of the matrix' rows [row, row + n), transposed: element (k, r) of a strip at
/// y[k * width + r]. width is a multiple of 4.
void pack_transposed(float* y, std::span<const TensorView> matrix, i64 row, i64 n, i64 width,
                     i64 k0, i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  alignas(16) static constexpr float kZeros[kDepth] = {};
  for (i64 strip = 0; strip < n; strip += width, y += width * depth) {
    for (i64 r = 0; r < width; r += 4) {
      const void* rows[4] = {kZeros, kZeros, kZeros, kZeros};
      DType dtype = matrix[0].dtype;
      for (i64 i = 0; i < 4 && strip + r + i < n; ++i)
        rows[i] = row_of(matrix, row + strip + r + i, k0).data;
      kernel.transpose4(y + r, width, rows, dtype, depth);
    }
  }
}

/// Strips of `width` of the matrix' columns [col, col + n), rows are K: element (k, c) of a strip
/// at y[k * width + c].
void pack_columns(float* y, std::span<const TensorView> matrix, i64 col, i64 n, i64 width, i64 k0,
                  i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  i64 k = 0;
  while (k < depth) {
    const BlockRow source = row_of(matrix, k0 + k, col);
    const i64 end = std::min(depth, k + source.left);
    const i64 size = static_cast<i64>(size_of(source.dtype));
    const char* x = source.data;
    for (; k < end; ++k, x += source.step) {
      float* out = y + k * width;
      for (i64 c = 0; c < n; c += width, out += width * depth) {
        const i64 count = std::min(width, n - c);
        kernel.widen(out, x + c * size, source.dtype, count);
        std::fill(out + count, out + width, 0.0f);
      }
    }
  }
}

void multiply_panels(const GemmKernel& kernel, const float* a, bool a_by_columns, const float* b,
                     i64 rows, const TileBlock& block, i64 depth, bool accumulate) {
  const i64 a_row = a_by_columns ? 1 : depth;
  const i64 a_step = a_by_columns ? kernel.rows : 1;
  for (i64 c = 0; c < block.n; c += kernel.cols)
    for (i64 r = 0; r < rows; r += kernel.rows)
      kernel.multiply(depth, a + r * depth, a_row, a_step, b + c * depth,
                      block.c + r * block.stride + c, block.stride, accumulate);
}

}  // namespace

i64 tile_rows(i64 rows) { return round_up(rows, gemm_kernel().rows); }

i64 packing_floats(i64 rows, i64 cols) {
  return round_up(tile_rows(rows) * kDepth, 16) + padded(cols) * kDepth;
}

void multiply_tile(const Factors& factors, i64 row, i64 rows, std::span<const TileBlock> blocks,
                   float* packing) {
  const GemmKernel& kernel = gemm_kernel();
  float* packed_a = packing;
  float* packed_b = packing + round_up(tile_rows(rows) * kDepth, 16);
  if (factors.k == 0)
    for (const TileBlock& block : blocks)
      for (i64 r = 0; r < rows; ++r) std::fill_n(block.c + r * block.stride, padded(block.n), 0.0f);
  for (i64 k = 0; k < factors.k; k += kDepth) {
    const i64 depth = std::min(kDepth, factors.k - k);
    const std::span<const TensorView> a(&factors.a, 1);
    if (factors.transpose_a)
      pack_columns(packed_a, a, row, rows, kernel.rows, k, depth);
    else
      pack_rows(packed_a, a, row, rows, kernel.rows, k, depth);
    for (const TileBlock& block : blocks) {
      if (factors.transpose_b)
        pack_transposed(packed_b, factors.b, block.col, block.n, kernel.cols, k, depth);
      else
        pack_columns(packed_b, factors.b, block.col, block.n, kernel.cols, k, depth);
      multiply_panels(kernel, packed_a, factors.transpose_a, packed_b, rows, block, depth, k > 0);
    }
  }
}

}  // namespace coda::cpu
