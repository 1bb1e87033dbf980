#include "base/median.h"

#include <gtest/gtest.h>

namespace coda {
namespace {

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoThere) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1}), 2.5);
  EXPECT_EQ(median({8, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace coda
