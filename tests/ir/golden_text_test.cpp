// The printed form of programs, pinned, and read back.
#include <gtest/gtest.h>

#include "coda/program_builder.h"

namespace coda {
namespace {

/// The program prints so, and the text means a program that prints so.
void expect_text(const Program& program, const std::string& text) {
  EXPECT_EQ(to_string(program), text);
  EXPECT_EQ(to_string(parse_program(text)), text);
}

Program swiglu_forward(DType out) {
  ProgramBuilder b("swiglu_forward");
  Tile acc = b.acc();
  ColVec rstd = b.load_col("rstd", DType::f32);
  Tile preact = acc * rstd;
  auto [gate, up] = split(preact, Pairs::interleaved());
  b.store_tile("preact", preact, out);
  b.store_tile("hidden", silu(gate) * up, out);
  return b.build();
}

TEST(GoldenText, SwigluForward) {
  expect_text(swiglu_forward(DType::bf16),
              R"(program swiglu_forward(%acc: [M, N], rstd: f32[M])
    -> (preact: bf16[M, N], hidden: bf16[M, N/2]) {
  %rstd   = load_col rstd      : [M]
  %preact = mul %acc, %rstd    : [M, N]
  store_tile preact, %preact
  %0      = first_of_pair interleaved %preact   : [M, N/2]
  %1      = sigmoid %0         : [M, N/2]
  %2      = mul %0, %1         : [M, N/2]
  %3      = second_of_pair interleaved %preact  : [M, N/2]
  %hidden = mul %2, %3         : [M, N/2]
  store_tile hidden, %hidden
}
)");
}

TEST(GoldenText, DoesNotDependOnTheOrderInWhichCppEvaluatesOperands) {
  const auto build = [](bool up_first) {
    ProgramBuilder b("swiglu_forward");
    Tile acc = b.acc();
    auto [gate, up] = split(acc, Pairs::interleaved());
    if (up_first) {
      Tile twice = up * 2.0;
      b.store_tile("y", silu(gate) * twice, DType::f32);
    } else {
      Tile activated = silu(gate);
      b.store_tile("y", activated * (up * 2.0), DType::f32);
    }
    return to_string(b.build());
  };
  EXPECT_EQ(build(true), build(false));
}

TEST(GoldenText, ResidualWithSumOfSquares) {
  ProgramBuilder b("residual_rms_forward");
  Tile x = b.acc() + b.load_tile("x0", DType::bf16);
  Tile stored = cast(x, DType::bf16);
  b.store_tile("x1", stored, DType::bf16);
  b.store_partial("sumsq", row_sum(stored * stored));
  expect_text(b.build(),
              R"(program residual_rms_forward(%acc: [M, N], x0: bf16[M, N])
    -> (x1: bf16[M, N], sumsq: partial f32[M]) {
  %x0    = load_tile x0       : [M, N]
  %0     = add %acc, %x0      : [M, N]
  %x1    = cast bf16 %0       : [M, N]
  store_tile x1, %x1
  %1     = mul %x1, %x1       : [M, N]
  %sumsq = row_sum %1         : partial [M]
  store_partial sumsq, %sumsq
}
)");
}

TEST(GoldenText, MergedBlocksRotationAndFinishedLoads) {
  ProgramBuilder b("qkv_forward");
  b.gemm_nt("xw", 64, {"w_q", "w_k", "w_v"}, {64, 32, 32}, DType::bf16);
  Tile acc = b.acc();
  ColVec r = b.load_col(finish_rms("ss", 64, 1e-6));
  IntCol pos = b.load_integers("pos");
  RowVec freq = b.load_row("freq", DType::f32, Dim::number(32));
  b.store_tile("q", rotate(cols(acc, 0, 64) * r, pos, freq, Pairs::halves()), DType::bf16);
  b.store_tile("k", rotate(cols(acc, 64, 96) * r, pos, freq, Pairs::halves()), DType::bf16);
  b.store_tile("v", cols(acc, 96, 128) * r, DType::bf16);
  expect_text(
      b.build(),
      R"(program qkv_forward(%acc: [M, 128] = nt xw, [w_q; w_k; w_v], xw: bf16[M, 64], w_q: bf16[64, 64], w_k: bf16[32, 64], w_v: bf16[32, 64], ss: partial f32[M], pos: i32[M], freq: f32[32])
    -> (q: bf16[M, 64], k: bf16[M, 32], v: bf16[M, 32]) {
  %0    = cols 0:64 %acc     : [M, 64]
  %ss   = load_col finish_sum ss              : [M]
  %1    = constant 0.015625  : []
  %2    = mul %ss, %1        : [M]
  %3    = constant 1e-06     : []
  %4    = add %2, %3         : [M]
  %5    = rsqrt %4           : [M]
  %6    = mul %0, %5         : [M, 64]
  %pos  = load_col pos       : [M]
  %freq = load_row freq      : [32]
  %q    = rotate halves %6, %pos, %freq       : [M, 64]
  store_tile q, %q
  %7    = cols 64:96 %acc    : [M, 32]
  %8    = mul %7, %5         : [M, 32]
  %k    = rotate halves %8, %pos, %freq       : [M, 32]
  store_tile k, %k
  %9    = cols 96:128 %acc   : [M, 32]
  %v    = mul %9, %5         : [M, 32]
  store_tile v, %v
}
)");
}

TEST(GoldenText, CrossEntropyBackward) {
  ProgramBuilder b("cross_entropy_backward", Form::rows);
  Tile z = b.load_tile("z", DType::bf16);
  ColVec max = b.load_col(finish_lse_max("lse")), log_sum = b.load_col(finish_log_sum("lse"));
  b.store_tile("p", exp((z - max) - log_sum), DType::f32);
  expect_text(b.build(),
              R"(row program cross_entropy_backward(z: bf16[M, N], lse: partial f32[M])
    -> (p: f32[M, N]) {
  %z   = load_tile z        : [M, N]
  %lse = load_col finish_lse_max lse         : [M]
  %0   = sub %z, %lse       : [M, N]
  %1   = load_col finish_log_sum lse         : [M]
  %2   = sub %0, %1         : [M, N]
  %p   = exp %2             : [M, N]
  store_tile p, %p
}
)");
}

TEST(GoldenText, CrossEntropyForward) {
  ProgramBuilder b("cross_entropy_forward");
  Tile logits = b.acc() * b.load_row("scale", DType::f32);
  IntCol target = b.load_integers("target", DType::i64);
  b.store_partial("lse", online_lse(logits));
  b.store_partial("picked", pick_col(logits, target, -1));
  b.store_partial("d_scale", col_sum(b.acc()));
  expect_text(b.build(),
              R"(program cross_entropy_forward(%acc: [M, N], scale: f32[N], target: i64[M])
    -> (lse: partial f32[M], picked: partial f32[M], d_scale: partial f32[N]) {
  %scale   = load_row scale     : [N]
  %0       = mul %acc, %scale   : [M, N]
  %lse     = lse %0             : partial [M]
  store_partial lse, %lse
  %target  = load_col target    : [M]
  %picked  = pick ignore(-1) %0, %target         : partial [M]
  store_partial picked, %picked
  %d_scale = col_sum %acc       : partial [N]
  store_partial d_scale, %d_scale
}
)");
}

TEST(GoldenText, RowAndVectorPrograms) {
  ProgramBuilder b("norm", Form::rows);
  Tile x = b.load_tile("x", DType::f32, Dim::number(96));
  ColVec r = rsqrt(whole_row_sum(x * x) * (1.0 / 96));
  b.store_tile("y", x * r * b.load_row("w", DType::f32, Dim::number(96)), DType::bf16);
  b.store_vector("r", r);
  expect_text(b.build(), R"(row program norm(x: f32[M, 96], w: f32[96])
    -> (y: bf16[M, 96], r: f32[M]) {
  %x = load_tile x        : [M, 96]
  %0 = mul %x, %x         : [M, 96]
  %1 = row_sum %0         : [M]
  %2 = constant 0.010416666666666666       : []
  %3 = mul %1, %2         : [M]
  %r = rsqrt %3           : [M]
  %4 = mul %x, %r         : [M, 96]
  %w = load_row w         : [96]
  %y = mul %4, %w         : [M, 96]
  store_tile y, %y
  store_vector r, %r
}
)");
  ProgramBuilder v("finish", Form::vectors);
  v.store_vector("d_w", v.load_row(finish_sum("parts"), Dim::number(96)) * 0.5);
  expect_text(v.build(), R"(vector program finish(parts: partial f32[96])
    -> (d_w: f32[96]) {
  %parts = load_row finish_sum parts           : [96]
  %0     = constant 0.5       : []
  %d_w   = mul %parts, %0     : [96]
  store_vector d_w, %d_w
}
)");
}

TEST(Instantiate, FixesN) {
  const Program program = instantiate(swiglu_forward(DType::f32), 96);
  EXPECT_EQ(program.cols, Dim::number(96));
  const std::string text = to_string(program);
  EXPECT_NE(text.find("hidden: f32[M, 48]"), std::string::npos) << text;
  EXPECT_EQ(text.find('N'), std::string::npos) << text;
}

TEST(Instantiate, HalvesOfTheWholeWidthBecomeColumnBlocks) {
  ProgramBuilder b("swiglu_forward");
  Tile preact = b.acc() * b.load_row("bias", DType::f32);
  auto [gate, up] = split(preact, Pairs::halves());
  b.store_tile("preact", preact, DType::f32);
  b.store_tile("hidden", silu(gate) * up, DType::f32);
  expect_text(instantiate(b.build(), 96),
              R"(program swiglu_forward(%acc: [M, 96], bias: f32[96])
    -> (preact.0: f32[M, 48], preact.48: f32[M, 48], hidden: f32[M, 48]) {
  %acc.0     = cols 0:48 %acc     : [M, 48]
  %bias      = load_row bias      : [96]
  %bias.0    = cols 0:48 %bias    : [48]
  %preact.0  = mul %acc.0, %bias.0                 : [M, 48]
  store_tile preact.0, %preact.0
  %acc.48    = cols 48:96 %acc    : [M, 48]
  %bias.48   = cols 48:96 %bias   : [48]
  %preact.48 = mul %acc.48, %bias.48               : [M, 48]
  store_tile preact.48, %preact.48
  %0         = sigmoid %preact.0  : [M, 48]
  %1         = mul %preact.0, %0  : [M, 48]
  %hidden    = mul %1, %preact.48                  : [M, 48]
  store_tile hidden, %hidden
}
)");
}

TEST(Instantiate, HalvesInARowProgramBecomeCols) {
  ProgramBuilder b("split", Form::rows);
  auto [first, second] = split(b.load_tile("x", DType::f32), Pairs::halves());
  b.store_tile("y", join(second, first, Pairs::halves()), DType::f32);
  expect_text(instantiate(b.build(), 10), R"(row program split(x: f32[M, 10])
    -> (y: f32[M, 10]) {
  %x = load_tile x        : [M, 10]
  %0 = cols 5:10 %x       : [M, 5]
  %1 = cols 0:5 %x        : [M, 5]
  %y = cat_cols %0, %1    : [M, 10]
  store_tile y, %y
}
)");
}

TEST(Parse, SpacesAndLineBreaksAreFree) {
  const std::string text =
      "program p(%acc:[M,N],r:f32[M])->(y:f32[M,N]){%r=load_col r:[M] %y=mul %acc,%r:[M,N] "
      "store_tile y,%y}";
  EXPECT_EQ(to_string(parse_program(text)), R"(program p(%acc: [M, N], r: f32[M])
    -> (y: f32[M, N]) {
  %r   = load_col r         : [M]
  %y   = mul %acc, %r       : [M, N]
  store_tile y, %y
}
)");
}

TEST(Parse, GivesTheProgramItself) {
  const Program program = swiglu_forward(DType::bf16);
  const Program read = parse_program(to_string(program));
  ASSERT_EQ(read.values.size(), program.values.size());
  for (std::size_t i = 0; i < read.values.size(); ++i) {
    EXPECT_EQ(read.values[i].op, program.values[i].op);
    EXPECT_EQ(read.values[i].args, program.values[i].args);
    EXPECT_EQ(read.values[i].attrs, program.values[i].attrs);
    EXPECT_EQ(read.values[i].operand, program.values[i].operand);
    EXPECT_EQ(read.values[i].name, program.values[i].name);
  }
  ASSERT_EQ(read.operands.size(), program.operands.size());
  EXPECT_EQ(read.operands[1].dtype, DType::bf16);
}

}  // namespace
}  // namespace coda
