// The inner kernel of the matrix product and its packing, for the processor's instruction set.
#pragma once

#include <cstdint>

#include "coda/dtype.h"

namespace coda::cpu {

/// Packed A: strips of `rows` rows; element (r, k) at a[r * a_row + k * a_step]. Packed B: strips
/// of `cols` columns; element (k, c) at b[k * cols + c]. Past the matrix' edge both hold zeros.
struct GemmKernel {
  std::int64_t rows = 0;  ///< height of the register tile
  std::int64_t cols = 0;  ///< width of the register tile, at most kPad

  /// c[rows, cols] = (or += if accumulate) a b.
  void (*multiply)(std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_step,
                   const float* b, float* c, std::int64_t stride, bool accumulate) = nullptr;
  /// y[0, n) = x[0, n) widened.
  void (*widen)(float* y, const void* x, DType dtype, std::int64_t n) = nullptr;
  /// Four rows of n elements each, transposed: y[k * stride + r] = x[r][k].
  void (*transpose4)(float* y, std::int64_t stride, const void* const* x, DType dtype,
                     std::int64_t n) = nullptr;
};

const GemmKernel& gemm_kernel();

}  // namespace coda::cpu
