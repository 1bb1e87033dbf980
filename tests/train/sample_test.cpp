#include "train/sample.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "coda/error.h"

namespace coda {
namespace {

const std::vector<float> kLogits{std::log(0.1f), std::log(0.5f), std::log(0.3f), std::log(0.1f)};

std::array<double, 4> frequencies(const SampleOptions& options) {
  constexpr int kDraws = 20000;
  const CounterRandom random(1, 2);
  std::array<double, 4> counts{};
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    counts.at(static_cast<std::size_t>(sample(kLogits, options, random, i))) += 1.0;
  }
  for (double& count : counts) count /= kDraws;
  return counts;
}

// five standard deviations of a frequency over 20000 draws, at its worst
constexpr double kNoise = 5 * 0.5 / 141.0;

TEST(Sample, FollowsTheProbabilities) {
  const auto f = frequencies({1.0, 0, 1.0});
  EXPECT_NEAR(f[0], 0.1, kNoise);
  EXPECT_NEAR(f[1], 0.5, kNoise);
  EXPECT_NEAR(f[2], 0.3, kNoise);
  const auto sharp = frequencies({0.5, 0, 1.0});  // squares: 0.01, 0.25, 0.09, 0.01 of 0.36
  EXPECT_NEAR(sharp[1], 0.25 / 0.36, kNoise);
}

TEST(Sample, TopKAndTopPKeepTheMostLikely) {
  const auto two = frequencies({1.0, 2, 1.0});
  EXPECT_EQ(two[0] + two[3], 0.0);
  EXPECT_NEAR(two[1], 0.5 / 0.8, kNoise);
  const auto nucleus = frequencies({1.0, 0, 0.7});  // 0.5 does not reach 0.7, 0.8 does
  EXPECT_EQ(nucleus[0] + nucleus[3], 0.0);
  EXPECT_NEAR(nucleus[2], 0.3 / 0.8, kNoise);
  EXPECT_EQ(frequencies({1.0, 0, 1e-9})[1], 1.0);
  EXPECT_EQ(frequencies({0.0, 0, 1.0})[1], 1.0);
  EXPECT_EQ(frequencies({1e-300, 0, 1.0})[1], 1.0);
}

TEST(Sample, EqualLogitsRankByIdAndNaNIsAnError) {
  const CounterRandom random(1, 2);
  EXPECT_EQ(sample(std::vector<float>(5, 1.0f), {0.0, 0, 1.0}, random, 0), 0);
  EXPECT_EQ(sample(std::vector<float>{-INFINITY, -INFINITY}, {1.0, 1, 1.0}, random, 0), 0);
  EXPECT_THROW(sample(std::vector<float>{0.0f, std::nanf("")}, {0.0, 0, 1.0}, random, 0), Error);
}

}  // namespace
}  // namespace coda
