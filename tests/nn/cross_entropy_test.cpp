// Cross-entropy against its definition: every reduction, ignored rows, offsets, both index types.

#include "operator_case.h"

namespace coda::test {
namespace {

struct HeadCase {
  std::int64_t vocab;
  std::vector<std::int64_t> targets;
  DType dtype = DType::i32;
  double offset = 0;
  double spread = 2;
};

void build(OperatorCase& c, const HeadCase& h, Reduction reduction) {
  const Tensor logits = c.tile("logits", h.vocab, h.spread, h.offset);
  c.result(cross_entropy(logits, c.integers("targets", h.targets, h.dtype), reduction));
}

std::int64_t tokens_of(const HeadCase& h) { return static_cast<std::int64_t>(h.targets.size()); }

/// log-sum-exp of a row, in long double.
long double lse_of(const Matrix& logits, std::int64_t r) {
  long double largest = -HUGE_VALL, total = 0;
  for (std::int64_t v = 0; v < logits.cols; ++v) {
    largest = std::max<long double>(largest, logits.at(r, v));
  }
  for (std::int64_t v = 0; v < logits.cols; ++v) total += std::exp(logits.at(r, v) - largest);
  return largest + std::log(total);
}

const HeadCase kCases[] = {
    {97, {3, 96, 0, -100, 50, -100, 7}},
    {97, {3, 96, 0, -100, 50, -100, 7}, DType::i64},
    {5, {4}},
    {8, {0, 1, 2, 3, 4, 5, 6, 7}},  // M == V
    {50257, {50256, -100, 0}},
    {97, {1, 2, 3}, DType::i32, 1e6},
    {97, {1, -100, 3}, DType::i64, -1e6},
    {97, {}},
};

TEST(CrossEntropy, ValueAndGradientOfEveryReduction) {
  for (const HeadCase& h : kCases) {
    for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
      if (h.targets.empty() && reduction == Reduction::mean) continue;  // NaN: below
      OperatorCase c(tokens_of(h));
      build(c, h, reduction);
      const Matrix& logits = c.value("logits");
      const double count = static_cast<double>(
          std::count_if(h.targets.begin(), h.targets.end(), [](auto t) { return t != -100; }));
      Matrix rows(tokens_of(h), 1), d_logits(tokens_of(h), h.vocab);
      double total = 0;
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        const std::int64_t target = h.targets[static_cast<std::size_t>(r)];
        if (target == -100) continue;
        const long double lse = lse_of(logits, r);
        rows.at(r, 0) = static_cast<double>(lse - logits.at(r, target));
        total += rows.at(r, 0);
        const Matrix& d = c.value("d_y");
        const double upstream = reduction == Reduction::none  ? d.at(r, 0)
                                : reduction == Reduction::sum ? d.at(0, 0)
                                                              : d.at(0, 0) / count;
        for (std::int64_t v = 0; v < h.vocab; ++v) {
          const double p = static_cast<double>(std::exp(logits.at(r, v) - lse));
          d_logits.at(r, v) = upstream * (p - (v == target ? 1 : 0));
        }
      }
      const Matrix got = c.evaluate();
      // In double, a logit of 1e6 carries 1e6 * 2^-53 = 1.1e-10.
      const double tolerance = h.offset == 0 ? 1e-13 : 1e-9;
      if (reduction == Reduction::none) {
        EXPECT_LE(difference(got, rows), tolerance);
      } else {
        EXPECT_NEAR(got.at(0, 0), reduction == Reduction::sum ? total : total / count,
                    tolerance * std::max(1.0, total));
      }
      EXPECT_LE(difference(c.gradients()[0], d_logits), tolerance);
      c.check_programs();
    }
  }
}

TEST(CrossEntropy, NothingThatCountsGivesNaNAndGradientsOfZero) {
  for (const std::vector<std::int64_t>& targets :
       {std::vector<std::int64_t>{-100, -100, -100}, std::vector<std::int64_t>{}}) {
    OperatorCase c(static_cast<std::int64_t>(targets.size()));
    build(c, {11, targets}, Reduction::mean);
    EXPECT_TRUE(std::isnan(c.evaluate().at(0, 0)));
    const Matrix gradient = c.gradients()[0];
    for (const double g : gradient.v) EXPECT_EQ(g, 0);
    const auto backend = make_reference_backend(DType::f32);
    for (const bool fuse : {true, false}) {
      CompileOptions options;
      options.fuse = fuse;
      const std::vector<Matrix> got = c.run(*backend, options, DType::f32);
      EXPECT_TRUE(std::isnan(got[0].at(0, 0)));
      for (const double g : got[1].v) EXPECT_EQ(g, 0);
    }
    OperatorCase sum(static_cast<std::int64_t>(targets.size()));
    build(sum, {11, targets}, Reduction::sum);
    EXPECT_EQ(sum.evaluate().at(0, 0), 0);
  }
}

TEST(CrossEntropy, AnotherIgnoreIndex) {
  OperatorCase c(3);
  const Tensor logits = c.tile("logits", 6);
  c.result(
      cross_entropy(logits, c.integers("targets", {1, -1, 2}, DType::i64), Reduction::none, -1));
  EXPECT_EQ(c.evaluate().at(1, 0), 0);
  EXPECT_GT(c.evaluate().at(0, 0), 0);
}

TEST(CrossEntropy, FloatTargetsAreAnError) {
  Graph graph;
  EXPECT_THROW(cross_entropy(graph.tile("logits", 6), graph.col("targets")), UsageError);
}

}  // namespace
}  // namespace coda::test
