// Operators among matrix products, where they are deferred and fused: programs against the math in
// double, for every pass switched off in turn.

#include "operator_case.h"

namespace coda::test {
namespace {

struct Block {
  const char* name;
  void (*build)(OperatorCase& c);
};

void norm_between_products(OperatorCase& c) {
  const Tensor a = c.tile("a", 6), residual = c.tile("residual", 10);
  const Tensor x = linear(a, c.weight("w0", 10, 6)) + residual;
  c.result(linear(rms_norm(x, c.row("n", 10), 1e-5), c.weight("w1", 14, 10)));
}

void mlp(OperatorCase& c) {
  const Tensor x = c.tile("x", 10);
  const Tensor h = rms_norm(linear(x, c.weight("w", 10, 10)), c.row("n", 10), 1e-5);
  const Tensor y = swiglu(linear(h, c.weight("gate", 18, 10)), linear(h, c.weight("up", 18, 10)));
  c.result(x + linear(y, c.weight("down", 10, 18)));
}

void mlp_interleaved(OperatorCase& c) {
  const Tensor x = c.tile("x", 10);
  const Tensor h = rms_norm(linear(x, c.weight("w", 10, 10)), c.row("n", 10), 1e-5);
  const Tensor y = swiglu(linear(h, c.weight("gate_up", 36, 10)), Pairs::interleaved());
  c.result(x + linear(y, c.weight("down", 10, 18)));
}

void gelu_mlp_with_biases(OperatorCase& c) {
  const Tensor x = c.tile("x", 10);
  const Tensor y = gelu(linear(x, c.weight("up", 22, 10), c.row("b0", 22)));
  c.result(x + linear(y, c.weight("down", 10, 22), c.row("b1", 10)));
}

Tensor positions(OperatorCase& c) {
  std::vector<std::int64_t> values;
  for (std::int64_t r = 0; r < c.tokens(); ++r) values.push_back(r * 37 % 2000);
  return c.integers("pos", values, DType::i32);
}

void rotated_projections(OperatorCase& c) {
  const Tensor x = linear(c.tile("x", 6), c.weight("w", 12, 6));
  const Tensor h = rms_norm(x, c.row("n", 12), 1e-5);
  const Tensor pos = positions(c), freq = c.frequencies("freq", rope_frequencies(4, 1e4));
  const Tensor q = rope(linear(h, c.weight("q", 8, 12)), pos, freq);
  const Tensor k = rope(linear(h, c.weight("k", 4, 12)), pos, freq);
  const Tensor v = linear(h, c.weight("v", 4, 12));
  c.result(cat_cols({q, k, v}));
}

void rotated_interleaved(OperatorCase& c) {
  const Tensor h = rms_norm(c.tile("x", 12), c.row("n", 12), 1e-5);
  const Tensor pos = positions(c), freq = c.frequencies("freq", rope_frequencies(4, 1e4));
  c.result(rope(linear(h, c.weight("q", 8, 12)), pos, freq, PairLayout::interleaved));
}

void head(OperatorCase& c, Reduction reduction) {
  const Tensor x = linear(c.tile("x", 6), c.weight("w", 12, 6)) + c.tile("residual", 12);
  const Tensor logits = linear(rms_norm(x, c.row("n", 12), 1e-5), c.weight("lm_head", 97, 12));
  std::vector<std::int64_t> targets;
  for (std::int64_t r = 0; r < c.tokens(); ++r) targets.push_back(r % 4 == 1 ? -100 : r * 31 % 97);
  c.result(cross_entropy(logits, c.integers("targets", targets, DType::i64), reduction));
}
void head_mean(OperatorCase& c) { head(c, Reduction::mean); }
void head_sum(OperatorCase& c) { head(c, Reduction::sum); }
void head_none(OperatorCase& c) { head(c, Reduction::none); }

const Block kBlocks[] = {
    {"norm between products", norm_between_products},
    {"mlp", mlp},
    {"mlp, interleaved", mlp_interleaved},
    {"gelu mlp with biases", gelu_mlp_with_biases},
    {"rotated projections", rotated_projections},
    {"rotated projections, interleaved", rotated_interleaved},
    {"head, mean", head_mean},
    {"head, sum", head_sum},
    {"head, none", head_none},
};

TEST(Fused, ProgramsAreTheMath) {
  for (const Block& block : kBlocks) {
    for (const std::int64_t tokens : {0, 1, 7, 10, 130}) {  // 10: as many as features
      SCOPED_TRACE(std::string(block.name) + ", M " + std::to_string(tokens));
      OperatorCase c(tokens);
      block.build(c);
      c.check_programs();
    }
  }
}

TEST(Fused, DerivedGradientsAreDifferences) {
  for (const Block& block : kBlocks) {
    SCOPED_TRACE(block.name);
    OperatorCase c(7);
    block.build(c);
    c.check_differences(25);
  }
}

TEST(Fused, EveryPassMayBeSwitchedOff) {
  const auto backend = make_reference_backend(DType::f64);
  for (const Block& block : kBlocks) {
    OperatorCase c(9);
    block.build(c);
    std::vector<Matrix> want = c.gradients();
    want.insert(want.begin(), c.evaluate());
    for (int passes = 0; passes < 16; ++passes) {
      SCOPED_TRACE(std::string(block.name) + ", passes " + std::to_string(passes));
      CompileOptions options;
      options.defer = (passes & 1) != 0;
      options.merge = (passes & 2) != 0;
      options.recover = (passes & 4) != 0;
      options.search = (passes & 8) != 0;
      const std::vector<Matrix> got = c.run(*backend, options, DType::f64);
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_LE(difference(got[i], want[i]), 1e-9);
    }
  }
}

}  // namespace
}  // namespace coda::test
