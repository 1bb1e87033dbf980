// The LLaMA model end to end: against transformers in float64, and against itself.

#include "nn/models/llama.h"

#include <gtest/gtest.h>

#include "coda/error.h"
#include "golden_case.h"

namespace coda::test {
namespace {

const char* const kGolden[] = {"llama-gqa", "llama-mha-odd"};

std::unique_ptr<LlamaModel> make_model(const GoldenCase& golden, Backend& backend,
                                       LlamaOptions options = {}) {
  auto model = std::make_unique<LlamaModel>(golden.config, options, backend);
  golden.load(*model);
  model->reserve(static_cast<std::int64_t>(golden.all.tokens.size()));
  return model;
}

void expect_golden(LlamaModel& model, const GoldenCase& golden, double tolerance) {
  const auto count = static_cast<double>(golden.all.count());
  EXPECT_LE(relative_error(logits_of(model, golden.all.batch()), golden.logits), tolerance);
  EXPECT_NEAR(model.evaluate(golden.all.batch()) / count, golden.loss, tolerance * golden.loss);
  const Step step = step_of(model, golden.all.batch(), static_cast<float>(1 / count));
  EXPECT_NEAR(step.loss / count, golden.loss, tolerance * golden.loss);
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    const std::string& name = model.parameters()[i].weight.name;
    EXPECT_LE(relative_error(step.gradients[i], golden.gradients.at(name)), tolerance) << name;
  }
}

TEST(Llama, WeightsAreThoseOfTheCheckpoint) {
  for (const char* name : kGolden) {
    const GoldenCase golden(name);
    const std::vector<LlamaWeight> weights = llama_weights(golden.config);
    EXPECT_EQ(weights.size(), golden.weights.size());
    for (const LlamaWeight& w : weights) {
      EXPECT_EQ(golden.weights.at(w.name).size(), static_cast<std::size_t>(w.rows * w.cols));
    }
  }
}

// The recorded values carry the rounding of fp32 steps inside transformers (1.3e-6); fp32 here adds
// sums of up to 260 terms in 2 layers. 2e-5 is the bar for fp32 on any backend.
TEST(Llama, AgreesWithTransformersOnTheCpu) {
  const auto backend = make_cpu_backend();
  for (const char* name : kGolden) {
    SCOPED_TRACE(name);
    const GoldenCase golden(name);
    const auto model = make_model(golden, *backend);
    expect_golden(*model, golden, 2e-5);
  }
}

TEST(Llama, AgreesWithTransformersOnTheReferenceBackend) {
  const auto backend = make_reference_backend(DType::f32);
  const GoldenCase golden("llama-mha-odd");
  expect_golden(*make_model(golden, *backend), golden, 2e-5);
}

TEST(Llama, AgreesWithTransformersHoweverItIsCompiled) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-gqa");
  for (int off = 0; off < 6; ++off) {
    LlamaOptions options;
    options.compile.defer = off != 0;
    options.compile.merge = off != 1;
    options.compile.recover = off != 2;
    options.compile.fuse = off != 3;
    options.compile.search = off != 4;
    options.compile.held_price = off == 5 ? 1.5 : 0;
    SCOPED_TRACE(off);
    expect_golden(*make_model(golden, *backend, options), golden, 2e-5);
  }
}

TEST(Llama, GradientsAddUpOverMicroBatches) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-gqa");
  ASSERT_GE(golden.single.size(), 2u);
  const auto model = make_model(golden, *backend);
  const Step whole = step_of(*model, golden.all.batch(), 0.5f);
  model->zero_gradients();
  double loss = 0;
  for (const Sequences& s : golden.single) loss += model->forward_backward(s.batch(), 0.5f);
  EXPECT_NEAR(loss, whole.loss, 1e-6 * whole.loss);
  for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
    // Sums over 2 x 33 tokens in another order: sqrt(66) * 2^-24 of terms that may cancel.
    EXPECT_LE(relative_error(model->parameters()[i].gradient.as<float>(), whole.gradients[i]), 5e-6)
        << model->parameters()[i].weight.name;
  }
}

TEST(Llama, PackedSequencesOfAnyLengthDoNotSeeEachOther) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-gqa");
  const auto model = make_model(golden, *backend);
  const std::vector<float> alone = logits_of(*model, golden.single[1].batch());
  Sequences packed;  // five tokens, none, then the whole second sequence
  const Sequences& first = golden.single[0];
  packed.add({first.tokens.begin(), first.tokens.begin() + 5},
             {first.labels.begin(), first.labels.begin() + 5});
  packed.add({}, {});
  packed.add(golden.single[1].tokens, golden.single[1].labels);
  const std::vector<float> logits = logits_of(*model, packed.batch());
  const std::size_t skipped = 5 * static_cast<std::size_t>(golden.config.vocab_size);
  EXPECT_LE(relative_error(std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(skipped),
                                              logits.end()),
                           alone),
            2e-6);
}

TEST(Llama, BitsDoNotDependOnThreadsOrOnTheRunBefore) {
  const GoldenCase golden("llama-gqa");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LlamaOptions options;
    options.dtype = dtype;
    std::vector<Step> steps;
    for (const int threads : {1, 2, 5}) {
      const auto backend = make_cpu_backend(threads);
      const auto model = make_model(golden, *backend, options);
      steps.push_back(step_of(*model, golden.all.batch(), 1));
      steps.push_back(step_of(*model, golden.single[0].batch(), 1));  // leaves other buffers
      steps.back() = step_of(*model, golden.all.batch(), 1);
    }
    for (const Step& step : steps) {
      EXPECT_EQ(step.loss, steps[0].loss);
      EXPECT_EQ(step.gradients, steps[0].gradients);
    }
  }
}

TEST(Llama, TiedEmbeddingsGetBothGradients) {
  const auto backend = make_cpu_backend();
  GoldenCase golden("llama-mha-odd");
  golden.weights["lm_head.weight"] = golden.weights["model.embed_tokens.weight"];
  const auto untied = make_model(golden, *backend);
  golden.config.tie_word_embeddings = true;
  const auto tied = make_model(golden, *backend);
  EXPECT_EQ(tied->parameters().size() + 1, untied->parameters().size());
  EXPECT_EQ(logits_of(*tied, golden.all.batch()), logits_of(*untied, golden.all.batch()));
  const Step one = step_of(*tied, golden.all.batch(), 1);
  const Step two = step_of(*untied, golden.all.batch(), 1);
  std::vector<float> both = two.gradients.front();
  for (std::size_t i = 0; i < both.size(); ++i) both[i] += two.gradients.back()[i];
  EXPECT_LE(relative_error(one.gradients.front(), both), 2e-6);
  // And a second run adds to the first.
  tied->forward_backward(golden.all.batch(), 1);
  for (float& g : both) g *= 2;
  EXPECT_LE(relative_error(tied->parameters().front().gradient.as<float>(), both), 2e-6);
}

TEST(Llama, Bf16IsCloseToF32) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-gqa");
  LlamaOptions options;
  options.dtype = DType::bf16;
  const auto model = make_model(golden, *backend, options);
  // A rounding of 2^-9 at some 20 steps of 2 layers, of random sign: sqrt(20) * 2^-9 = 9e-3; the
  // largest of a tensor's elements may be 4 times off.
  const auto count = static_cast<double>(golden.all.count());
  EXPECT_LE(relative_error(logits_of(*model, golden.all.batch()), golden.logits), 4e-2);
  const Step step = step_of(*model, golden.all.batch(), static_cast<float>(1 / count));
  EXPECT_NEAR(step.loss / count, golden.loss, 1e-2 * golden.loss);
  for (std::size_t i = 0; i < step.gradients.size(); ++i) {
    const std::string& name = model->parameters()[i].weight.name;
    EXPECT_LE(relative_error(step.gradients[i], golden.gradients.at(name)), 4e-2) << name;
  }
}

TEST(Llama, IgnoredLabelsOnlyGiveNoLossAndNoGradient) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-mha-odd");
  const auto model = make_model(golden, *backend);
  Sequences ignored = golden.all;
  std::fill(ignored.labels.begin(), ignored.labels.end(), -100);
  const Step step = step_of(*model, ignored.batch(), 1);
  EXPECT_EQ(step.loss, 0);
  for (const auto& gradient : step.gradients) {
    for (const float g : gradient) ASSERT_EQ(g, 0);
  }
}

TEST(Llama, NoTokens) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-mha-odd");
  const auto model = make_model(golden, *backend);
  Sequences none;
  const Step step = step_of(*model, none.batch(), 1);
  EXPECT_EQ(step.loss, 0);
  for (const auto& gradient : step.gradients) {
    for (const float g : gradient) ASSERT_EQ(g, 0);
  }
  EXPECT_TRUE(logits_of(*model, none.batch()).empty());
}

TEST(Llama, NeitherGradientsInThePlansMemoryNorProductsThatRunAgainChangeABit) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-gqa");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LlamaOptions options;
    options.dtype = dtype;
    const auto sums = make_model(golden, *backend, options);
    const Step want = step_of(*sums, golden.all.batch(), 0.25f);
    const double held = saved_bytes(sums->plan(LlamaModel::Use::training), golden.all.count());
    options.accumulates = false;
    for (const bool again : {false, true}) {
      options.compile.recompute_products = again;
      options.compile.held_price = again ? 1000 : 0;
      const auto model = make_model(golden, *backend, options);
      for (int run = 0; run < 2; ++run) {  // it sets them, whatever was there
        EXPECT_EQ(model->forward_backward(golden.all.batch(), 0.25f), want.loss);
        model->fetch_gradients();
        for (std::size_t i = 0; i < want.gradients.size(); ++i) {
          const auto got = model->parameters()[i].gradient.as<const float>();
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.gradients[i].begin(),
                                 want.gradients[i].end()))
              << model->parameters()[i].weight.name;
        }
      }
      if (!again) continue;
      EXPECT_LT(saved_bytes(model->plan(LlamaModel::Use::training), golden.all.count()),
                0.7 * held);
    }
  }
}

/// The sequences of a case again and again, so many tokens or a few more.
Sequences repeated(const GoldenCase& golden, std::size_t tokens) {
  Sequences all;
  while (all.tokens.size() < tokens)
    for (const Sequences& s : golden.single) all.add(s.tokens, s.labels);
  return all;
}

/// Only what is summed over rows may differ: the loss, and the gradient of the head, which is
/// rounded at most 24 times more than in one sum (of terms that may cancel).
void expect_pieces(const Step& got, const Step& want, const LlamaModel& model) {
  const bool tied = model.config().tie_word_embeddings;
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * std::abs(want.loss));
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    const std::string& name = model.parameters()[i].weight.name;
    const bool head = name == (tied ? "model.embed_tokens.weight" : "lm_head.weight");
    EXPECT_LE(relative_error(got.gradients[i], want.gradients[i]), head ? 3e-6 : 0) << name;
  }
}

TEST(Llama, LogitsInPiecesChangeOnlyWhatIsSummedOverRows) {
  const auto backend = make_cpu_backend();
  for (const bool tied : {false, true}) {
    GoldenCase golden(tied ? "llama-mha-odd" : "llama-gqa");
    golden.config.tie_word_embeddings = tied;
    if (!tied)
      golden.weights.try_emplace("lm_head.weight", golden.weights.at("model.embed_tokens.weight"));
    const Sequences batch = repeated(golden, 3 * kRowGranule + 1);
    Sequences ignored = batch;
    std::fill(ignored.labels.begin(), ignored.labels.end(), -100);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const double price : {0.0, 1.5}) {
        LlamaOptions options;
        options.dtype = dtype;
        options.compile.held_price = price;
        const auto whole = make_model(golden, *backend, options);
        whole->reserve(static_cast<std::int64_t>(batch.tokens.size()));
        for (const int pieces : {2, 3, 24}) {
          SCOPED_TRACE(
              fmt::format("tied {} {} price {} pieces {}", tied, name_of(dtype), price, pieces));
          options.compile.pieces = pieces;
          const auto model = make_model(golden, *backend, options);
          model->reserve(whole->reserved());
          const Plan& plan = model->plan(LlamaModel::Use::training);
          EXPECT_GT(std::count_if(plan.backward.begin(), plan.backward.end(),
                                  [&](const auto& step) { return step.piece.count == pieces; }),
                    0);
          for (const Sequences& rows : {batch, golden.single[0], Sequences{}, ignored, batch}) {
            expect_pieces(step_of(*model, rows.batch(), 0.25f),
                          step_of(*whole, rows.batch(), 0.25f), *whole);
          }
        }
      }
    }
  }
}

/// The message of the UsageError that `run` throws; gradients must be as they were.
template <class Run>
std::string usage_error(LlamaModel& model, const Run& run) {
  std::string message = "no error";
  for (LlamaModel::Parameter& p : model.parameters()) {
    const auto g = p.gradient.as<float>();
    std::fill(g.begin(), g.end(), 7.0f);
  }
  try {
    run();
  } catch (const UsageError& error) {
    message = error.what();
  }
  for (const LlamaModel::Parameter& p : model.parameters()) {
    for (const float g : p.gradient.as<const float>()) {
      if (g != 7.0f) return "gradients were written: " + message;
    }
  }
  return message;
}

TEST(Llama, BadBatchesAreErrorsBeforeAnythingIsWritten) {
  const auto backend = make_cpu_backend();
  const GoldenCase golden("llama-mha-odd");
  const auto model = make_model(golden, *backend);
  const auto message = [&](auto change) {
    Sequences bad = golden.all;
    change(bad);
    return usage_error(*model, [&] { model->forward_backward(bad.batch(), 1); });
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  std::string text = message([](Sequences& s) { s.labels[2] = 97; });
  EXPECT_TRUE(contains(text, "labels") && contains(text, "[0, 97)") && contains(text, "97."))
      << text;
  text = message([](Sequences& s) { s.tokens[3] = -1; });
  EXPECT_TRUE(contains(text, "tokens") && contains(text, "-1")) << text;
  text = message([](Sequences& s) { s.cu_seqlens.back() -= 1; });
  EXPECT_TRUE(contains(text, "cu_seqlens")) << text;
  text = message([](Sequences& s) { s.positions.pop_back(); });
  EXPECT_TRUE(contains(text, "positions")) << text;
  text = message([](Sequences& s) { s.add({1, 2}, {3, 4}); });
  EXPECT_TRUE(contains(text, "reserve")) << text;
  EXPECT_THROW(model->parameter("model.layers.9.mlp.up_proj.weight"), UsageError);
}

}  // namespace
}  // namespace coda::test
