// The meaning of every op against closed forms, with NaN, infinities, empty and single extents.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "backend/reference/evaluate.h"
#include "ops/op_table.h"

namespace coda::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Matrix matrix(std::int64_t rows, std::int64_t cols, std::vector<double> v) {
  Matrix m(rows, cols);
  EXPECT_EQ(m.v.size(), v.size());
  m.v = std::move(v);
  return m;
}

Matrix run(Op op, const std::vector<Matrix>& operands, std::int64_t rows, std::int64_t cols,
           const Attrs& attrs = {}, Precision precision = {}) {
  std::vector<const Matrix*> args;
  for (const Matrix& operand : operands) args.push_back(&operand);
  return evaluate(op, attrs, args, rows, cols, true, precision);
}

void expect_same(const Matrix& got, const std::vector<double>& want, double tolerance = 0) {
  ASSERT_EQ(got.v.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got.v[i])) << "element " << i << " is " << got.v[i];
    } else if (std::isinf(want[i]) || tolerance == 0) {
      EXPECT_EQ(got.v[i], want[i]) << "element " << i;
    } else {
      EXPECT_NEAR(got.v[i], want[i], tolerance) << "element " << i;
    }
  }
}

double unary(Op op, double x) { return run(op, {matrix(1, 1, {x})}, 1, 1).v[0]; }
double binary(Op op, double a, double b) {
  return run(op, {matrix(1, 1, {a}), matrix(1, 1, {b})}, 1, 1).v[0];
}

TEST(ReferenceOps, Unary) {
  const double eps = 4 * std::numeric_limits<double>::epsilon();
  EXPECT_EQ(unary(Op::neg, 2), -2);
  EXPECT_NEAR(unary(Op::exp, 1), std::numbers::e, eps);
  EXPECT_NEAR(unary(Op::log, std::numbers::e), 1, eps);
  EXPECT_NEAR(unary(Op::tanh, 0.5), (std::exp(1.0) - 1) / (std::exp(1.0) + 1), eps);
  EXPECT_NEAR(unary(Op::sigmoid, 2), 1 / (1 + std::exp(-2.0)), eps);
  EXPECT_EQ(unary(Op::rsqrt, 4), 0.5);
  EXPECT_NEAR(unary(Op::erf, 1), 0.842700792949715, eps);
}

TEST(ReferenceOps, UnaryOfInfinitiesAndNan) {
  EXPECT_EQ(unary(Op::exp, -kInf), 0);
  EXPECT_EQ(unary(Op::exp, kInf), kInf);
  EXPECT_EQ(unary(Op::log, 0), -kInf);
  EXPECT_TRUE(std::isnan(unary(Op::log, -1)));
  EXPECT_EQ(unary(Op::sigmoid, -kInf), 0);
  EXPECT_EQ(unary(Op::sigmoid, kInf), 1);
  EXPECT_EQ(unary(Op::tanh, kInf), 1);
  EXPECT_EQ(unary(Op::rsqrt, 0), kInf);
  for (const Op op : {Op::neg, Op::exp, Op::log, Op::tanh, Op::sigmoid, Op::rsqrt, Op::erf}) {
    EXPECT_TRUE(std::isnan(unary(op, kNan))) << name_of(op);
  }
}

TEST(ReferenceOps, Binary) {
  EXPECT_EQ(binary(Op::add, 2, 3), 5);
  EXPECT_EQ(binary(Op::sub, 2, 3), -1);
  EXPECT_EQ(binary(Op::mul, 2, 3), 6);
  EXPECT_EQ(binary(Op::div, 3, 2), 1.5);
  EXPECT_EQ(binary(Op::maximum, 2, 3), 3);
  EXPECT_EQ(binary(Op::greater, 2, 3), 0);
  EXPECT_EQ(binary(Op::greater, 3, 2), 1);
  EXPECT_EQ(binary(Op::equal, 2, 2), 1);
  EXPECT_EQ(binary(Op::equal, 0.0, -0.0), 1);
}

TEST(ReferenceOps, BinaryOfInfinitiesAndNan) {
  EXPECT_EQ(binary(Op::div, 1, 0), kInf);
  EXPECT_TRUE(std::isnan(binary(Op::div, 0, 0)));
  EXPECT_TRUE(std::isnan(binary(Op::sub, kInf, kInf)));
  EXPECT_TRUE(std::isnan(binary(Op::mul, kInf, 0)));
  EXPECT_TRUE(std::isnan(binary(Op::maximum, kNan, 1)));
  EXPECT_TRUE(std::isnan(binary(Op::maximum, 1, kNan)));
  EXPECT_EQ(binary(Op::maximum, -kInf, -kInf), -kInf);
  EXPECT_EQ(binary(Op::greater, kNan, 1), 0);
  EXPECT_EQ(binary(Op::equal, kNan, kNan), 0);
}

TEST(ReferenceOps, BroadcastingGoesByKindAlsoWhenSquare) {
  const Matrix tile = matrix(2, 2, {1, 2, 3, 4});
  expect_same(run(Op::mul, {tile, matrix(2, 1, {10, 100})}, 2, 2), {10, 20, 300, 400});
  expect_same(run(Op::mul, {tile, matrix(1, 2, {10, 100})}, 2, 2), {10, 200, 30, 400});
  expect_same(run(Op::add, {matrix(1, 1, {1}), tile}, 2, 2), {2, 3, 4, 5});
  expect_same(run(Op::broadcast, {matrix(2, 1, {1, 2})}, 2, 2), {1, 1, 2, 2});
  expect_same(run(Op::broadcast, {matrix(1, 2, {1, 2})}, 2, 2), {1, 2, 1, 2});
}

TEST(ReferenceOps, CastRoundsToNearestEvenInF32OnlyAndIsIdempotent) {
  Attrs attrs;
  attrs.dtype = DType::bf16;
  const Matrix x = matrix(1, 4, {1.00390625, 1.01171875, kNan, 3.4e38});
  const Precision f32{.f32 = true};
  const Matrix once = run(Op::cast, {x}, 1, 4, attrs, f32);
  expect_same(once, {1.0, 1.015625, kNan, kInf});
  expect_same(run(Op::cast, {once}, 1, 4, attrs, f32), once.v);
  expect_same(run(Op::cast, {x}, 1, 4, attrs), x.v);
}

TEST(ReferenceOps, F32PrecisionRoundsTiles) {
  const Precision f32{.f32 = true};
  const double third = static_cast<double>(1.0f / 3.0f);
  expect_same(run(Op::div, {matrix(1, 1, {1}), matrix(1, 1, {3})}, 1, 1, {}, f32), {third});
}

TEST(ReferenceOps, Pairs) {
  const Matrix x = matrix(1, 8, {0, 1, 2, 3, 4, 5, 6, 7});
  Attrs interleaved, halves, groups;
  halves.layout = groups.layout = PairLayout::halves;
  groups.period = 4;
  expect_same(run(Op::first_of_pair, {x}, 1, 4, interleaved), {0, 2, 4, 6});
  expect_same(run(Op::second_of_pair, {x}, 1, 4, interleaved), {1, 3, 5, 7});
  expect_same(run(Op::first_of_pair, {x}, 1, 4, halves), {0, 1, 2, 3});
  expect_same(run(Op::second_of_pair, {x}, 1, 4, halves), {4, 5, 6, 7});
  expect_same(run(Op::first_of_pair, {x}, 1, 4, groups), {0, 1, 4, 5});
  expect_same(run(Op::second_of_pair, {x}, 1, 4, groups), {2, 3, 6, 7});
  for (const Attrs& attrs : {interleaved, halves, groups}) {
    const Matrix first = run(Op::first_of_pair, {x}, 1, 4, attrs);
    const Matrix second = run(Op::second_of_pair, {x}, 1, 4, attrs);
    expect_same(run(Op::join, {first, second}, 1, 8, attrs), x.v);
  }
}

TEST(ReferenceOps, RotateByAQuarterTurnAndBack) {
  // Two heads of 4 columns; the first pair turns by 1/4 a position, the second stands still.
  const Matrix x = matrix(2, 8, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8});
  const Matrix pos = matrix(2, 1, {0, 1}), freq = matrix(1, 4, {0.25, 0, 0, 0});
  Attrs attrs;
  attrs.layout = PairLayout::halves;
  attrs.period = 4;
  const Matrix y = run(Op::rotate, {x, pos, freq}, 2, 8, attrs);
  expect_same(y, {1, 2, 3, 4, 5, 6, 7, 8, -3, 2, 1, 4, -7, 6, 5, 8}, 1e-14);
  expect_same(run(Op::unrotate, {y, pos, freq}, 2, 8, attrs), x.v, 1e-14);
  attrs.layout = PairLayout::interleaved;
  const Matrix z = run(Op::rotate, {x, pos, freq}, 2, 8, attrs);
  expect_same(z, {1, 2, 3, 4, 5, 6, 7, 8, -2, 1, 3, 4, -6, 5, 7, 8}, 1e-14);
}

TEST(ReferenceOps, RotateIsExactAtLargePositions) {
  // frequency 1 / (2 pi) turns as a sum of two floats, position 131071
  const double exact = 1 / (2 * std::numbers::pi);
  const double hi = static_cast<float>(exact), lo = static_cast<float>(exact - hi);
  const Matrix x = matrix(1, 2, {1, 0}), pos = matrix(1, 1, {131071});
  Attrs attrs;
  attrs.layout = PairLayout::halves;
  attrs.period = 2;
  const Matrix y = run(Op::rotate, {x, pos, matrix(1, 2, {hi, lo})}, 1, 2, attrs);
  // 1e-7 turns are 6.3e-7 radians.
  expect_same(y, {std::cos(131071.0), std::sin(131071.0)}, 6.3e-7);
}

TEST(ReferenceOps, AddressingAndSegments) {
  const Matrix x = matrix(2, 4, {0, 1, 2, 3, 4, 5, 6, 7});
  Attrs range;
  range.lo = 1;
  range.hi = 3;
  expect_same(run(Op::cols, {x}, 2, 2, range), {1, 2, 5, 6});
  range.hi = 2;
  expect_same(run(Op::rows, {x}, 1, 4, range), {4, 5, 6, 7});
  const Matrix y = matrix(2, 1, {8, 9});
  expect_same(run(Op::cat_cols, {x, y}, 2, 5), {0, 1, 2, 3, 8, 4, 5, 6, 7, 9});
  expect_same(run(Op::cat_rows, {y, y}, 4, 1), {8, 9, 8, 9});
  Attrs period;
  period.period = 2;
  expect_same(run(Op::segment_sum, {x}, 2, 2, period), {1, 5, 9, 13});
  expect_same(run(Op::segment_broadcast, {y}, 2, 2, period), {8, 8, 9, 9});
  Attrs times;
  times.hi = 2;
  const Matrix row = matrix(1, 2, {1, 2});
  expect_same(run(Op::repeat, {row}, 1, 4, times), {1, 2, 1, 2});
  expect_same(run(Op::fold, {matrix(1, 4, {1, 2, 3, 4})}, 1, 2, times), {4, 6});
}

TEST(ReferenceOps, Reductions) {
  const Matrix x = matrix(2, 3, {1, 2, 3, 4, 5, 6});
  expect_same(run(Op::row_sum, {x}, 2, 1), {6, 15});
  expect_same(run(Op::row_max, {x}, 2, 1), {3, 6});
  expect_same(run(Op::col_sum, {x}, 1, 3), {5, 7, 9});
  const double lse = std::log(std::exp(1) + std::exp(2) + std::exp(3));
  expect_same(run(Op::lse, {x}, 2, 1), {lse, lse + 3}, 1e-14);
  expect_same(run(Op::log_sum, {x}, 2, 1), {lse - 3, lse - 3}, 1e-14);
  expect_same(run(Op::sum, {matrix(3, 1, {1, 2, 3})}, 1, 1), {6});
}

TEST(ReferenceOps, ReductionsOfInfinitiesAndNan) {
  const Matrix x = matrix(4, 2, {-kInf, -kInf, kInf, 1, kNan, 1, -kInf, 2});
  expect_same(run(Op::row_max, {x}, 4, 1), {-kInf, kInf, kNan, 2});
  expect_same(run(Op::lse, {x}, 4, 1), {-kInf, kInf, kNan, 2});
  expect_same(run(Op::log_sum, {x}, 4, 1), {0, 0, kNan, 0});
  expect_same(run(Op::row_sum, {x}, 4, 1), {-kInf, kInf, kNan, -kInf});
}

TEST(ReferenceOps, LogSumExpKeepsItsSmallPartBesideALargeMaximum) {
  // A logit offset of 1e6 leaves log 2 to the sum: 1e6 + 0.693 would round to 1e6 + 0.6875 in fp32.
  const Matrix x = matrix(1, 2, {1e6, 1e6});
  const Precision f32{.f32 = true};
  std::vector<const Matrix*> args = {&x};
  const Matrix lse = evaluate(Op::lse, {}, args, 1, 1, false, f32);
  EXPECT_NEAR(lse.v[0] - 1e6, std::log(2.0), 1e-9);
}

TEST(ReferenceOps, EmptyRowsAndColumns) {
  const Matrix no_columns(3, 0), no_rows(0, 3);
  expect_same(run(Op::row_sum, {no_columns}, 3, 1), {0, 0, 0});
  expect_same(run(Op::row_max, {no_columns}, 3, 1), {-kInf, -kInf, -kInf});
  expect_same(run(Op::lse, {no_columns}, 3, 1), {-kInf, -kInf, -kInf});
  expect_same(run(Op::log_sum, {no_columns}, 3, 1), {0, 0, 0});
  expect_same(run(Op::col_sum, {no_rows}, 1, 3), {0, 0, 0});
  expect_same(run(Op::row_sum, {no_rows}, 0, 1), {});
  expect_same(run(Op::sum, {Matrix(0, 1)}, 1, 1), {0});
  expect_same(run(Op::mul, {no_rows, Matrix(0, 1)}, 0, 3), {});
  expect_same(run(Op::mul, {Matrix(0, 1), matrix(1, 1, {2})}, 0, 1), {});
}

TEST(ReferenceOps, Targets) {
  const Matrix x = matrix(3, 2, {1, 2, kNan, 4, 5, 6}), targets = matrix(3, 1, {1, -100, 0});
  expect_same(run(Op::pick, {x, targets}, 3, 1), {2, 0, 5});
  expect_same(run(Op::onehot, {targets}, 3, 2), {0, 1, 0, 0, 1, 0});
  expect_same(run(Op::valid, {targets}, 3, 1), {1, 0, 1});
  Attrs zero_is_ignored;
  zero_is_ignored.ignore_index = 0;
  expect_same(run(Op::pick, {x, matrix(3, 1, {1, 1, 0})}, 3, 1, zero_is_ignored), {2, 4, 0});
  expect_same(run(Op::onehot, {matrix(1, 1, {0})}, 1, 2, zero_is_ignored), {0, 0});
}

TEST(ReferenceOps, Matmul) {
  const Matrix a = matrix(2, 3, {1, 2, 3, 4, 5, 6}), b = matrix(2, 3, {1, 0, 1, 0, 1, 0});
  expect_same(multiply(a, b, false, true), {4, 2, 10, 5});
  expect_same(multiply(a, matrix(3, 1, {1, 1, 1}), false, false), {6, 15});
  expect_same(multiply(a, b, true, false), {1, 4, 1, 2, 5, 2, 3, 6, 3});
  expect_same(multiply(Matrix(2, 0), Matrix(2, 0), false, true), {0, 0, 0, 0});
  expect_same(multiply(Matrix(0, 2), Matrix(0, 3), true, false), {0, 0, 0, 0, 0, 0});
}

TEST(Partials, AreCutByTheReducedValuesOwnColumns) {
  Matrix x(2, 130);
  for (std::int64_t c = 0; c < 130; ++c) {
    x.at(0, c) = 1;
    x.at(1, c) = static_cast<double>(c);
  }
  const Matrix* args[] = {&x};
  const Matrix sums = partials_of(Op::row_sum, {}, args);
  ASSERT_EQ(sums.rows, 3);
  ASSERT_EQ(sums.cols, 2);
  expect_same(sums, {64, 2016, 64, 6112, 2, 257});
  expect_same(finished(sums, Kind::col, Finish::sum), {130, 8385});
  const Matrix top = partials_of(Op::row_max, {}, args);
  expect_same(top, {1, 63, 1, 127, 1, 129});
  expect_same(finished(top, Kind::col, Finish::max), {1, 129});
}

TEST(Partials, OfLogSumExpAreMaximaThenSums) {
  Matrix x(1, 65, -kInf);
  const Matrix* args[] = {&x};
  Matrix parts = partials_of(Op::lse, {}, args);
  expect_same(parts, {-kInf, -kInf, 0, 0});
  expect_same(finished(parts, Kind::col, Finish::lse), {-kInf});
  x.at(0, 64) = 3;
  parts = partials_of(Op::lse, {}, args);
  expect_same(parts, {-kInf, 3, 0, 1});
  expect_same(finished(parts, Kind::col, Finish::lse), {3});
  x.at(0, 0) = 3;
  expect_same(finished(partials_of(Op::lse, {}, args), Kind::col, Finish::lse), {3 + std::log(2.0)},
              1e-15);
  parts = partials_of(Op::log_sum, {}, args);
  expect_same(parts, partials_of(Op::lse, {}, args).v);
  expect_same(finished(parts, Kind::col, Finish::lse_max), {3});
  expect_same(finished(parts, Kind::col, Finish::log_sum), {std::log(2.0)}, 1e-15);
  x.at(0, 1) = kNan;
  parts = partials_of(Op::lse, {}, args);
  for (const Finish finish : {Finish::lse, Finish::lse_max, Finish::log_sum})
    expect_same(finished(parts, Kind::col, finish), {kNan});
}

TEST(Partials, OfColumnsAreCutByRows) {
  const Matrix x(129, 2, 1);
  const Matrix* args[] = {&x};
  const Matrix parts = partials_of(Op::col_sum, {}, args);
  expect_same(parts, {128, 128, 1, 1});
  expect_same(finished(parts, Kind::row, Finish::sum), {129, 129});
  const Matrix none(0, 2);
  const Matrix* no_rows[] = {&none};
  expect_same(finished(partials_of(Op::col_sum, {}, no_rows), Kind::row, Finish::sum), {0, 0});
}

TEST(ReferenceOps, EveryOpThatComputesHasADefinition) {
  // Ops of memory, inputs and opaque nodes compute nothing; all others are named in this file or
  // differ from one that is by a sign.
  for (const OpRow& row : op_table()) {
    const bool computes = row.op_class != OpClass::leaf && row.op_class != OpClass::memory &&
                          row.op_class != OpClass::opaque;
    if (!computes || row.arity < 1) continue;
    Attrs attrs;
    attrs.hi = 2;
    attrs.period = 2;
    attrs.layout = PairLayout::halves;
    const Matrix tile = matrix(2, 2, {1, 0, 0, 1}), col = matrix(2, 1, {0, 1}),
                 row_vector = matrix(1, 2, {0, 0});
    std::vector<Matrix> operands(static_cast<std::size_t>(row.arity), tile);
    std::int64_t rows = 2, cols = 2;
    switch (row.op) {
      case Op::rotate:
      case Op::unrotate:
        operands = {tile, col, row_vector};
        break;
      case Op::first_of_pair:
      case Op::second_of_pair:
      case Op::segment_sum:
      case Op::row_sum:
      case Op::row_max:
      case Op::lse:
      case Op::log_sum:
        cols = 1;
        break;
      case Op::pick:
        operands = {tile, col};
        cols = 1;
        break;
      case Op::onehot:
      case Op::valid:
        operands = {col};
        cols = row.op == Op::onehot ? 2 : 1;
        break;
      case Op::join:
        operands = {col, col};
        break;
      case Op::segment_broadcast:
        cols = 4;
        break;
      case Op::repeat:
      case Op::fold:
        operands = {row_vector};
        rows = 1;
        cols = row.op == Op::repeat ? 4 : 1;
        break;
      case Op::col_sum:
        rows = 1;
        break;
      case Op::sum:
        rows = cols = 1;
        break;
      default:
        break;
    }
    EXPECT_NO_THROW(run(row.op, operands, rows, cols, attrs)) << row.name;
  }
}

}  // namespace
}  // namespace coda::reference
