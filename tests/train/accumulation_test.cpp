// Gradient accumulation on the compiled model: micro-batches that carry different numbers of labels
// give the gradient of the big batch.
#include <gtest/gtest.h>

#include <cmath>

#include "train/init.h"
#include "train/llama_model.h"
#include "train/loop.h"
#include "train/random.h"

namespace coda {
namespace {

constexpr std::int64_t kSeq = 16;

LlamaConfig small_config() {
  LlamaConfig c;
  c.hidden_size = 32;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 80;
  c.vocab_size = 97;
  return c;
}

/// Sequences with as many labels each as `counts` says, at scattered places; the others are
/// ignored.
std::vector<Batch> sequences(const std::vector<std::int64_t>& counts, std::int64_t vocab) {
  std::vector<Batch> batches;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const CounterRandom random(11, s);
    Batch batch{kSeq, {}, {}};
    for (std::uint64_t t = 0; t < kSeq; ++t) {
      const auto token = [&](std::uint64_t draw) {
        return static_cast<std::int32_t>(random.below(draw, static_cast<std::uint64_t>(vocab)));
      };
      batch.tokens.push_back(token(2 * t));
      const bool counted = static_cast<std::int64_t>(t * 5 % kSeq) < counts[s];
      batch.labels.push_back(counted ? token(2 * t + 1) : kIgnoredLabel);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

Batch together(const std::vector<Batch>& batches) {
  Batch all{kSeq, {}, {}};
  for (const Batch& b : batches) {
    all.tokens.insert(all.tokens.end(), b.tokens.begin(), b.tokens.end());
    all.labels.insert(all.labels.end(), b.labels.begin(), b.labels.end());
  }
  return all;
}

struct Step {
  double loss;
  std::vector<std::vector<float>> gradients;
};

Step step_of(Model& model, const std::vector<Batch>& batches) {
  for (const Parameter& p : model.parameters()) {  // whatever stood there must not count
    std::fill(p.gradient.begin(), p.gradient.end(), 1e30f);
  }
  Step step{accumulate_gradients(model, batches), {}};
  for (const Parameter& p : model.parameters()) {
    step.gradients.emplace_back(p.gradient.begin(), p.gradient.end());
  }
  return step;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(difference / norm);
}

class Accumulation : public testing::Test {
 protected:
  Accumulation() { initialize(*model_, 3); }

  const LlamaConfig config_ = small_config();
  const std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  const std::unique_ptr<Model> model_ = make_llama_model(config_, *backend_, DType::f32, 6 * kSeq);
};

// Both sum the same products of the same rows, in another order: at most 6 partial sums differ, one
// rounding of 2^-24 = 6e-8 each. 1e-6 leaves room for the cancelling of terms.
TEST_F(Accumulation, UnevenLabelsGiveTheGradientOfTheBigBatch) {
  const auto micro = sequences({16, 1, 0, 7, 3, 12}, config_.vocab_size);
  ASSERT_EQ(micro[2].valid_labels(), 0);
  const Step big = step_of(*model_, {together(micro)});
  const Step small = step_of(*model_, micro);
  const Step pairs = step_of(*model_, {together({micro[0], micro[1]}), together({micro[2]}),
                                       together({micro[3], micro[4], micro[5]})});
  EXPECT_NEAR(small.loss, big.loss, 1e-6 * big.loss);
  EXPECT_NEAR(pairs.loss, big.loss, 1e-6 * big.loss);
  for (std::size_t i = 0; i < big.gradients.size(); ++i) {
    const std::string& name = model_->parameters()[i].name;
    EXPECT_LE(relative_error(small.gradients[i], big.gradients[i]), 1e-6) << name;
    EXPECT_LE(relative_error(pairs.gradients[i], big.gradients[i]), 1e-6) << name;
  }
}

TEST_F(Accumulation, TheMeanOfMeansWouldBeSomethingElse) {
  const auto micro = sequences({16, 1}, config_.vocab_size);
  const Step both = step_of(*model_, micro);
  const Step first = step_of(*model_, {micro[0]}), second = step_of(*model_, {micro[1]});
  std::vector<float> means = first.gradients[0];
  for (std::size_t i = 0; i < means.size(); ++i) means[i] = (means[i] + second.gradients[0][i]) / 2;
  EXPECT_GT(relative_error(means, both.gradients[0]), 0.1);
}

TEST_F(Accumulation, OneMicroBatchNeedsNoSums) {
  const auto one =
      make_llama_model(config_, *backend_, DType::f32, 6 * kSeq,
                       {.recompute = false, .recompute_products = false, .accumulates = false});
  initialize(*one, 3);
  const auto micro = sequences({16, 1, 0}, config_.vocab_size);
  const Step want = step_of(*model_, {together(micro)}), got = step_of(*one, {together(micro)});
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.gradients, want.gradients);
  const Step none = step_of(*one, {micro[2]});
  EXPECT_TRUE(std::isnan(none.loss));
  for (const auto& gradient : none.gradients) {
    for (const float g : gradient) ASSERT_EQ(g, 0.0f);
  }
  EXPECT_THROW(accumulate_gradients(*one, micro), UsageError);
}

TEST_F(Accumulation, WithoutAnyLabelGradientsAreZeroAndTheLossIsNaN) {
  const Step none = step_of(*model_, sequences({0, 0}, config_.vocab_size));
  EXPECT_TRUE(std::isnan(none.loss));
  for (const auto& gradient : none.gradients) {
    for (const float g : gradient) ASSERT_EQ(g, 0.0f);
  }
}

}  // namespace
}  // namespace coda
