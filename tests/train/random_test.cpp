#include "train/random.h"

#include <gtest/gtest.h>

namespace coda {
namespace {

TEST(Random, PhiloxMatchesThePublishedVectors) {
  // Known answers of the Random123 distribution for philox4x32-10.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  const CounterRandom random(1, stream_of("test"));
  constexpr int kCount = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  // five standard deviations: of the mean 1 / sqrt(n), of the variance sqrt(2 / n)
  EXPECT_NEAR(sum / kCount, 0.0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1.0, 5 * std::sqrt(2.0 / kCount));
}

TEST(Random, BelowStaysInRangeAndReachesAll) {
  const CounterRandom random(2, 0);
  std::array<int, 7> seen{};
  for (std::uint64_t i = 0; i < 1000; ++i) ++seen.at(random.below(i, 7));
  for (const int count : seen) EXPECT_GT(count, 80);
}

TEST(Random, SeedAndStreamChangeTheValues) {
  EXPECT_NE(CounterRandom(1, 0).bits(0), CounterRandom(2, 0).bits(0));
  EXPECT_NE(CounterRandom(1, 0).bits(0), CounterRandom(1, 1).bits(0));
  EXPECT_NE(CounterRandom(1, 0).bits(0), CounterRandom(1, 0).bits(1));
  EXPECT_EQ(CounterRandom(1, 0).bits(5), CounterRandom(1, 0).bits(5));
}

}  // namespace
}  // namespace coda
