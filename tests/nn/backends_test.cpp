// Operators on the backends in fp32: against the math in double on the same fp32 inputs.

#include "operator_case.h"

namespace coda::test {
namespace {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

std::vector<NamedBackend> backends() {
  std::vector<NamedBackend> all;
  all.push_back({"reference", make_reference_backend(DType::f32)});
  all.push_back({"cpu", make_cpu_backend(2)});
  return all;
}

/// Of loss and softmax in fp32, whatever the offset, which z - max takes away exactly: 97 positive
/// terms summed by granules and vectors (13 additions deep), e^x and ln of a few ulp each, and two
/// subtractions, in units of 2^-24: 1.2e-6.
constexpr double kLogSoftmax = 20 * 0x1p-24;

TEST(Backends, CrossEntropyAtOffsets) {
  for (const NamedBackend& b : backends()) {
    for (const double offset : {0.0, 1e3, -1e3, 1e6, -1e6}) {
      for (const bool fuse : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, offset {}, fuse {}", b.name, offset, fuse));
        OperatorCase c(5);
        const Tensor logits = c.tile("logits", 97, 2, offset);
        c.result(cross_entropy(logits, c.integers("targets", {1, -100, 96, 0, 40}, DType::i64),
                               Reduction::none));
        c.round_inputs();
        CompileOptions options;
        options.fuse = fuse;
        const std::vector<Matrix> got = c.run(*b.backend, options, DType::f32);
        EXPECT_LE(difference(got[0], c.evaluate()), kLogSoftmax);
        EXPECT_LE(difference(got[1], c.gradients()[0]), 2 * kLogSoftmax);  // |d_y| < 2
      }
    }
  }
}

double largest(const Matrix& m) {
  double most = 0;
  for (const double x : m.v) most = std::max(most, std::abs(x));
  return most;
}

double largest_error(const Matrix& got, const Matrix& want) {
  double worst = 0;
  for (std::size_t i = 0; i < want.v.size(); ++i) {
    const double error = std::abs(got.v[i] - want.v[i]);
    worst = error <= worst ? worst : std::isnan(error) ? HUGE_VAL : error;
  }
  return worst;
}

/// A head whose logits are `offset` and some steps of a grid, so that their product is exact in
/// fp32. In bf16 they are rounded to multiples of 4096, and the loss is of those.
void check_head_at_offset(Backend& backend, DType dtype, double offset, bool fuse) {
  const std::int64_t tokens = 5, vocab = 97, k = 4;
  const double step = dtype == DType::f32 ? 0x1p-4 : 256;
  OperatorCase c(tokens), of_logits(tokens);
  const Tensor h = c.tile("h", k, 4), w = c.weight("w", vocab, k);
  const std::vector<std::int64_t> targets{1, -100, 96, 0, 40};
  c.result(
      cross_entropy(linear(h, w), c.integers("targets", targets, DType::i64), Reduction::none));
  of_logits.result(cross_entropy(of_logits.tile("z", vocab),
                                 of_logits.integers("targets", targets, DType::i64),
                                 Reduction::none));
  c.round_inputs();
  Matrix &hs = c.value("h"), &ws = c.value("w"), &z = of_logits.value("z");
  for (double& x : hs.v) x = step * std::round(x);
  for (double& x : ws.v) x = std::round(8 * x);  // its spread was 1 / 2
  for (std::int64_t r = 0; r < tokens; ++r) hs.at(r, 0) = offset;
  for (std::int64_t v = 0; v < vocab; ++v) ws.at(v, 0) = 1;
  for (std::int64_t r = 0; r < tokens; ++r)
    for (std::int64_t v = 0; v < vocab; ++v) {
      z.at(r, v) = 0;
      for (std::int64_t i = 0; i < k; ++i) z.at(r, v) += hs.at(r, i) * ws.at(v, i);
      ASSERT_EQ(z.at(r, v), static_cast<float>(z.at(r, v)));
      z.at(r, v) = reference::rounded(z.at(r, v), dtype);
    }
  of_logits.value("d_y") = c.value("d_y");
  const Matrix d_z = of_logits.gradients()[0];
  Matrix d_h(tokens, k), d_w(vocab, k);
  for (std::int64_t r = 0; r < tokens; ++r)
    for (std::int64_t v = 0; v < vocab; ++v)
      for (std::int64_t i = 0; i < k; ++i) {
        d_h.at(r, i) += d_z.at(r, v) * ws.at(v, i);
        d_w.at(v, i) += d_z.at(r, v) * hs.at(r, i);
      }
  CompileOptions options;
  options.fuse = fuse;
  options.dtype = dtype;
  const std::vector<Matrix> got = c.run(backend, options, DType::f32);
  EXPECT_LE(difference(got[0], of_logits.evaluate()), kLogSoftmax);
  // A row of |d_z| sums to at most 2 |d_y|, a column to |d_y| a row. d_z is rounded once to bf16,
  // and products sum up to 97 terms.
  const double relative = kLogSoftmax + 97 * 0x1p-24 + (dtype == DType::f32 ? 0 : 0x1p-9);
  const double d_y = largest(c.value("d_y"));
  EXPECT_LE(largest_error(got[1], d_h), relative * 2 * d_y * largest(ws));
  EXPECT_LE(largest_error(got[2], d_w), relative * tokens * d_y * largest(hs));
}

TEST(Backends, HeadAtOffsets) {
  for (const NamedBackend& b : backends())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const double offset : {0.0, 999424.0, -999424.0})  // 244 * 4096
        for (const bool fuse : {true, false}) {
          SCOPED_TRACE(
              fmt::format("{}, {}, offset {}, fuse {}", b.name, name_of(dtype), offset, fuse));
          check_head_at_offset(*b.backend, dtype, offset, fuse);
        }
}

TEST(Backends, TargetsOutOfRangeAreErrors) {
  for (const NamedBackend& b : backends()) {
    for (const DType dtype : {DType::i32, DType::i64}) {
      for (const std::int64_t vocab : {97, 50257}) {
        for (const std::int64_t bad : {vocab, std::int64_t{-1}, std::int64_t{-101}}) {
          OperatorCase c(3);
          const Tensor logits = c.tile("logits", vocab);
          c.result(cross_entropy(logits, c.integers("targets", {0, bad, -100}, dtype)));
          try {
            c.run(*b.backend, {}, DType::f32);
            ADD_FAILURE() << "no error for " << bad;
          } catch (const UsageError& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("targets"), std::string::npos) << text;
            EXPECT_NE(text.find("row 1"), std::string::npos) << text;
            EXPECT_NE(text.find(fmt::format("[0, {})", vocab)), std::string::npos) << text;
            EXPECT_NE(text.find(std::to_string(bad)), std::string::npos) << text;
          }
        }
      }
    }
  }
}

TEST(Backends, RopeIsRightFarOut) {
  for (const NamedBackend& b : backends()) {
    for (const PairLayout layout : {PairLayout::halves, PairLayout::interleaved}) {
      OperatorCase c(6);
      const Tensor x = c.tile("x", 3 * 64);
      const Tensor pos = c.integers("pos", {0, 1, 2047, 65535, 131070, 131071}, DType::i32);
      c.result(rope(x, pos, c.frequencies("freq", rope_frequencies(64, 5e5)), layout));
      c.round_inputs();
      const std::vector<Matrix> got = c.run(*b.backend, {}, DType::f32);
      // 1e-7 turns of 2 pi rad, and the rounding of two products and a sum; |x| is below 4.
      EXPECT_LE(difference(got[0], c.evaluate()), 1e-6) << b.name;
      EXPECT_LE(difference(got[1], c.gradients()[0]), 1e-6) << b.name;
    }
  }
}

TEST(Backends, ABlockInFp32) {
  for (const NamedBackend& b : backends()) {
    for (const std::int64_t tokens : {0, 1, 33, 130}) {
      for (const bool interleaved : {false, true}) {
        OperatorCase c(tokens);
        const std::int64_t d = 34, f = 50;
        const Tensor x = linear(c.tile("a", 20), c.weight("w", d, 20)) + c.tile("residual", d);
        const Tensor h = rms_norm(x, c.row("n", d), 1e-5);
        const Tensor y =
            interleaved
                ? swiglu(linear(h, c.weight("gate_up", 2 * f, d)), Pairs::interleaved())
                : swiglu(linear(h, c.weight("gate", f, d)), linear(h, c.weight("up", f, d)));
        c.result(x + linear(y, c.weight("down", d, f), c.row("b", d)));
        c.round_inputs();
        std::vector<Matrix> want = c.gradients();
        want.insert(want.begin(), c.evaluate());
        for (const double held_price : {0.0, 1.5}) {
          CompileOptions options;
          options.held_price = held_price;
          const std::vector<Matrix> got = c.run(*b.backend, options, DType::f32);
          for (std::size_t i = 0; i < want.size(); ++i) {
            // Sums of up to 130 terms in fp32, four products deep: 4 * sqrt(130) * 2^-24 = 3e-6.
            EXPECT_LE(difference(got[i], want[i]), 1e-5) << b.name << ", result " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace coda::test
