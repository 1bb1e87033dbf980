#include "backend/reference/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "backend/element.h"
#include "base/check.h"
#include "base/convert.h"
#include "coda/program.h"
#include "ops/op_table.h"
#include "ops/scalar.h"

namespace coda::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A running log-sum-exp: sum of exp(x - max). Empty: (-inf, 0). A NaN anywhere makes max NaN; an
/// infinite max needs no sum.
struct LogSum {
  double max = -kInfinity;
  double sum = 0;

  void add(const LogSum& other) {
    const double top = larger(max, other.max);
    const auto scaled = [&](const LogSum& part) {
      return std::isinf(part.max) && part.max == top ? part.sum
                                                     : part.sum * std::exp(part.max - top);
    };
    // An empty part has sum 0 whatever its scale.
    sum = (sum == 0 ? 0 : scaled(*this)) + (other.sum == 0 ? 0 : scaled(other));
    max = top;
  }
  void add(double x) { add(LogSum{x, x == -kInfinity ? 0.0 : 1.0}); }
  double value() const { return max + log_sum(); }
  double log_sum() const { return std::isinf(max) ? 0 : std::isnan(max) ? max : std::log(sum); }
};

/// Column of pair j in a matrix of `width` columns: its first and second member.
struct PairColumns {
  std::int64_t first, second;
};
PairColumns pair_columns(PairLayout layout, std::int64_t period, std::int64_t width,
                         std::int64_t j) {
  if (layout == PairLayout::interleaved) return {2 * j, 2 * j + 1};
  const std::int64_t half = (period == 0 ? width : period) / 2;
  const std::int64_t first = j / half * 2 * half + j % half;
  return {first, first + half};
}

/// pos * freq in turns, kept within one turn: freq = hi + lo, so that the error stays below 1e-7
/// turns for positions beyond 1e5.
double turns(double pos, double hi, double lo) {
  const double whole = pos * hi;
  return (whole - std::floor(whole)) + pos * lo;
}

Matrix rotate(const Attrs& attrs, const Matrix& x, const Matrix& pos, const Matrix& freq,
              double direction) {
  Matrix y(x.rows, x.cols);
  const std::int64_t period = freq.cols;
  const std::int64_t half = period / 2;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t j = 0; j < x.cols / 2; ++j) {
      const PairColumns pair = pair_columns(attrs.layout, period, x.cols, j);
      const std::int64_t f = j % half;
      const double angle = direction * 2 * std::numbers::pi *
                           turns(pos.at(r, 0), freq.at(0, f), freq.at(0, half + f));
      const double cosine = std::cos(angle), sine = std::sin(angle);
      const double x1 = x.at(r, pair.first), x2 = x.at(r, pair.second);
      y.at(r, pair.first) = x1 * cosine - x2 * sine;
      y.at(r, pair.second) = x2 * cosine + x1 * sine;
    }
  }
  return y;
}

bool is_ignored(const Attrs& attrs, double target) {
  return target == static_cast<double>(attrs.ignore_index);
}

/// One row reduction over columns [lo, hi).
LogSum reduce_row(Op op, const Attrs& attrs, std::span<const Matrix* const> args, std::int64_t r,
                  std::int64_t lo, std::int64_t hi) {
  const Matrix& x = *args[0];
  LogSum result;  // row_max needs max, lse and log_sum both, the others sum
  for (std::int64_t c = lo; c < hi; ++c) {
    switch (op) {
      case Op::row_sum:
        result.sum += x.at(r, c);
        break;
      case Op::row_max:
        result.max = larger(result.max, x.at(r, c));
        break;
      case Op::lse:
      case Op::log_sum:
        result.add(x.at(r, c));
        break;
      case Op::pick:
        if (!is_ignored(attrs, args[1]->at(r, 0)) && args[1]->at(r, 0) == static_cast<double>(c)) {
          result.sum = x.at(r, c);
        }
        break;
      default:
        throw InternalError("reference: reduce_row: not a reduction of rows");
    }
  }
  return result;
}

Matrix reduce_rows(Op op, const Attrs& attrs, std::span<const Matrix* const> args) {
  Matrix y(args[0]->rows, 1);
  for (std::int64_t r = 0; r < y.rows; ++r) {
    const LogSum all = reduce_row(op, attrs, args, r, 0, args[0]->cols);
    y.at(r, 0) = op == Op::row_max   ? all.max
                 : op == Op::lse     ? all.value()
                 : op == Op::log_sum ? all.log_sum()
                                     : all.sum;
  }
  return y;
}

Matrix reduce_columns(const Matrix& x, std::int64_t lo, std::int64_t hi) {
  Matrix y(1, x.cols);
  for (std::int64_t r = lo; r < hi; ++r) {
    for (std::int64_t c = 0; c < x.cols; ++c) y.at(0, c) += x.at(r, c);
  }
  return y;
}

Matrix concatenate(std::span<const Matrix* const> parts, std::int64_t rows, std::int64_t cols,
                   bool by_columns) {
  Matrix y(rows, cols);
  std::int64_t offset = 0;
  for (const Matrix* part : parts) {
    for (std::int64_t r = 0; r < part->rows; ++r) {
      for (std::int64_t c = 0; c < part->cols; ++c) {
        (by_columns ? y.at(r, offset + c) : y.at(offset + r, c)) = part->at(r, c);
      }
    }
    offset += by_columns ? part->cols : part->rows;
  }
  return y;
}

/// Fills every element of a result from its place.
template <class F>
Matrix filled(std::int64_t rows, std::int64_t cols, F element) {
  Matrix y(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) y.at(r, c) = element(r, c);
  }
  return y;
}

Matrix compute(Op op, const Attrs& attrs, std::span<const Matrix* const> args, std::int64_t rows,
               std::int64_t cols, Precision precision) {
  const Matrix* a = args.empty() ? nullptr : args[0];
  const auto at = [&](std::size_t i, std::int64_t r, std::int64_t c) {
    return args[i]->broadcast_at(r, c);
  };
  switch (op) {
    case Op::constant:
      return Matrix(rows, cols, attrs.value);
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::maximum:
    case Op::greater:
    case Op::equal:
      return filled(rows, cols,
                    [&](auto r, auto c) { return evaluate_scalar(op, at(0, r, c), at(1, r, c)); });
    case Op::neg:
    case Op::exp:
    case Op::log:
    case Op::tanh:
    case Op::sigmoid:
    case Op::rsqrt:
    case Op::erf:
      return filled(rows, cols, [&](auto r, auto c) { return evaluate_scalar(op, at(0, r, c)); });
    case Op::cast:
      if (!precision.f32) return *a;
      return filled(rows, cols, [&](auto r, auto c) { return rounded(at(0, r, c), attrs.dtype); });
    case Op::broadcast:
      return filled(rows, cols, [&](auto r, auto c) { return at(0, r, c); });
    case Op::first_of_pair:
      return filled(rows, cols, [&](auto r, auto c) {
        return a->at(r, pair_columns(attrs.layout, attrs.period, a->cols, c).first);
      });
    case Op::second_of_pair:
      return filled(rows, cols, [&](auto r, auto c) {
        return a->at(r, pair_columns(attrs.layout, attrs.period, a->cols, c).second);
      });
    case Op::join: {
      Matrix y(rows, cols);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < cols / 2; ++j) {
          const PairColumns pair = pair_columns(attrs.layout, attrs.period, cols, j);
          y.at(r, pair.first) = args[0]->at(r, j);
          y.at(r, pair.second) = args[1]->at(r, j);
        }
      }
      return y;
    }
    case Op::rotate:
      return rotate(attrs, *a, *args[1], *args[2], 1);
    case Op::unrotate:
      return rotate(attrs, *a, *args[1], *args[2], -1);
    case Op::cols:
      return filled(rows, cols, [&](auto r, auto c) { return a->at(r, attrs.lo + c); });
    case Op::rows:
      return filled(rows, cols, [&](auto r, auto c) { return a->at(attrs.lo + r, c); });
    case Op::cat_cols:
      return concatenate(args, rows, cols, true);
    case Op::cat_rows:
      return concatenate(args, rows, cols, false);
    case Op::segment_sum: {
      Matrix y(rows, cols);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < a->cols; ++c) y.at(r, c / attrs.period) += a->at(r, c);
      }
      return y;
    }
    case Op::segment_broadcast:
      return filled(rows, cols, [&](auto r, auto c) { return a->at(r, c / attrs.period); });
    case Op::repeat:
      return filled(rows, cols, [&](auto, auto c) { return a->at(0, c % a->cols); });
    case Op::fold: {
      Matrix y(1, cols);
      for (std::int64_t c = 0; c < a->cols; ++c) y.at(0, c % cols) += a->at(0, c);
      return y;
    }
    case Op::row_sum:
    case Op::row_max:
    case Op::lse:
    case Op::log_sum:
    case Op::pick:
      return reduce_rows(op, attrs, args);
    case Op::col_sum:
      return reduce_columns(*a, 0, a->rows);
    case Op::sum: {
      Matrix y(1, 1);
      for (const double x : a->v) y.v[0] += x;
      return y;
    }
    case Op::onehot:
      return filled(rows, cols, [&](auto r, auto c) {
        return !is_ignored(attrs, a->at(r, 0)) && a->at(r, 0) == static_cast<double>(c) ? 1.0 : 0.0;
      });
    case Op::valid:
      return filled(rows, 1,
                    [&](auto r, auto) { return is_ignored(attrs, a->at(r, 0)) ? 0.0 : 1.0; });
    case Op::matmul:
      return multiply(*a, *args[1], attrs.transpose_a, attrs.transpose_b);
    default:
      throw_error<InternalError>("reference: evaluate: {} computes nothing", name_of(op));
  }
}

}  // namespace

Matrix evaluate(Op op, const Attrs& attrs, std::span<const Matrix* const> args, std::int64_t rows,
                std::int64_t cols, bool tile, Precision precision) {
  Matrix y = compute(op, attrs, args, rows, cols, precision);
  internal_check(y.rows == rows && y.cols == cols,
                 "reference: {}: expected a result [{}, {}], computed [{}, {}]", name_of(op), rows,
                 cols, y.rows, y.cols);
  if (tile && precision.f32) {
    for (double& x : y.v) x = static_cast<float>(x);
  }
  return y;
}

Matrix multiply(const Matrix& a, const Matrix& b, bool transpose_a, bool transpose_b) {
  const std::int64_t rows = transpose_a ? a.cols : a.rows;
  const std::int64_t depth = transpose_a ? a.rows : a.cols;
  const std::int64_t cols = transpose_b ? b.rows : b.cols;
  internal_check((transpose_b ? b.cols : b.rows) == depth,
                 "reference: multiply: inner extents {} and {} differ", depth,
                 transpose_b ? b.cols : b.rows);
  Matrix y(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const double left = transpose_a ? a.at(k, i) : a.at(i, k);
      for (std::int64_t j = 0; j < cols; ++j) {
        y.at(i, j) += left * (transpose_b ? b.at(j, k) : b.at(k, j));
      }
    }
  }
  return y;
}

double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return f32_from_bf16(bf16_from_f32(static_cast<float>(value)));
    case DType::f16:
      return f32_from_f16(f16_from_f32(static_cast<float>(value)));
    case DType::f32:
      return static_cast<float>(value);
    default:
      return value;
  }
}

Matrix partials_of(Op op, const Attrs& attrs, std::span<const Matrix* const> args) {
  const Matrix& x = *args[0];
  const bool over_rows = op == Op::col_sum || op == Op::sum;
  const std::int64_t extent = over_rows ? x.rows : x.cols;
  const std::int64_t granule = over_rows ? kRowGranule : kColumnGranule;
  const std::int64_t granules = (extent + granule - 1) / granule;
  const auto planes = is_online(op) ? 2 : 1;
  Matrix y(granules * planes, over_rows ? x.cols : x.rows);
  for (std::int64_t g = 0; g < granules; ++g) {
    const std::int64_t lo = g * granule, hi = std::min(extent, lo + granule);
    if (over_rows) {
      const Matrix part = reduce_columns(x, lo, hi);
      for (std::int64_t c = 0; c < x.cols; ++c) y.at(g, c) = part.at(0, c);
      continue;
    }
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const LogSum part = reduce_row(op, attrs, args, r, lo, hi);
      y.at(g, r) = op == Op::row_max || is_online(op) ? part.max : part.sum;
      if (is_online(op)) y.at(granules + g, r) = part.sum;
    }
  }
  return y;
}

namespace {

double result_of(Finish finish, const LogSum& all) {
  switch (finish) {
    case Finish::max:
    case Finish::lse_max:
      return all.max;
    case Finish::lse:
      return all.value();
    case Finish::log_sum:
      return all.log_sum();
    default:
      return all.sum;
  }
}

}  // namespace

Matrix finished(const Matrix& partials, Kind kind, Finish finish) {
  const std::int64_t granules = is_online(finish) ? partials.rows / 2 : partials.rows;
  const std::int64_t count = partials.cols;
  Matrix y = kind == Kind::col ? Matrix(count, 1) : Matrix(1, count);
  for (std::int64_t i = 0; i < count; ++i) {
    LogSum all;
    for (std::int64_t g = 0; g < granules; ++g) {
      const double part = partials.at(g, i);
      switch (finish) {
        case Finish::sum:
          all.sum += part;
          break;
        case Finish::max:
          all.max = larger(all.max, part);
          break;
        case Finish::lse:
        case Finish::log_sum:
        case Finish::lse_max:
          all.add(LogSum{part, partials.at(granules + g, i)});
          break;
        case Finish::none:
          throw InternalError("reference: finished: partials without a finish");
      }
    }
    y.v[static_cast<std::size_t>(i)] = result_of(finish, all);
  }
  return y;
}

Matrix read_matrix(const TensorView& view) {
  return filled(view.rows, view.cols, [&](auto r, auto c) { return read_element(view, r, c); });
}

void write_matrix(const TensorView& view, const Matrix& matrix, bool accumulate) {
  internal_check(view.rows == matrix.rows && view.cols == matrix.cols,
                 "reference: write_matrix: expected [{}, {}], computed [{}, {}]", view.rows,
                 view.cols, matrix.rows, matrix.cols);
  for (std::int64_t r = 0; r < view.rows; ++r) {
    for (std::int64_t c = 0; c < view.cols; ++c) {
      const double before = accumulate ? read_element(view, r, c) : 0;
      write_element(view, r, c, accumulate ? before + matrix.at(r, c) : matrix.at(r, c));
    }
  }
}

}  // namespace coda::reference
