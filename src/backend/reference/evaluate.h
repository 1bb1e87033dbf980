// What every op means: one scalar definition each, on whole matrices. The reference backend runs
// Programs with it and the Graph evaluator runs math with it; nothing else defines an op.
// NaN and Inf follow IEEE. Values are doubles; with f32 precision each tile operation is rounded to
// fp32, while vectors and scalars stay double (so a log-sum-exp keeps its small part beside a
// large maximum). Casts round with f32 precision and do nothing with f64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coda/op.h"
#include "tensor/tensor.h"

namespace coda::reference {

/// Row-major. col [M, 1], row [1, n], scalar [1, 1].
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> v;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c, double fill = 0)
      : rows(r), cols(c), v(static_cast<std::size_t>(r * c), fill) {}
  double& at(std::int64_t r, std::int64_t c) { return v[static_cast<std::size_t>(r * cols + c)]; }
  double at(std::int64_t r, std::int64_t c) const {
    return v[static_cast<std::size_t>(r * cols + c)];
  }
  /// With broadcasting of extents of 1.
  double broadcast_at(std::int64_t r, std::int64_t c) const {
    return at(rows == 1 ? 0 : r, cols == 1 ? 0 : c);
  }
};

struct Precision {
  bool f32 = false;  ///< round tile operations to fp32 and obey casts
};

/// One op other than memory, input, opaque and proj. rows and cols are the extents of the result
/// (they decide what broadcasts, also when M = 0 or 1); tile says whether it is one (rounding).
/// matmul accumulates in double.
Matrix evaluate(Op op, const Attrs& attrs, std::span<const Matrix* const> args, std::int64_t rows,
                std::int64_t cols, bool tile, Precision precision);

/// y = op(a) op(b) for the transposes of a matmul.
Matrix multiply(const Matrix& a, const Matrix& b, bool transpose_a, bool transpose_b);

/// Rounds to a memory type and back.
double rounded(double value, DType dtype);

/// A reduction in granules of kColumnGranule columns (row reductions) or kRowGranule rows
/// (col_sum, sum of a col), as store_partial leaves it: see Extents for the layout.
/// op: row_sum, row_max, lse, pick, col_sum or sum.
Matrix partials_of(Op op, const Attrs& attrs, std::span<const Matrix* const> args);

/// What a load makes of partials: kind col -> [M, 1], row -> [1, n], scalar -> [1, 1].
Matrix finished(const Matrix& partials, Kind kind, Finish finish);

Matrix read_matrix(const TensorView& view);
void write_matrix(const TensorView& view, const Matrix& matrix, bool accumulate = false);

}  // namespace coda::reference
