// Every elementwise op has CUDA text, and NVRTC compiles it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iostream>
#include <limits>

#include "backend/cuda/device_sources.h"
#include "backend/cuda/kernel_store.h"
#include "backend/cuda/op_text.h"
#include "coda/error.h"
#include "ops/op_table.h"

namespace coda::cuda {
namespace {

TEST(OpText, SaysEveryElementwiseOp) {
  for (const OpRow& row : op_table()) {
    const bool expected = row.op_class == OpClass::elementwise && row.op != Op::broadcast;
    EXPECT_EQ(has_op_text(row.op), expected) << row.name;
    if (!expected) {
      EXPECT_THROW(op_text(row.op, {}, "a", "b"), InternalError) << row.name;
    }
  }
  EXPECT_EQ(op_text(Op::mul, {}, "preact", "rstd"), "op::mul(preact, rstd)");
  EXPECT_EQ(op_text(Op::neg, {}, "x", "unused"), "op::neg(x)");
  Attrs attrs;
  attrs.dtype = DType::bf16;
  EXPECT_EQ(op_text(Op::cast, attrs, "x"), "op::cast_bf16(x)");
}

TEST(OpText, WritesLiteralsAndNames) {
  EXPECT_EQ(literal_text(2), "2.0f");
  EXPECT_EQ(literal_text(0.1), "0.100000001f");
  EXPECT_EQ(literal_text(1e-30), "1e-30f");
  EXPECT_EQ(literal_text(-std::numeric_limits<double>::infinity()), "minus_infinity()");
  EXPECT_EQ(identifier_text("d_x.q"), "d_x_q");
  EXPECT_EQ(identifier_text("float"), "float_v");
  EXPECT_EQ(identifier_text("3"), "v3");
  EXPECT_EQ(identifier_text("kTileN"), "kTileN_v");
}

TEST(OpText, Compiles) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  KernelSource source{"op_text", "f", "", 0};
  source.text += device_source("params.cuh");
  for (const char* file : kOpFiles) source.text += device_source(file);
  source.text += "using namespace coda_device;\nextern \"C\" __global__ void f(float* y) {\n";
  for (const OpRow& row : op_table()) {
    if (!has_op_text(row.op)) continue;
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      Attrs attrs;
      attrs.dtype = dtype;
      source.text += fmt::format("  *y = {};\n", op_text(row.op, attrs, "y[1]", "y[2]"));
    }
  }
  source.text +=
      "  LogSum sum; sum.add(y[3]); sum.add(y[1], y[2]); *y = sum.value();\n"
      "  angle_of(load_integer(y, 1, false), y[1], y[2], y[3], y[4]);\n}\n";
  EXPECT_NO_THROW(compile_checked(source));
}

}  // namespace
}  // namespace coda::cuda
