#include "train/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coda/error.h"
#include "train/bigram_model.h"
#include "train/file.h"
#include "train/init.h"
#include "train/random.h"
#include "train/safetensors.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kVocab = 7;

TrainOptions small_options() {
  TrainOptions o;
  o.data = {"unused"};
  o.seq = 8;
  o.batch = 4;
  o.steps = 30;
  o.warmup = 3;
  o.lr = 0.1;
  o.min_lr = 0.01;
  o.eval_every = 10;
  o.save_every = 10;
  return o;
}

/// A stream in which each token mostly determines the next.
std::vector<std::int32_t> chain(std::size_t count) {
  const CounterRandom random(5, 0);
  std::vector<std::int32_t> tokens{0};
  while (tokens.size() < count) {
    const bool jumps = random.below(tokens.size(), 4) == 0;
    tokens.push_back(static_cast<std::int32_t>(jumps ? random.bits(tokens.size()) % kVocab
                                                     : (tokens.back() * 3 + 1) % kVocab));
  }
  return tokens;
}

struct TrainedRun {
  std::vector<float> values;
  std::string weights, state;
  std::vector<std::string> metrics;  // without speeds
};

std::vector<std::string> metrics_of(const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    auto json = nlohmann::json::parse(line);
    for (const char* key : {"tokens_per_second", "memory_bytes"}) json.erase(key);
    lines.push_back(json.dump());
  }
  return lines;
}

/// Trains in stretches that end at the given steps, each with a fresh model that resumes.
TrainedRun train_in(const std::filesystem::path& folder, const TrainOptions& options, DType dtype,
                    const std::vector<std::int64_t>& ends) {
  const auto tokens = chain(600);
  const TokenSplit split = split_tokens(tokens, options.seq);
  const Checkpoint checkpoint(folder, dtype);
  TrainedRun run;
  std::int64_t done = 0;
  for (const std::int64_t end : ends) {
    BigramModel model(kVocab);
    AdamW optimizer(model.parameters(), {});
    initialize(model, options.seed);
    Progression progression;
    if (done > 0) progression = checkpoint.load(model, optimizer);
    EXPECT_EQ(progression.done, done);
    train_loop(model, optimizer, split, options, checkpoint, progression, end, {});
    done = progression.done;
    EXPECT_EQ(done, end);
    run.values.clear();
    for (const Parameter& p : model.parameters()) {
      run.values.insert(run.values.end(), p.value.begin(), p.value.end());
    }
  }
  run.weights = read_file(folder / "model.safetensors");
  run.state = read_file(folder / "optimizer.safetensors");
  run.metrics = metrics_of(folder);
  return run;
}

TEST(Loop, LearnsTheChain) {
  const TemporaryFolder folder;
  TrainOptions options = small_options();
  options.steps = 200;
  const TrainedRun run = train_in(folder.path(), options, DType::f32, {200});
  const auto tokens = chain(600);
  const TokenSplit split = split_tokens(tokens, options.seq);
  const auto last = nlohmann::json::parse(run.metrics.back());
  EXPECT_EQ(last["step"], 200);
  EXPECT_LT(last["eval_loss"].get<double>(),
            0.8 * unigram_loss(split.training, split.held_out, kVocab));
  EXPECT_EQ(run.metrics.size(), 200u + 20u);
}

TEST(Loop, StoppingAndResumingChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TemporaryFolder a, b;
    const TrainedRun whole = train_in(a.path(), small_options(), dtype, {30});
    const TrainedRun parts = train_in(b.path(), small_options(), dtype, {1, 17, 20, 30});
    EXPECT_EQ(whole.values, parts.values);
    EXPECT_EQ(whole.weights, parts.weights);
    EXPECT_EQ(whole.state, parts.state);
    EXPECT_EQ(whole.metrics, parts.metrics);
  }
}

TEST(Loop, AccumulatedMicroBatchesEqualTheBigBatch) {
  const TemporaryFolder a, b;
  TrainOptions options = small_options();
  options.steps = 1;
  const TrainedRun big = train_in(a.path(), options, DType::f32, {1});
  options.batch = 1;
  options.accumulate = 4;
  const TrainedRun small = train_in(b.path(), options, DType::f32, {1});
  // The fake model adds gradients in the same order either way: not even rounding differs.
  EXPECT_EQ(big.values, small.values);
  const auto loss = [](const TrainedRun& run) {
    return nlohmann::json::parse(run.metrics[0])["loss"].get<double>();
  };
  EXPECT_NEAR(loss(big), loss(small), 1e-14);
}

TEST(Loop, StopsAfterTheStepWhenAsked) {
  const TemporaryFolder folder;
  const TrainOptions options = small_options();
  const auto tokens = chain(600);
  BigramModel model(kVocab);
  AdamW optimizer(model.parameters(), {});
  const Checkpoint checkpoint(folder.path(), DType::f32);
  std::int64_t asked = 0, saved = 0;
  LoopEvents events;
  events.should_stop = [&] { return ++asked == 4; };
  events.on_save = [&](std::int64_t step) { saved = step; };
  Progression run;
  train_loop(model, optimizer, split_tokens(tokens, 8), options, checkpoint, run, 30, events);
  EXPECT_EQ(run.done, 4);
  EXPECT_EQ(saved, 4);
}

/// Breaks after two steps as a diverging run does.
class Diverging : public BigramModel {
 public:
  using BigramModel::BigramModel;
  double forward_backward(const Batch& batch, float scale) override {
    const double loss = BigramModel::forward_backward(batch, scale);
    return ++calls > 2 ? std::numeric_limits<double>::quiet_NaN() : loss;
  }
  int calls = 0;
};

TEST(Loop, ALossThatIsNotFiniteEndsTheRun) {
  const TemporaryFolder folder;
  TrainOptions options = small_options();
  options.save_every = 2;
  const auto tokens = chain(600);
  Diverging model(kVocab);
  AdamW optimizer(model.parameters(), {});
  const Checkpoint checkpoint(folder.path(), DType::f32);
  EXPECT_THAT(
      message_of<Error>([&] {
        Progression run;
        train_loop(model, optimizer, split_tokens(tokens, 8), options, checkpoint, run, 30, {});
      }),
      AllOf(HasSubstr("step 3"), HasSubstr("loss nan"), HasSubstr("checkpoint is of step 2")));
  EXPECT_EQ(checkpoint.load(model, optimizer).done, 2);
}

/// Where a run ends that leaves out every step after the second; 0: at the end of its schedule.
std::int64_t skips_until(std::int64_t steps, std::int64_t stop) {
  const TemporaryFolder folder;
  TrainOptions options = small_options();
  options.steps = steps;
  options.on_nan = "skip";
  const auto tokens = chain(600);
  const Checkpoint checkpoint(folder.path(), DType::f32);
  Progression run;
  for (const std::int64_t end : {stop, steps}) {
    Diverging model(kVocab);
    if (run.done > 0) model.calls = 2;
    AdamW optimizer(model.parameters(), {});
    if (run.done > 0) run = checkpoint.load(model, optimizer);
    try {
      train_loop(model, optimizer, split_tokens(tokens, 8), options, checkpoint, run, end, {});
    } catch (const Diverged& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("skipped steps in a row"), HasSubstr("Lower --lr")));
      EXPECT_EQ(e.skipping(), "");
      return run.done + 1;
    }
  }
  return 0;
}

TEST(Loop, ManySkippedStepsInARowEndTheRun) {
  EXPECT_EQ(skips_until(34, 34), 34);  // 2 steps and 32
  EXPECT_EQ(skips_until(33, 33), 0);
  EXPECT_EQ(skips_until(100, 20), 34);  // those before a stop count
}

class NeverFinite : public Diverging {
 public:
  explicit NeverFinite(std::int64_t vocab) : Diverging(vocab) { calls = 2; }
};

TEST(Loop, AScheduleOfSkippedStepsIsNoSuccess) {
  const TemporaryFolder folder;
  TrainOptions options = small_options();
  options.steps = 5;
  options.on_nan = "skip";
  NeverFinite model(kVocab);
  AdamW optimizer(model.parameters(), {});
  Progression run;
  const auto tokens = chain(600);
  EXPECT_THROW(train_loop(model, optimizer, split_tokens(tokens, 8), options,
                          Checkpoint(folder.path(), DType::f32), run, 5, {}),
               Diverged);
}

/// Weights and state of steps 10 and 20 of one run.
struct TwoSaves {
  TemporaryFolder a, b;
  TwoSaves() {
    train_in(a.path(), small_options(), DType::f32, {10});
    train_in(b.path(), small_options(), DType::f32, {20});
  }
};

std::int64_t resumed(const std::filesystem::path& folder) {
  BigramModel model(kVocab);
  AdamW optimizer(model.parameters(), {});
  return Checkpoint(folder, DType::f32).load(model, optimizer).done;
}

TEST(Checkpoint, AnyInstantOfASaveCanBeResumed) {
  const TwoSaves saves;
  const auto old_model = read_file(saves.a.path() / "model.safetensors");
  const auto old_state = read_file(saves.a.path() / "optimizer.safetensors");
  const auto new_model = read_file(saves.b.path() / "model.safetensors");
  const auto new_state = read_file(saves.b.path() / "optimizer.safetensors");
  const auto at_instant = [&](int writes, int renames) {
    const TemporaryFolder run;
    run.write("model.safetensors", renames >= 2 ? new_model : old_model);
    run.write("optimizer.safetensors", renames >= 1 ? new_state : old_state);
    // an interrupted write leaves half a file
    if (writes == 1) run.write("model.safetensors.new", new_model.substr(0, new_model.size() / 2));
    if (writes >= 2 && renames < 2) run.write("model.safetensors.new", new_model);
    if (writes == 2) run.write("optimizer.safetensors.new", new_state.substr(0, 100));
    if (writes == 3 && renames < 1) run.write("optimizer.safetensors.new", new_state);
    const std::int64_t step = resumed(run.path());
    EXPECT_EQ(read_file(run.path() / "model.safetensors"), step == 20 ? new_model : old_model);
    return step;
  };
  EXPECT_EQ(at_instant(0, 0), 10);
  EXPECT_EQ(at_instant(1, 0), 10);
  EXPECT_EQ(at_instant(2, 0), 10);
  EXPECT_EQ(at_instant(3, 0), 10);
  EXPECT_EQ(at_instant(3, 1), 20);
  EXPECT_EQ(at_instant(3, 2), 20);
}

TEST(Checkpoint, FilesOfDifferentSavesAreRefused) {
  const TwoSaves saves;
  const TemporaryFolder run;
  run.write("model.safetensors", read_file(saves.a.path() / "model.safetensors"));
  run.write("optimizer.safetensors", read_file(saves.b.path() / "optimizer.safetensors"));
  EXPECT_THAT(message_of<UsageError>([&] { resumed(run.path()); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("step 20")));
}

TEST(Checkpoint, AFailedSaveLeavesTheOldOne) {
  const TemporaryFolder run;
  train_in(run.path(), small_options(), DType::f32, {10});
  // A folder in the way of the new file: the write fails.
  std::filesystem::create_directories(run.path() / "optimizer.safetensors.new");
  BigramModel model(kVocab);
  AdamW optimizer(model.parameters(), {});
  EXPECT_THROW(Checkpoint(run.path(), DType::f32).save({.done = 11}, model, optimizer),
               BackendError);
  EXPECT_EQ(resumed(run.path()), 10);
}

TEST(Checkpoint, MetricsAreCutToTheResumedStep) {
  const TemporaryFolder run;
  train_in(run.path(), small_options(), DType::f32, {10});
  const Checkpoint checkpoint(run.path(), DType::f32);
  const auto before = metrics_of(run.path());
  checkpoint.log(R"({"step":11,"loss":1.0})");
  checkpoint.log(R"({"step":12,"lo)");
  EXPECT_EQ(resumed(run.path()), 10);
  EXPECT_EQ(metrics_of(run.path()), before);
}

TEST(Checkpoint, AnotherModelIsRefused) {
  const TemporaryFolder run;
  train_in(run.path(), small_options(), DType::f32, {10});
  BigramModel other(kVocab + 1);
  AdamW optimizer(other.parameters(), {});
  EXPECT_THAT(
      message_of<UsageError>([&] { Checkpoint(run.path(), DType::f32).load(other, optimizer); }),
      AllOf(HasSubstr("table.weight"), HasSubstr("[8, 8]"), HasSubstr("F32[7, 7]")));
  EXPECT_THAT(message_of<UsageError>([&] { load_weights(other, run.path()); }),
              HasSubstr("table.weight"));
}

TEST(Checkpoint, Bf16WeightsAreTheRoundedMasters) {
  const TemporaryFolder run;
  const TrainedRun result = train_in(run.path(), small_options(), DType::bf16, {10});
  BigramModel model(kVocab);
  load_weights(model, run.path());
  EXPECT_EQ(SafetensorsFile(run.path() / "model.safetensors").at("bias").dtype, "BF16");
  std::size_t i = 0;
  for (const Parameter& p : model.parameters()) {
    for (const float value : p.value) {
      const float master = result.values[i++];
      EXPECT_NEAR(value, master, std::abs(master) * 0x1p-8);
    }
  }
}

TEST(LoadWeights, MissingAndUnknownTensorsAreNamed) {
  const TemporaryFolder folder;
  const std::vector<float> zeros(kVocab * kVocab);
  std::vector<StoredTensor> tensors{
      {"table.weight", "F32", {kVocab, kVocab}, std::as_bytes(std::span(zeros))}};
  const auto complaint = [&] {
    write_safetensors(folder.path() / "model.safetensors", tensors, {});
    BigramModel model(kVocab);
    return message_of<UsageError>([&] { load_weights(model, folder.path()); });
  };
  EXPECT_THAT(complaint(), HasSubstr("expected a tensor \"bias\" of shape [7]"));
  tensors.push_back({"bias", "F32", {kVocab}, std::as_bytes(std::span(zeros).first(kVocab))});
  EXPECT_EQ(complaint(), "");
  tensors.push_back({"bios", "F32", {kVocab}, std::as_bytes(std::span(zeros).first(kVocab))});
  EXPECT_THAT(complaint(), HasSubstr("got also \"bios\""));
}

TEST(Options, WrongValuesAreNamedAsOnTheCommandLine) {
  const auto complaint = [](auto change) {
    TrainOptions options = small_options();
    change(options);
    return message_of<UsageError>([&] { check(options); });
  };
  EXPECT_EQ(complaint([](TrainOptions&) {}), "");
  EXPECT_THAT(complaint([](TrainOptions& o) { o.seq = 0; }), HasSubstr("--seq: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.batch = -1; }), HasSubstr("--batch: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.lr = std::nan(""); }), HasSubstr("--lr: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.min_lr = 1.0; }), HasSubstr("--min-lr: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.dtype = "f8"; }), HasSubstr("--dtype: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.data.clear(); }), HasSubstr("--data: expected"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.batch = o.seq = 1 << 20; }), HasSubstr("2^31"));
}

TEST(Options, SurviveTheFile) {
  TrainOptions options = small_options();
  options.seed = 0xfedcba9876543210;
  options.lr = 0.1 + 0.2;
  const TrainOptions again = parse_train_options(to_json(options), "options.json");
  EXPECT_EQ(to_json(again), to_json(options));
  EXPECT_EQ(again.seed, options.seed);
  EXPECT_EQ(again.lr, options.lr);
  EXPECT_THAT(message_of<UsageError>([] { parse_train_options("{}", "options.json"); }),
              HasSubstr("options.json: data: expected a list of texts"));
  const auto spoilt = [&](const char* key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(to_json(options));
    json[key] = value;
    return message_of<UsageError>([&] { parse_train_options(json.dump(), "options.json"); });
  };
  EXPECT_THAT(spoilt("steps", "many"), HasSubstr("steps: expected a whole number, as `coda train` "
                                                 "writes it, got \"many\""));
  EXPECT_THAT(spoilt("seed", -1), HasSubstr("seed: expected a whole number of 0 or more"));
  EXPECT_THAT(spoilt("tie_embeddings", 1), HasSubstr("expected true or false"));
  EXPECT_THAT(spoilt("steps", 18446744073709551615u), HasSubstr("got 18446744073709551615"));
  EXPECT_THAT(spoilt("stepps", 3), HasSubstr("got also \"stepps\""));
  EXPECT_THAT(message_of<UsageError>([] { parse_train_options("{\"data\":3", "options.json"); }),
              HasSubstr("options.json"));
}

}  // namespace
}  // namespace coda
