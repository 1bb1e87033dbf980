#include "base/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/split_f32.h"

namespace coda {
namespace {

TEST(Convert, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_f32(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_f32(1.0f + 0x1p-8f), 0x3f80);      // tie, even below
  EXPECT_EQ(bf16_from_f32(1.0f + 3 * 0x1p-8f), 0x3f82);  // tie, even above
  EXPECT_EQ(bf16_from_f32(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Convert, HalvesOfAnF32AreItsRoundedValueAndTheRest) {
  // Every upper half, with lower halves at and around the tie.
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      const SplitF32 halves = split_f32(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(f32_from_bf16(halves.rounded)) && std::isnan(join_f32(halves)));
        continue;
      }
      ASSERT_EQ(std::bit_cast<std::uint32_t>(join_f32(halves)), upper << 16 | lower);
      ASSERT_EQ(halves.rounded, lower == 0x8000 ? upper + 1 : bf16_from_f32(value));
    }
  }
}

TEST(Convert, F16RoundTripsEveryValue) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f32_from_f16(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(f16_from_f32(value), half) << "bits " << bits;
  }
}

TEST(Convert, F16RoundsBetweenNeighbours) {
  for (int bits = 0; bits < 0x7bff; ++bits) {  // every gap between finite positive values
    const float low = f32_from_f16(static_cast<std::uint16_t>(bits));
    const float high = f32_from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(f16_from_f32(middle), even) << "bits " << bits;
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, high)), bits + 1) << "bits " << bits;
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, low)), bits) << "bits " << bits;
  }
  EXPECT_EQ(f16_from_f32(65519.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
}

}  // namespace
}  // namespace coda
