// Decoding with a cache: against transformers in float64, against runs without a cache, and against
// itself.

#include "nn/models/llama_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "coda/error.h"
#include "golden_case.h"

namespace coda::test {
namespace {

std::vector<float> logits_after(LlamaDecoder& decoder, std::span<const std::int32_t> tokens,
                                const LlamaConfig& config) {
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size), std::nanf(""));
  decoder.append(tokens, logits);
  return logits;
}

/// The logits of every position of a sequence, read token by token.
std::vector<float> one_by_one(LlamaDecoder& decoder, std::span<const std::int32_t> tokens,
                              const LlamaConfig& config) {
  std::vector<float> all;
  decoder.rewind(0);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto logits = logits_after(decoder, tokens.subspan(t, 1), config);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

void expect_golden(Backend& backend, const char* name) {
  SCOPED_TRACE(name);
  const GoldenCase golden(name);
  LlamaModel model(golden.config, {DType::f32, {}, false}, backend);
  golden.load(model);
  LlamaDecoder decoder(model, golden.config.max_position_embeddings);
  std::vector<float> logits;
  for (const Sequences& sequence : golden.single) {
    const auto of_one = one_by_one(decoder, sequence.tokens, golden.config);
    logits.insert(logits.end(), of_one.begin(), of_one.end());
  }
  EXPECT_LE(relative_error(logits, golden.logits), 2e-5);  // the bar of tests/nn/llama_test.cpp
}

TEST(LlamaDecoder, AgreesWithTransformersTokenByToken) {
  const auto cpu = make_cpu_backend();
  expect_golden(*cpu, "llama-gqa");
  expect_golden(*cpu, "llama-mha-odd");
  const auto reference = make_reference_backend(DType::f32);
  expect_golden(*reference, "llama-mha-odd");
}

/// A model with random weights, long enough for several chunks of keys and runs of a prompt.
LlamaConfig long_config() {
  LlamaConfig c;
  c.vocab_size = 61;
  c.hidden_size = 48;
  c.intermediate_size = 80;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.max_position_embeddings = 640;
  return c;
}

void randomize(LlamaModel& model) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (LlamaModel::Parameter& p : model.parameters()) {
    const float spread =
        p.weight.is_vector ? 0.2f : 1 / std::sqrt(static_cast<float>(p.weight.cols));
    for (float& x : p.value.as<float>())
      x = (p.weight.is_vector ? 1.0f : 0.0f) + spread * normal(random);
  }
  model.values_changed();
}

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocab) {
  std::mt19937 random(5);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab)));
  return tokens;
}

void expect_run_without_cache(const LlamaConfig& config) {
  const auto backend = make_cpu_backend(2);
  Sequences sequence;
  const auto tokens = some_tokens(600, config.vocab_size);
  sequence.add(tokens, std::vector<std::int32_t>(tokens.size(), -100));
  LlamaModel exact(config, {DType::f32, {}, false}, *backend);
  randomize(exact);
  exact.reserve(600);
  const auto want = logits_of(exact, sequence.batch());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LlamaModel model(config, {dtype, {}, false}, *backend);
    randomize(model);
    model.reserve(600);
    LlamaDecoder decoder(model, 640);
    const auto cached = one_by_one(decoder, tokens, config);
    // fp32: two orders of summation. bf16: as far from fp32 as the run without a cache is.
    const double uncached = relative_error(logits_of(model, sequence.batch()), want);
    EXPECT_LE(relative_error(cached, want), 2e-5 + 1.5 * uncached) << name_of(dtype);
  }
}

TEST(LlamaDecoder, AgreesWithARunWithoutACache) { expect_run_without_cache(long_config()); }

TEST(LlamaDecoder, AgreesWithARunWithoutACacheInAWindow) {
  LlamaConfig config = long_config();
  config.sliding_window = 270;
  expect_run_without_cache(config);
}

TEST(LlamaDecoder, BitsDependNeitherOnThePartsOfAPromptNorOnThreads) {
  const LlamaConfig config = long_config();
  const auto tokens = some_tokens(530, config.vocab_size);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<float> first;
    for (const std::size_t part : {530, 1, 3, 100}) {
      // oneDNN, which other processors take for bf16, may sum in another order for few rows.
      const auto backend = make_cpu_backend(part == 1 ? 3 : 1, CpuGemm::builtin);
      LlamaModel model(config, {dtype, {}, false}, *backend);
      randomize(model);
      LlamaDecoder decoder(model, 530);
      std::vector<float> last;
      for (std::size_t t = 0; t < tokens.size(); t += part) {
        const auto rest = std::span(tokens).subspan(t);
        last = logits_after(decoder, rest.first(std::min(part, rest.size())), config);
      }
      if (first.empty()) first = last;
      EXPECT_EQ(first, last) << part << " tokens at a time, " << name_of(dtype);
    }
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

TEST(LlamaDecoder, RefusesWhatDoesNotFitAndGoesOn) {
  const auto backend = make_cpu_backend(1);
  const LlamaConfig config = long_config();
  LlamaModel model(config, {DType::f32, {}, false}, *backend);
  randomize(model);
  EXPECT_EQ(refusal([&] { LlamaDecoder(model, 641); }),
            "decoder: capacity: expected between 1 and 640 tokens (max_position_embeddings), got "
            "641.");
  LlamaDecoder decoder(model, 5), other(model, 5);
  const std::vector<std::int32_t> three{1, 2, 3}, wrong{1, 61};
  logits_after(decoder, three, config);
  logits_after(other, three, config);
  EXPECT_EQ(refusal([&] { logits_after(decoder, three, config); }),
            "decoder: expected between 1 and 2 tokens (3 of 5 are read), got 3. Make the decoder "
            "with a larger capacity.");
  EXPECT_EQ(refusal([&] { logits_after(decoder, wrong, config); }),
            "decoder: token 1: expected an id in [0, 61), got 61. Use the tokenizer that belongs "
            "to the model.");
  EXPECT_EQ(refusal([&] { decoder.rewind(4); }),
            "decoder: rewind: expected between 0 and 3 tokens, got 4.");
  EXPECT_EQ(logits_after(decoder, {three.data(), 2}, config),
            logits_after(other, {three.data(), 2}, config));
}

}  // namespace
}  // namespace coda::test
