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
        // The log-sum-exp between two programs is one fp32 number, and its rounding is what remains
        // of an offset; beside it, exp, log and a sum of 97 terms: 4e-6.
        const double tolerance = 4e-6 + std::abs(offset) * 0x1p-24;
        EXPECT_LE(difference(got[0], c.evaluate()), tolerance);
        EXPECT_LE(difference(got[1], c.gradients()[0]), tolerance);
      }
    }
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
