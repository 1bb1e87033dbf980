#include "train/llama_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "coda/error.h"
#include "train/init.h"

namespace coda {
namespace {

LlamaConfig small_config() {
  LlamaConfig c;
  c.hidden_size = 32;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 48;
  c.vocab_size = 50;
  c.max_position_embeddings = 32;
  c.rms_norm_eps = 1e-5;
  return c;
}

std::vector<std::int32_t> some_tokens(std::int32_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back((i * 17 + 5) % 50);
  return tokens;
}

TEST(LlamaModel, DocumentsInASequenceDoNotSeeEachOther) {
  const auto backend = make_cpu_backend(2);
  const auto model = make_llama_model(small_config(), *backend, DType::f32, 32);
  initialize(*model, 3);
  // Two sequences of 12: documents of 5, 1 and 6 tokens, then of 12.
  const auto tokens = some_tokens(24);
  const std::vector<float> packed = model->logits({12, tokens, {}, {5, 6}});
  const std::vector<float> joined = model->logits({12, tokens, {}});
  const std::size_t vocab = 50;
  double apart = 0.0;
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 12}, {12, 24}}) {
    const std::vector<float> alone =
        model->logits({end - begin, {tokens.begin() + begin, tokens.begin() + end}, {}});
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(begin) * vocab + i;
      // fp32 sums of at most 48 terms, two layers; logits are of order 0.1.
      EXPECT_NEAR(alone[i], packed[at], 1e-6) << begin;
      apart = std::max(apart, std::abs(static_cast<double>(packed[at]) - joined[at]));
    }
  }
  EXPECT_GT(apart, 1e-3);  // without the borders it is something else
}

TEST(LlamaModel, GradientsOfPackedDocumentsAddUp) {
  const auto backend = make_cpu_backend(2);
  const auto model = make_llama_model(small_config(), *backend, DType::f32, 32);
  initialize(*model, 3);
  const auto tokens = some_tokens(12), labels = some_tokens(12);
  const auto gradients = [&](const std::vector<Batch>& batches) {
    model->zero_gradients();
    for (const Batch& batch : batches) model->forward_backward(batch, 1.0f);
    std::vector<float> all;
    for (const Parameter& p : model->parameters()) {
      all.insert(all.end(), p.gradient.begin(), p.gradient.end());
    }
    return all;
  };
  const auto part = [&](int begin, int end) {
    return Batch{end - begin,
                 {tokens.begin() + begin, tokens.begin() + end},
                 {labels.begin() + begin, labels.begin() + end}};
  };
  const auto packed = gradients({{12, tokens, labels, {5, 6}}});
  const auto apart = gradients({part(0, 5), part(5, 6), part(6, 12)});
  double largest = 0.0;
  for (const float g : apart) largest = std::max(largest, std::abs(static_cast<double>(g)));
  for (std::size_t i = 0; i < packed.size(); ++i) {
    // Sums of 12 rows in another order: a few units in the last place of the largest term.
    ASSERT_NEAR(packed[i], apart[i], 32 * 6e-8 * largest) << i;
  }
}

TEST(LlamaModel, ALimitOfMemoryIsKeptToTheSameBits) {
  LlamaConfig config = small_config();
  config.num_hidden_layers = 5;
  const auto backend = make_cpu_backend(2);
  constexpr std::int64_t kTokens = 512;
  const auto tokens = some_tokens(kTokens), labels = some_tokens(kTokens);
  const auto state = [&](const Model& model) {
    std::size_t values = 0;
    for (const Parameter& p : model.parameters()) values += p.value.size();
    return 16.0 * static_cast<double>(values);  // value, gradient and moments
  };
  const auto gradients = [&](Model& model) {
    initialize(model, 3);
    model.zero_gradients();
    model.forward_backward({32, tokens, labels}, 1.0f);
    std::vector<float> all;
    for (const Parameter& p : model.parameters()) {
      all.insert(all.end(), p.gradient.begin(), p.gradient.end());
    }
    return all;
  };
  const auto whole = make_llama_model(config, *backend, DType::f32, kTokens);
  const auto want = gradients(*whole);
  const auto step = static_cast<double>(whole->step_bytes());
  for (const double share : {1.0, 0.9, 0.8}) {
    SCOPED_TRACE(share);
    LlamaModelOptions options;
    options.memory = state(*whole) + share * step;
    const auto model = make_llama_model(config, *backend, DType::f32, kTokens, options);
    EXPECT_LE(state(*model) + static_cast<double>(model->step_bytes()), options.memory);
    if (share == 1.0) {
      EXPECT_EQ(model->step_bytes(), whole->step_bytes());  // nothing runs again for nothing
    }
    EXPECT_EQ(gradients(*model), want);
  }
  LlamaModelOptions little;
  little.memory = state(*whole);
  try {
    make_llama_model(config, *backend, DType::f32, kTokens, little);
    FAIL() << "expected a UsageError";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--memory: expected at least"), std::string::npos)
        << error.what();
  }
}

TEST(LlamaModel, LogitsAreCutIntoPiecesOfAGibibyte) {
  LlamaConfig config = small_config();
  EXPECT_EQ(pieces_of_logits(config, DType::f32, 32), 1);
  config.vocab_size = 128256;
  EXPECT_EQ(pieces_of_logits(config, DType::bf16, 16384), 4);
  EXPECT_EQ(pieces_of_logits(config, DType::bf16, 0), 1);
  EXPECT_EQ(pieces_of_logits(config, DType::f32, 1 << 20), 24);
}

}  // namespace
}  // namespace coda
