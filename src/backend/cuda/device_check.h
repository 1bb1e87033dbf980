// For tests and benchmarks: random operands and errors against float64, computed on the GPU.
#pragma once

#include <cstdint>

#include "backend/cuda/gemm.h"

namespace coda::cuda {

/// What a GEMM's output was compared with a float64 product of the same operands.
struct ErrorReport {
  double relative = 0;    ///< |x - reference| / |reference|, Frobenius norms, finite elements
  double not_finite = 0;  ///< elements that are NaN or infinite
};

class DeviceCheck {
 public:
  explicit DeviceCheck(const Stream& stream);

  /// Normal deviates, or integers from -4 to 4, of which products sum exactly in fp32.
  void fill(DevicePointer pointer, DType dtype, std::int64_t count, std::uint64_t seed,
            bool integers = false) const;

  /// Fills reference_ with the float64 product of rows [first, first + rows) of A and all of B (one
  /// block). `shape` gives majors and types of the operands.
  void make_reference(const GemmShape& shape, const GemmOperands& operands, std::int64_t first,
                      std::int64_t rows);
  /// Compares those rows of C (row r at pointer + (r - first) * stride) with the reference.
  ErrorReport compare(const MatrixBlock& c, DType dtype) const;

  /// Number of 4-byte words in which two buffers differ; `bytes` is a multiple of 4.
  std::uint64_t count_differences(DevicePointer x, DevicePointer y, std::int64_t bytes) const;

 private:
  const Stream& stream_;
  DeviceBuffer reference_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
};

}  // namespace coda::cuda
