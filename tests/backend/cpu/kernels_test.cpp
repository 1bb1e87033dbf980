// Vector kernels against double precision and the scalar conversions.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/convert.h"
#include "ops/op_table.h"

namespace coda::cpu {
namespace {

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Floats of every exponent and sign: every 1009th bit pattern, and the special ones.
std::vector<float> many_floats() {
  std::vector<float> out = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN};
  for (std::uint64_t bits = 0; bits < 0x100000000ull; bits += 1009)
    out.push_back(of_bits(static_cast<std::uint32_t>(bits)));
  while (out.size() % kPad != 0) out.push_back(1.0f);
  return out;
}

struct Aligned {
  explicit Aligned(std::size_t n) : memory(n + 16) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    data = memory.data() + (64 - address % 64) % 64 / sizeof(float);
  }
  std::vector<float> memory;
  float* data;
};

TEST(CpuKernels, ConversionsAgreeWithTheScalarOnesBitForBit) {
  const std::vector<float> x = many_floats();
  const auto n = static_cast<i64>(x.size());
  std::vector<std::uint16_t> bf16(x.size()), f16(x.size());
  const Arg arg{x.data(), 0, false};
  kernels().store[index_of(DType::bf16)](bf16.data(), 0, arg, 1, n);
  kernels().store[index_of(DType::f16)](f16.data(), 0, arg, 1, n);
  Aligned rounded_bf16(x.size()), rounded_f16(x.size());
  kernels().round[index_of(DType::bf16)]({rounded_bf16.data, 0}, arg, 1, n);
  kernels().round[index_of(DType::f16)]({rounded_f16.data, 0}, arg, 1, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bf16[i], bf16_from_f32(x[i])) << x[i];
    ASSERT_EQ(f16[i], f16_from_f32(x[i])) << x[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded_bf16.data[i]),
              std::bit_cast<std::uint32_t>(f32_from_bf16(bf16[i])));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded_f16.data[i]),
              std::bit_cast<std::uint32_t>(f32_from_f16(f16[i])));
  }
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  Aligned y(all.size());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    kernels().load[index_of(dtype)]({y.data, 0}, all.data(), 0, 1, 65536);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float want = dtype == DType::bf16 ? f32_from_bf16(all[i]) : f32_from_f16(all[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(y.data[i]), std::bit_cast<std::uint32_t>(want)) << i;
    }
  }
}

TEST(CpuKernels, ElementaryFunctionsHoldTheirBounds) {
  const struct {
    Op op;
    double (*exact)(double);
    double ulps;
  } cases[] = {
      {Op::exp, [](double x) { return std::exp(x); }, 1.1},
      {Op::log, [](double x) { return std::log(x); }, 2},
      {Op::tanh, [](double x) { return std::tanh(x); }, 3},
      {Op::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 3},
      {Op::erf, [](double x) { return std::erf(x); }, 2},
      {Op::rsqrt, [](double x) { return 1 / std::sqrt(x); }, 1.5},
  };
  const std::vector<float> x = many_floats();
  Aligned y(x.size());
  for (const auto& c : cases) {
    kernels().unary[index_of(c.op)]({y.data, 0}, {x.data(), 0, false}, 1,
                                    static_cast<i64>(x.size()));
    double worst = 0;
    float where = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = c.exact(x[i]);
      const auto nearest = static_cast<float>(want);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(y.data[i])) << std::string(name_of(c.op)) << " of " << x[i];
        continue;
      }
      if (std::isinf(nearest)) {
        // The largest float is within an ulp of what rounds to infinity.
        ASSERT_TRUE(y.data[i] == nearest || std::fabs(want) < 3.41e38) << x[i];
        continue;
      }
      int exponent;
      std::frexp(want, &exponent);
      const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
      // sigmoid flushes what is below the smallest normal number.
      if (c.op == Op::sigmoid && want < 0x1p-126) continue;
      const double error = std::fabs(y.data[i] - want) / ulp;
      if (error > worst) worst = error, where = x[i];
    }
    RecordProperty(std::string(name_of(c.op)), std::to_string(worst));
    EXPECT_LE(worst, c.ulps) << std::string(name_of(c.op)) << " at " << where;
  }
}

}  // namespace
}  // namespace coda::cpu
