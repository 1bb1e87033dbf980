// Each operator against its closed form, its derived gradient against finite differences.

#include "operator_case.h"

namespace coda::test {
namespace {

/// Ragged sizes, M of 0 and 1, and M == N.
struct Size {
  std::int64_t tokens, cols;
};
const Size kSizes[] = {{7, 10}, {1, 2}, {0, 6}, {12, 12}, {130, 66}};

double silu(double x) { return x / (1 + std::exp(-x)); }

/// y as a function of (row, column), compared with what the graph gives.
void expect_value(OperatorCase& c, const std::function<double(std::int64_t, std::int64_t)>& y) {
  const Matrix got = c.evaluate();
  Matrix want(got.rows, got.cols);
  for (std::int64_t r = 0; r < want.rows; ++r) {
    for (std::int64_t col = 0; col < want.cols; ++col) want.at(r, col) = y(r, col);
  }
  EXPECT_LE(difference(got, want), 1e-13);
}

TEST(Linear, ValueAndGradients) {
  for (const Size size : kSizes) {
    OperatorCase c(size.tokens);
    const Tensor x = c.tile("x", 5), w = c.weight("w", size.cols, 5), b = c.row("b", size.cols);
    c.result(linear(x, w, b));
    expect_value(c, [&](std::int64_t r, std::int64_t n) {
      double total = c.value("b").at(0, n);
      for (std::int64_t k = 0; k < 5; ++k) total += c.value("x").at(r, k) * c.value("w").at(n, k);
      return total;
    });
    c.check_differences();
    c.check_programs();
  }
}

TEST(RmsNorm, ValueAndGradients) {
  for (const Size size : kSizes) {
    OperatorCase c(size.tokens);
    const double eps = 1e-5;
    const Tensor x = c.tile("x", size.cols, 2), w = c.row("w", size.cols);
    c.result(rms_norm(x, w, eps));
    expect_value(c, [&](std::int64_t r, std::int64_t n) {
      double squares = 0;
      for (std::int64_t k = 0; k < size.cols; ++k) squares += std::pow(c.value("x").at(r, k), 2);
      const double mean = squares / static_cast<double>(size.cols);
      return c.value("x").at(r, n) * c.value("w").at(0, n) / std::sqrt(mean + eps);
    });
    c.check_differences();
    c.check_programs();
  }
}

TEST(RmsNorm, ARowOfZerosHasAFiniteNorm) {
  OperatorCase c(2);
  const Tensor x = c.tile("x", 8), w = c.row("w", 8);
  for (std::int64_t k = 0; k < 8; ++k) c.value("x").at(1, k) = 0;
  c.result(rms_norm(x, w, 1e-6));
  EXPECT_EQ(c.evaluate().at(1, 3), 0);
  // d_x = d_y * w / sqrt(eps) there.
  EXPECT_NEAR(c.gradients()[0].at(1, 3) / (c.value("d_y").at(1, 3) * c.value("w").at(0, 3)), 1e3,
              1e-9);
}

TEST(RmsNorm, NoEpsIsAnError) {
  Graph graph;
  EXPECT_THROW(rms_norm(graph.tile("x", 4), graph.row("w", 4), 0.0), UsageError);
  EXPECT_THROW(rms_norm(graph.tile("x", 4), graph.row("v", 5), 1e-6), UsageError);
  EXPECT_THROW(rms_norm(Tensor(), graph.row("w", 4), 1e-6), UsageError);
}

TEST(Activations, ValueAndGradients) {
  struct Activation {
    Tensor (*graph)(Tensor);
    double (*scalar)(double);
  };
  const Activation activations[] = {
      {coda::silu, silu},
      {coda::gelu, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2)); }},
      {coda::gelu_tanh, [](double x) {
         const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
         return 0.5 * x * (1 + std::tanh(inner));
       }}};
  for (const Activation& a : activations) {
    for (const Size size : kSizes) {
      OperatorCase c(size.tokens);
      c.result(a.graph(c.tile("x", size.cols, 3)));
      expect_value(c,
                   [&](std::int64_t r, std::int64_t n) { return a.scalar(c.value("x").at(r, n)); });
      c.check_differences();
      c.check_programs();
    }
  }
}

TEST(Swiglu, ValueAndGradientsOfBothForms) {
  for (const Size size : kSizes) {
    OperatorCase two(size.tokens);
    const Tensor gate = two.tile("gate", size.cols, 2), up = two.tile("up", size.cols);
    two.result(swiglu(gate, up));
    expect_value(two, [&](std::int64_t r, std::int64_t n) {
      return silu(two.value("gate").at(r, n)) * two.value("up").at(r, n);
    });
    two.check_differences();
    two.check_programs();
    // The whole width in halves, interleaved, and halves of groups of 4.
    for (const Pairs pairs : {Pairs::halves(), Pairs::interleaved(), Pairs::halves(4)}) {
      const bool whole = pairs.layout == PairLayout::halves && pairs.period == 0;
      const std::int64_t half = whole ? size.cols : pairs.period / 2;
      OperatorCase one(size.tokens);
      one.result(swiglu(one.tile("z", 2 * size.cols, 2), pairs));
      expect_value(one, [&](std::int64_t r, std::int64_t n) {
        const std::int64_t first = n / half * 2 * half + n % half;
        return silu(one.value("z").at(r, first)) * one.value("z").at(r, first + half);
      });
      one.check_differences();
      one.check_programs();
    }
  }
}

TEST(Rope, ValueAndGradientsInBothLayouts) {
  for (const PairLayout layout : {PairLayout::halves, PairLayout::interleaved}) {
    for (const std::int64_t dim : {2, 6, 16}) {
      for (const DType dtype : {DType::i32, DType::i64}) {
        const std::int64_t tokens = 9, heads = 3, half = dim / 2;
        OperatorCase c(tokens);
        const std::vector<std::int64_t> positions{0, 1, 2, 3, 40, 41, 2047, 0, 1};
        const Tensor x = c.tile("x", heads * dim);
        const Tensor pos = c.integers("pos", positions, dtype);
        c.result(rope(x, pos, c.frequencies("freq", rope_frequencies(dim, 1e4)), layout));
        expect_value(c, [&](std::int64_t r, std::int64_t n) {
          const std::int64_t head = n / dim * dim, at = n % dim;
          const bool halves = layout == PairLayout::halves;
          const std::int64_t pair = halves ? at % half : at / 2;
          const bool second = halves ? at >= half : at % 2 == 1;
          const std::int64_t first = head + (halves ? pair : 2 * pair);
          const double x1 = c.value("x").at(r, first);
          const double x2 = c.value("x").at(r, first + (halves ? half : 1));
          // The same (hi + lo) turns as the graph reads, so only the rotation is tested here.
          const auto freq = [&](std::int64_t i) { return c.value("freq").at(0, i); };
          const double turns = static_cast<double>(positions[static_cast<std::size_t>(r)]) *
                               (freq(pair) + freq(half + pair));
          const double angle = 2 * std::acos(-1.0) * (turns - std::floor(turns));
          return second ? x2 * std::cos(angle) + x1 * std::sin(angle)
                        : x1 * std::cos(angle) - x2 * std::sin(angle);
        });
        c.check_differences();
        c.check_programs();
      }
    }
  }
}

TEST(Rope, AnglesAreRightFarOut) {
  // Against long double, up to 131071: 1e-6 rad. transformers' fp32 is off by 4e-3 there.
  const std::int64_t dim = 128;
  for (const double theta : {1e4, 5e5}) {
    const std::vector<float> freq = rope_frequencies(dim, theta);
    for (const std::int64_t position : {1, 2047, 65535, 131071}) {
      OperatorCase c(1);
      const Tensor x = c.tile("x", dim);
      for (std::int64_t n = 0; n < dim; ++n) c.value("x").at(0, n) = n < dim / 2 ? 1 : 0;
      c.result(rope(x, c.integers("pos", {position}, DType::i32), c.frequencies("freq", freq)));
      const Matrix y = c.evaluate();
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        const long double angle =
            static_cast<long double>(position) *
            std::pow(static_cast<long double>(theta),
                     -2 * static_cast<long double>(i) / static_cast<long double>(dim));
        EXPECT_NEAR(y.at(0, i), static_cast<double>(std::cos(angle)), 1e-6);
        EXPECT_NEAR(y.at(0, i + dim / 2), static_cast<double>(std::sin(angle)), 1e-6);
        if (position >= 2048) continue;
        // Close in, fp32 angles as transformers has them differ by their own rounding only:
        // |angle| * 2^-23 (frequency and product), 2.5e-4 at most.
        const float theirs = static_cast<float>(position) *
                             (1.0f / std::pow(static_cast<float>(theta),
                                              static_cast<float>(2 * i) / static_cast<float>(dim)));
        EXPECT_NEAR(y.at(0, i), std::cos(theirs), 2048 * 0x1p-23 + 1e-6);
      }
    }
  }
}

TEST(Rope, Llama3Scaling) {
  // Of wavelengths above 8192 / 1 a factor of 8, below 8192 / 4 nothing, in between a blend.
  const std::int64_t dim = 128;
  const double theta = 5e5;
  const std::vector<float> plain = rope_frequencies(dim, theta);
  const std::vector<float> scaled = rope_frequencies(dim, theta, Llama3Rope{});
  int kept = 0, divided = 0, blended = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double before = static_cast<double>(plain[i]) + plain[64 + i];
    const double after = static_cast<double>(scaled[i]) + scaled[64 + i];
    const double wavelength = 1 / before;  // positions a turn
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(after, before);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_NEAR(after / before, 1.0 / 8, 1e-12);
      ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      EXPECT_NEAR(after / before, (1 - smooth) / 8 + smooth, 1e-12);
      ++blended;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(divided, 20);
  EXPECT_GT(blended, 2);
}

TEST(Rope, BadSizesAreErrors) {
  EXPECT_THROW(rope_frequencies(7, 1e4), UsageError);
  EXPECT_THROW(rope_frequencies(0, 1e4), UsageError);
  EXPECT_THROW(rope_frequencies(8, -1), UsageError);
  Graph graph;
  const Tensor pos = graph.col("pos", DType::i32), freq = graph.row("freq", 8);
  EXPECT_THROW(rope(graph.tile("x", 12), pos, freq), UsageError);
  EXPECT_THROW(rope(graph.tile("x", 12), pos, Tensor()), UsageError);
}

}  // namespace
}  // namespace coda::test
