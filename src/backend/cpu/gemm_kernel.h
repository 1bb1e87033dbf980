// The inner kernel of the matrix product and its packing, for the processor's instruction set.
#pragma once

#include <cstdint>

#include "coda/dtype.h"

namespace coda::cpu {

/// Packed A: strips of `rows` rows; element (r, k) at a[k * rows + r]. Packed B: strips of `cols`
/// columns; element (k, c) at b[k * cols + c]. Past the matrix' edge both hold zeros. Packing a
/// strip may write up to kPackSlack floats behind it: pack strips in ascending order.
struct GemmKernel {
  std::int64_t rows = 0;  ///< height of the register tile
  std::int64_t cols = 0;  ///< width of the register tile, at most kPad

  /// c[rows, cols] = (or += if accumulate) a b.
  void (*multiply)(std::int64_t k, const float* a, const float* b, float* c, std::int64_t stride,
                   bool accumulate) = nullptr;
  /// c[kRowCols] = (or += if accumulate) a b^T for one row of A, in multiply's order of summation:
  /// bits are the same. a is widened; b: kRowCols rows of `depth` elements of dtype, each read
  /// once. What lies `ahead` bytes behind them is fetched into the cache (0: nothing).
  void (*multiply_row)(std::int64_t depth, const float* a, const void* const* b, DType dtype,
                       std::int64_t ahead, float* c, bool accumulate) = nullptr;
  /// The same from A as it lies in memory, f32 and K along memory: `count` <= rows rows, `a_stride`
  /// apart; what the others make means nothing. Null where registers for the addresses are few.
  void (*multiply_rows)(std::int64_t k, const float* a, std::int64_t a_stride, std::int64_t count,
                        const float* b, float* c, std::int64_t stride, bool accumulate) = nullptr;
  /// Eight rows of `depth` elements, transposed and widened: y[k * width + r] = x[r][k] for r < 8.
  /// If width is less, this reaches into the next k, whose turn comes later. `ahead` as above.
  void (*pack_transposed)(float* y, std::int64_t width, const void* const* x, DType dtype,
                          std::int64_t depth, std::int64_t ahead) = nullptr;
  /// `depth` rows of `count` elements, `stride` apart, widened: y[k * width + c] = x[k * stride +
  /// c] for c < width, zeros from count on. If there are more than width, this may write some of
  /// them behind each k, where the next k comes later.
  void (*pack_columns)(float* y, std::int64_t width, const void* x, std::int64_t stride,
                       std::int64_t count, DType dtype, std::int64_t depth) = nullptr;
};

inline constexpr std::int64_t kPackSlack = 16;
inline constexpr std::int64_t kRowCols = 16;  ///< at most kPad

const GemmKernel& gemm_kernel();

}  // namespace coda::cpu
