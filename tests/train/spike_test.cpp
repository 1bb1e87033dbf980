#include "train/spike.h"

#include <gtest/gtest.h>

#include "train/speed.h"

namespace coda {
namespace {

TEST(RecentLosses, TheMedianIsOfTheLastOnesAndNeedsSome) {
  RecentLosses losses;
  for (std::size_t i = 1; i < RecentLosses::kLeast; ++i) losses.add(1.0);
  EXPECT_FALSE(losses.median().has_value());
  losses.add(1.0);
  EXPECT_EQ(losses.median(), 1.0);
  losses.add(100.0);  // one spike moves no median
  EXPECT_EQ(losses.median(), 1.0);
  for (std::size_t i = 0; i < RecentLosses::kMost; ++i) losses.add(static_cast<double>(i));
  EXPECT_EQ(losses.all().size(), RecentLosses::kMost);
  EXPECT_EQ(losses.median(), 15.5);
  // What a checkpoint stores gives the same.
  EXPECT_EQ(RecentLosses(losses.all()).median(), losses.median());
}

TEST(Speed, FlopsAreThoseOfTheProductsAndOfCausalAttention) {
  LlamaConfig c;
  c.hidden_size = 8;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 4;
  c.intermediate_size = 10;
  c.vocab_size = 100;
  // q, o: 8 x 8 each; k, v: 4 x 8 each; gate, up, down: 10 x 8 each; the head: 100 x 8
  const double weights = 3 * (2 * 64 + 2 * 32 + 3 * 80) + 800;
  const double attention = 12 * 3 * 8 * (16 / 2.0);
  EXPECT_EQ(training_flops_per_token(c, 16), 6 * weights + attention);
  c.tie_word_embeddings = true;  // the head still multiplies
  EXPECT_EQ(training_flops_per_token(c, 16), 6 * weights + attention);
}

TEST(Speed, OnlyKnownDevicesHaveAPeak) {
  EXPECT_EQ(known_peak("cuda: NVIDIA H200, 132 SMs", DType::bf16), 989e12);
  EXPECT_FALSE(known_peak("cuda: NVIDIA H200 NVL", DType::bf16).has_value());
  EXPECT_FALSE(known_peak("cpu", DType::f32).has_value());
}

}  // namespace
}  // namespace coda
