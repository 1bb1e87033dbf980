#include "backend/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/gemm_kernel.h"
#include "backend/cpu/kernels.h"

namespace coda::cpu {
namespace {

/// Depth of a packed panel: B's strip (256 x 16 floats) fills half of a 32 KiB first-level cache.
constexpr i64 kDepth = 256;

/// Rows of K that all strips are packed from, one strip after the other, where the matrix has rows
/// of many bytes.
constexpr i64 kRowsAtOnce = 8;
constexpr i64 kLongRow = 8192;

/// Columns of a tile from which on packing A pays, if one panel is as deep as K. The kernel is
/// faster on a packed panel, by 2 to 7 %, more where rows lie far apart.
constexpr i64 kWideTile = 768;

/// Bytes of a row of B up to which fetching the rows behind it pays.
constexpr i64 kShortRow = 2048;

i64 round_up(i64 n, i64 step) { return (n + step - 1) / step * step; }

const char* address(const TensorView& view, i64 row, i64 col) {
  return static_cast<const char*>(view.data) +
         (row * view.stride + col) * static_cast<i64>(size_of(view.dtype));
}

/// Row `index` of blocks that lie one above the other, from column `col` on.
struct BlockRow {
  const char* data = nullptr;
  i64 left = 0;    ///< rows of the block from here on
  i64 stride = 0;  ///< elements
  DType dtype = DType::f32;
};
BlockRow row_of(std::span<const TensorView> blocks, i64 index, i64 col) {
  for (const TensorView& block : blocks) {
    if (index < block.rows)
      return {address(block, index, col), block.rows - index, block.stride, block.dtype};
    index -= block.rows;
  }
  return {};
}

/// Rows [row, row + n) of a matrix whose K lies along memory, as strips of `width` rows.
void pack_rows(float* y, std::span<const TensorView> matrix, i64 row, i64 n, i64 width, i64 k0,
               i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  alignas(16) static constexpr float kZeros[kDepth] = {};
  const DType dtype = matrix[0].dtype;
  const i64 next_strip = width * matrix[0].stride * static_cast<i64>(size_of(dtype));
  for (i64 strip = 0; strip < n; strip += width, y += width * depth) {
    // From the bottom up: eight rows may reach into the first rows of the next k.
    for (i64 r = (width - 1) / 8 * 8; r >= 0; r -= 8) {
      const void* rows[8] = {kZeros, kZeros, kZeros, kZeros, kZeros, kZeros, kZeros, kZeros};
      for (i64 i = 0; i < 8 && r + i < width && strip + r + i < n; ++i)
        rows[i] = row_of(matrix, row + strip + r + i, k0).data;
      const i64 ahead = strip + width + r < n ? next_strip : 0;
      kernel.pack_transposed(y + r, width, rows, dtype, depth, ahead);
    }
  }
}

/// Columns [col, col + n) of a matrix whose rows are K, as strips of `width` columns.
void pack_columns(float* y, std::span<const TensorView> matrix, i64 col, i64 n, i64 width, i64 k0,
                  i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  // Long rows: a few of them, all strips, at a time. Neighbouring strips share lines of memory, and
  // many rows far apart would not stay in the first-level cache until the next strip. Zen 3, for an
  // element of a row of 16 KiB in memory, processor time: 0.67 ns all at once, 0.31 so.
  const i64 row_bytes = matrix[0].stride * static_cast<i64>(size_of(matrix[0].dtype));
  const i64 most = n > width && row_bytes >= kLongRow ? kRowsAtOnce : depth;
  for (i64 k = 0; k < depth;) {
    const BlockRow source = row_of(matrix, k0 + k, col);
    const i64 size = static_cast<i64>(size_of(source.dtype));
    const i64 count = std::min({source.left, depth - k, most});
    const auto pack = [&](i64 c, i64 row, i64 rows, i64 readable) {
      kernel.pack_columns(y + c * depth + (k + row) * width, width,
                          source.data + (row * source.stride + c) * size, source.stride, readable,
                          source.dtype, rows);
    };
    // Nothing of the last row may reach behind the strip: the next one's first rows are there.
    const i64 last = k + count == depth && count < depth ? 1 : 0;
    for (i64 c = 0; c < n; c += width) {
      pack(c, 0, count - last, n - c);
      if (last > 0) pack(c, count - 1, 1, std::min(width, n - c));
    }
    k += count;
  }
}

/// Brings the next strip of B into the cache, a few lines with every call of the kernel: packing
/// reads short rows far apart, which the hardware does not foresee.
class Prefetch {
 public:
  /// Columns [col, col + n) of op(B), spread over `steps` steps.
  Prefetch(const Factors& factors, i64 col, i64 n, i64 k, i64 depth, i64 steps) {
    if (n <= 0) return;
    const BlockRow first =
        factors.transpose_b ? row_of(factors.b, col, k) : row_of(factors.b, k, col);
    const i64 size = static_cast<i64>(size_of(first.dtype));
    rows_ = std::min(factors.transpose_b ? n : depth, first.left);
    width_ = (factors.transpose_b ? depth : n) * size;
    stride_ = first.stride * size;
    row_ = first.data;
    per_step_ = (rows_ * ((width_ + 63) / 64) + steps - 1) / steps;
  }
  void step() {
    for (i64 i = 0; i < per_step_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + at_);
      at_ += 64;
      if (at_ < width_) continue;
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  const char* row_ = nullptr;
  i64 rows_ = 0, width_ = 0, stride_ = 0, at_ = 0, per_step_ = 0;
};

void pack_strip(const Factors& factors, float* y, i64 col, i64 n, i64 k, i64 depth) {
  const i64 width = gemm_kernel().cols;
  if (factors.transpose_b)
    pack_rows(y, factors.b, col, n, width, k, depth);
  else
    pack_columns(y, factors.b, col, n, width, k, depth);
}

/// Strips of one depth follow one another, depth after depth.
i64 packed_offset(i64 n, i64 col, i64 k, i64 depth) {
  return k * round_up(n, gemm_kernel().cols) + col * depth;
}

/// One block: strip by strip of B, packed into the first-level cache right before it is used.
/// `packed_a` is null if A's rows from `row` on are read where they lie.
void multiply_block(const Factors& factors, i64 row, const float* packed_a, float* packed_b,
                    i64 rows, const TileBlock& block, i64 k, i64 depth) {
  const GemmKernel& kernel = gemm_kernel();
  const auto multiply = [&](i64 r, i64 c, const float* strip) {
    float* out = block.c + r * block.stride + c;
    if (packed_a)
      return kernel.multiply(depth, packed_a + r * depth, strip, out, block.stride, k > 0);
    const auto* a = static_cast<const float*>(factors.a.data) + (row + r) * factors.a.stride + k;
    kernel.multiply_rows(depth, a, factors.a.stride, std::min(rows - r, kernel.rows), strip, out,
                         block.stride, k > 0);
  };
  for (i64 c = 0; c < block.n; c += kernel.cols) {
    const i64 n = std::min(kernel.cols, block.n - c);
    if (factors.packed_b) {
      const float* strip =
          factors.packed_b + packed_offset(factors.packed_cols, block.col + c, k, depth);
      for (i64 r = 0; r < rows; r += kernel.rows) multiply(r, c, strip);
      continue;
    }
    pack_strip(factors, packed_b, block.col + c, n, k, depth);
    Prefetch next(factors, block.col + c + n, std::min(kernel.cols, block.n - c - n), k, depth,
                  (rows + kernel.rows - 1) / kernel.rows);
    for (i64 r = 0; r < rows; r += kernel.rows) {
      next.step();
      multiply(r, c, packed_b);
    }
  }
}

/// One row of A: each element of B is read once and multiplied from registers, nothing is packed.
/// Columns [k, k + depth) of op(A), widened to `a`.
void multiply_one_row(const Factors& factors, i64 row, std::span<const TileBlock> blocks, i64 k,
                      i64 depth, float* a) {
  const GemmKernel& kernel = gemm_kernel();
  alignas(16) static constexpr float kZeros[kDepth] = {};
  const DType dtype = factors.b[0].dtype;
  const i64 size = static_cast<i64>(size_of(dtype));
  // The processor foresees long rows by itself.
  const bool is_short = factors.k * size <= kShortRow;
  kernel.pack_columns(a, depth, address(factors.a, row, k), 0, depth, factors.a.dtype, 1);
  for (const TileBlock& block : blocks) {
    for (i64 c = 0; c < block.n; c += kRowCols) {
      const char* first[kRowCols];
      i64 stride = 0;
      for (i64 i = 0; i < kRowCols; ++i) {
        const BlockRow source =
            c + i < block.n ? row_of(factors.b, block.col + c + i, k) : BlockRow{};
        first[i] = source.data;
        if (i == 0) stride = source.stride;
      }
      for (i64 i0 = 0; i0 < depth; i0 += kDepth) {
        const void* b[kRowCols];
        for (i64 i = 0; i < kRowCols; ++i)
          b[i] = first[i] ? static_cast<const void*>(first[i] + i0 * size) : kZeros;
        kernel.multiply_row(std::min(kDepth, depth - i0), a + i0, b, dtype,
                            is_short ? kRowCols * stride * size : 0, block.c + c, k + i0 > 0);
      }
    }
  }
}

/// Floats of a packed panel of A; the strip of B follows.
i64 a_floats(i64 rows) { return round_up(tile_rows(rows) * kDepth + kPackSlack, 16); }

}  // namespace

i64 tile_rows(i64 rows) { return round_up(rows, gemm_kernel().rows); }

i64 packed_unit() { return gemm_kernel().cols; }

i64 packed_b_floats(i64 k, i64 n) { return k * round_up(n, gemm_kernel().cols) + kPackSlack; }

namespace {
constexpr i64 kStripsPerPart = 8;
i64 column_parts(i64 n) {
  const i64 wide = kStripsPerPart * gemm_kernel().cols;
  return (n + wide - 1) / wide;
}
}  // namespace

i64 pack_b_parts(i64 k, i64 n) { return column_parts(n) * ((k + kDepth - 1) / kDepth); }

void pack_b(const Factors& factors, i64 n, i64 part, float* packed) {
  const i64 width = gemm_kernel().cols;
  const i64 k = part / column_parts(n) * kDepth;
  const i64 depth = std::min(kDepth, factors.k - k);
  const i64 first = part % column_parts(n) * kStripsPerPart * width;
  for (i64 col = first; col < std::min(n, first + kStripsPerPart * width); col += width)
    pack_strip(factors, packed + packed_offset(n, col, k, depth), col, std::min(width, n - col), k,
               depth);
}

i64 packing_floats(i64 rows) { return a_floats(rows) + kPad * kDepth + kPackSlack; }

void multiply_tile(const Factors& factors, i64 row, i64 rows, std::span<const TileBlock> blocks,
                   float* packing) {
  const i64 height = gemm_kernel().rows;
  float* packed_a = packing;
  float* packed_b = packing + a_floats(rows);
  i64 cols = 0;
  for (const TileBlock& block : blocks) cols += block.n;
  const bool in_place = !factors.transpose_a && factors.a.dtype == DType::f32 &&
                        factors.k <= kDepth && cols < kWideTile &&
                        gemm_kernel().multiply_rows != nullptr;
  if (factors.k == 0)
    for (const TileBlock& block : blocks)
      for (i64 r = 0; r < rows; ++r) std::fill_n(block.c + r * block.stride, padded(block.n), 0.0f);
  if (rows == 1 && factors.transpose_b && !factors.transpose_a) {
    const i64 most = packing_floats(1) / kDepth * kDepth;
    for (i64 k = 0; k < factors.k; k += most)
      multiply_one_row(factors, row, blocks, k, std::min(most, factors.k - k), packing);
    return;
  }
  for (i64 k = 0; k < factors.k; k += kDepth) {
    const i64 depth = std::min(kDepth, factors.k - k);
    const std::span<const TensorView> a(&factors.a, 1);
    if (factors.transpose_a)
      pack_columns(packed_a, a, row, rows, height, k, depth);
    else if (!in_place)
      pack_rows(packed_a, a, row, rows, height, k, depth);
    for (const TileBlock& block : blocks)
      multiply_block(factors, row, in_place ? nullptr : packed_a, packed_b, rows, block, k, depth);
  }
}

}  // namespace coda::cpu
