// Runs the program itself, as a user does: what it prints, where, and its exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ops/op_table.h"
#include "train/file.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Result {
  int code;
  std::string out, err;

  std::vector<json> lines() const {
    std::vector<json> objects;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) objects.push_back(json::parse(line));
    return objects;
  }
};

/// A shell command line in which `coda` is the program just built.
Result shell(const TemporaryFolder& folder, const std::string& command) {
  const std::string build = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const std::string line = "cd '" + folder.path().string() + "' && PATH='" + build +
                           "':\"$PATH\" && (" + command + ") > out.txt 2> err.txt";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder.path() / "out.txt"),
          read_file(folder.path() / "err.txt")};
}

const std::string kGolden = std::string(CODA_SOURCE_DIR) + "/tests/golden/";

std::string some_text() {
  std::string text;
  for (int i = 0; i < 120; ++i) {
    text += "The number " + std::to_string(i * 37 % 101) + " follows, and then the dog sleeps.\n";
  }
  return text;
}

// a model that takes milliseconds a step
const std::string kSmall =
    "coda train --data text.txt --tokenizer bytes --d-model 32 --layers 1 --heads 2 --seq 32 "
    "--batch 2 ";
const std::string kSchedule = "--steps 6 --eval-every 3 --save-every 2 ";

TEST(Command, HelpTeachesAndGoesToStdout) {
  const TemporaryFolder folder;
  const Result all = shell(folder, "coda --help");
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr("train"), HasSubstr("generate"), HasSubstr("Example")));
  for (const char* name :
       {"train", "eval", "generate", "verify", "explain", "check", "bench", "info"}) {
    const Result one = shell(folder, std::string("coda ") + name + " --help");
    EXPECT_EQ(one.code, 0) << name;
    EXPECT_THAT(one.out, AllOf(HasSubstr("--json"), HasSubstr("Example"))) << name;
    EXPECT_EQ(one.err, "") << name;
  }
  EXPECT_THAT(shell(folder, "coda train --help").out, HasSubstr("--steps INT=600"));
}

TEST(Command, WrongUseExitsWithTwoAndSaysWhy) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  folder.write("tiny.txt", "x");
  folder.write("bad.json", "{\"data\": [\"text.txt\"], \"steps\": \"x\"}");
  folder.write("odd.json", "{\"stepz\": 3}");
  folder.write("binary", std::string("a\0b", 3));
  const std::pair<std::string, std::string> cases[] = {
      {"coda", "expected a command"},
      {"coda nonsense", "expected one of the commands train, eval, generate,"},
      {"coda train --data text.txt --out /proc/x", "--out: /proc/x: expected a path at which"},
      {"coda train --nonsense 3", "nonsense"},
      {"coda train --data text.txt --seq three --out r",
       "--seq: expected a whole number, got \"three\""},
      {"coda train --data text.txt --steps -3 --out r",
       "--steps: expected a whole number from 1 to"},
      {"coda train --data text.txt --steps 99999999999999999999 --out r",
       "fits in 64 bits, got \"99999999999999999999\""},
      {"coda train --data text.txt --lr fast --out r", "--lr: expected a number, got \"fast\""},
      {"coda train --data text.txt --seed -1 --out r", "--seed: expected"},
      {"coda train --data text.txt --threads 3000000000 --out r", "got \"3000000000\""},
      {"coda train --data text.txt --batch 0 --out r", "--batch: expected"},
      {"coda train --data text.txt --batch", "--batch: expected one value, got none"},
      {"coda train --data text.txt --batch 1 --batch 2", "--batch: expected one value, got 2"},
      {"coda train --data text.txt --d-model 2147483648 --out r",
       "--d-model: expected a whole number from 1 to 16777216, got 2147483648"},
      {"coda train --data text.txt --out text.txt/r", "(a file) in the way"},
      {"coda train --data text.txt --on-nan panic --out r", "--on-nan: expected one of stop, skip"},
      {"coda train --config none.json --out r", "none.json: cannot open"},
      {"coda train --config text.txt --out r", "--config: text.txt: expected a JSON object"},
      {"coda train --config bad.json --out r",
       "--config: bad.json: steps: expected a whole number"},
      {"coda train --config odd.json --out r", "--config: odd.json: stepz: expected an option"},
      {"coda eval --data text.txt", "--model: expected a value, got none"},
      {"coda train --data text.txt", "--out: expected"},
      {"coda train --out r", "--data: expected"},
      {"coda train --data none.txt --out r", "--data: none.txt"},
      {"coda train --data binary --out r", "binary: expected UTF-8 text"},
      {"coda train --data tiny.txt --tokenizer bytes --out r", "--seq 128"},
      {"coda train --data text.txt --heads 3 --out r", "--heads"},
      {"coda train --data text.txt --vocab 7 --out r", "--vocab"},
      {"coda train --data text.txt --dtype f8 --out r", "--dtype"},
      {"coda train --data text.txt --device gpu9 --out r", "--device"},
      {"coda train --resume none", "--resume: none"},
      {"coda explain llama", "llama-layer, llama-head or attention"},
      {"coda explain llama-layer --head-dim 3", "head_dim"},
      {"coda explain llama-layer --dtype i32", "dtype"},
      {"coda explain llama-head --tokens 0", "--tokens"},
      {"coda check --filter op/none", "got \"op/none\""},
      {"coda check llama-head --filter op/", "expected no block beside it"},
      {"coda check --save x.safetensors", "expected a block"},
      {"coda explain llama-head --device gpu", "expected cpu or cuda, got \"gpu\""},
      {"coda eval --model none --data text.txt", "none: expected a model folder"},
      {"coda generate --model none --prompt x", "none: expected a model folder"},
      {"coda verify --model " + kGolden + "llama-gqa --case none", "none: cannot open"},
      {"coda verify --model " + kGolden + "llama-gqa --case text.txt", "text.txt: header"},
  };
  for (const auto& [command, message] : cases) {
    const Result result = shell(folder, command);
    EXPECT_EQ(result.code, 2) << command << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(message)) << command;
    EXPECT_EQ(result.out, "") << command;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "r"));  // nothing is left behind
}

TEST(Command, VerifyAgreesWithTransformers) {
  const TemporaryFolder folder;
  for (const std::string name : {"llama-gqa", "llama-mha-odd"}) {
    const std::string model = kGolden + name;
    const Result result = shell(
        folder, "coda verify --json --model " + model + " --case " + model + "/case.safetensors");
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    const auto lines = result.lines();
    EXPECT_EQ(lines.back()["failed"], 0);
    EXPECT_EQ(lines.back()["compared"], lines.size() - 1);
    EXPECT_GT(lines.size(), 12u);
    const Result bf16 = shell(folder, "coda verify --dtype bf16 --model " + model + " --case " +
                                          model + "/case.safetensors");
    EXPECT_EQ(bf16.code, 0) << bf16.out << bf16.err;
    // a bound that fp32 cannot meet: the comparison can fail
    const Result strict = shell(folder, "coda verify --tol 1e-12 --model " + model + " --case " +
                                            model + "/case.safetensors");
    EXPECT_EQ(strict.code, 1);
    EXPECT_THAT(strict.out, HasSubstr("FAIL"));
  }
}

/// metrics.jsonl without speeds, and the bytes of weights and optimiser state.
std::vector<std::string> state_of(const std::filesystem::path& run) {
  std::vector<std::string> state{read_file(run / "model.safetensors"),
                                 read_file(run / "optimizer.safetensors")};
  std::istringstream text(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    json object = json::parse(line);
    for (const char* key : {"tokens_per_second", "memory_bytes"}) object.erase(key);
    state.push_back(object.dump());
  }
  return state;
}

// What changes are the terms that one instruction rounds together (fused multiply-add or not),
// never the order of summation. So each sum of K terms is off by at most K roundings of 2^-24, and
// a loss by those of the longest chain: K <= 258 (the vocabulary), about 10 products in a row, the
// same again in the weights of every step before.
TEST(Command, InstructionSetsDifferByRoundingOnly) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  std::vector<std::vector<json>> runs;
  for (const std::string cap : {"auto", "avx2", "baseline"}) {
    const std::string environment = "CODA_CPU=" + cap + " ";
    const std::string model = kGolden + "llama-gqa";
    const Result verified = shell(folder, environment + "coda verify --json --model " + model +
                                              " --case " + model + "/case.safetensors");
    EXPECT_EQ(verified.code, 0) << cap << verified.out << verified.err;
    const Result trained = shell(folder, environment + kSmall + "--steps 6 --json --out " + cap);
    ASSERT_EQ(trained.code, 0) << trained.err;
    runs.push_back(trained.lines());
  }
  for (const auto& run : runs) {
    for (std::size_t step = 0; step < 6; ++step) {
      const double tolerance = 0x1p-24 * 258 * 10 * static_cast<double>(step + 1);
      for (const char* what : {"loss", "gradient_norm"}) {
        const double wanted = runs[0][step][what];
        EXPECT_NEAR(run[step][what], wanted, tolerance * wanted) << what << " of step " << step;
      }
    }
  }
#if defined(__x86_64__)
  const auto norms = [](const std::vector<json>& run) {
    std::vector<double> out;
    for (std::size_t step = 0; step < 6; ++step) out.push_back(run[step]["gradient_norm"]);
    return out;
  };
  EXPECT_NE(norms(runs[2]), norms(runs[0])) << "the cap did nothing";
#endif
  const Result wrong = shell(folder, "CODA_CPU=mmx coda info");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("CODA_CPU: expected one of auto, "));
}

TEST(Command, ResumingWithOtherThreadsChangesNoBit) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const TemporaryFolder folder;
    folder.write("text.txt", some_text());
    const Result whole =
        shell(folder, kSmall + kSchedule + "--threads 1 --json --out a --dtype " + dtype);
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(whole.err, "");
    const Result first =
        shell(folder, kSmall + kSchedule + "--threads 2 --stop-after 3 --out b --dtype " + dtype);
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_THAT(first.out, HasSubstr("coda train --resume b"));
    // Steps after the checkpoint, as a crash leaves them, are cut.
    const Result rest =
        shell(folder, "echo '{\"step\":4}' >> b/metrics.jsonl; coda train --resume b --threads 2");
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(state_of(folder.path() / "a"), state_of(folder.path() / "b"));

    const auto lines = whole.lines();
    ASSERT_EQ(lines.size(), 6u + 2u + 1u);  // steps, evaluations, the end
    for (const char* key : {"step", "loss", "lr", "tokens_per_second"}) {
      EXPECT_TRUE(lines[0].contains(key)) << key;
    }
    EXPECT_TRUE(lines[3].contains("eval_loss"));
    EXPECT_TRUE(lines.back().contains("unigram_loss"));
    EXPECT_LT(lines[7]["eval_loss"], lines[3]["eval_loss"]);
  }
}

TEST(Command, ATrainedModelIsEvaluatedAndContinuesText) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  const Result trained = shell(folder, kSmall + kSchedule + "--json --out run");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Result eval =
      shell(folder, "coda eval --json --model run --data text.txt --held-out --batch 2");
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(eval.lines()[0]["eval_loss"], trained.lines().back()["eval_loss"]);
  EXPECT_EQ(eval.lines()[0]["unigram_loss"], trained.lines().back()["unigram_loss"]);

  const std::string generate = "coda generate --json --model run --prompt 'The dog' --tokens 24 ";
  const Result once = shell(folder, generate + "--seed 1");
  ASSERT_EQ(once.code, 0) << once.err;
  const Result again = shell(folder, generate + "--seed 1 --threads 1");
  EXPECT_EQ(once.lines()[0]["text"], again.lines()[0]["text"]);
  EXPECT_LE(once.lines()[0]["tokens"], 24);
  EXPECT_EQ(once.lines()[0]["prompt_tokens"], 8);
  const Result plain = shell(folder, "coda generate --model run --prompt 'The dog' --tokens 3");
  EXPECT_THAT(plain.out, StartsWith("The dog"));
  EXPECT_EQ(plain.err, "");
  // 8 tokens of prompt and 24 more fill the context of 32.
  const Result beyond = shell(folder, "coda generate --model run --prompt 'The dog' --tokens 25");
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("at most 32 tokens of prompt and continuation together"));
  EXPECT_THAT(beyond.err, HasSubstr("got 8 + 25"));
  EXPECT_EQ(beyond.out, "");
}

TEST(Command, ACrashLosesNothingButTheStepsSinceTheCheckpoint) {
  // Killed without warning after the checkpoint of step 2, and before the first one.
  for (const std::string save : {"2", "0"}) {
    const TemporaryFolder folder;
    folder.write("text.txt", some_text());
    const std::string options = "--steps 40 --eval-every 5 --save-every " + save;
    ASSERT_EQ(shell(folder, kSmall + options + " --out a").code, 0);
    const Result killed =
        shell(folder, "(" + kSmall + options +
                          " --out b & pid=$!; for i in $(seq 600); do test \"$(wc -l < "
                          "b/metrics.jsonl)\" -gt 3 && break; sleep 0.01; done; kill -KILL $pid; "
                          "wait $pid); coda train --resume b");
    ASSERT_EQ(killed.code, 0) << killed.err;
    EXPECT_EQ(state_of(folder.path() / "a"), state_of(folder.path() / "b"));
  }
}

TEST(Command, TrainingGoesOnFromAnotherModel) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  const Result trained =
      shell(folder, "coda train --json --data text.txt --tokenizer bytes --model " + kGolden +
                        "llama-gqa --seq 32 --steps 4 --out run");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_LT(trained.lines()[3]["loss"], trained.lines()[0]["loss"]);
  const Result small = shell(folder, "coda train --data text.txt --tokenizer bytes --model " +
                                         kGolden + "llama-mha-odd --seq 32 --out other");
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, HasSubstr("vocab_size = 97"));
  const Result huge = shell(folder,
                            "coda train --data text.txt --tokenizer bytes --d-model 131072 "
                            "--heads 8 --out huge");
  EXPECT_EQ(huge.code, 2);
  EXPECT_THAT(huge.err, HasSubstr("GB of memory"));
}

TEST(Command, RunsProtectWhatTheyNeed) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  ASSERT_EQ(shell(folder, kSmall + kSchedule + "--stop-after 2 --out run").code, 0);
  const Result over = shell(folder, kSmall + kSchedule + "--out run");
  EXPECT_EQ(over.code, 2);
  EXPECT_THAT(over.err, HasSubstr("--resume"));
  const Result options = shell(folder, "coda train --resume run --lr 1");
  EXPECT_EQ(options.code, 2);
  EXPECT_THAT(options.err, HasSubstr("--lr"));
  const Result data = shell(folder, "echo more >> text.txt; coda train --resume run");
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("other data"));
  const Result weights =
      shell(folder, "echo x > run/model.safetensors; coda eval --model run --data text.txt");
  EXPECT_EQ(weights.code, 2);
  EXPECT_THAT(weights.err, HasSubstr("model.safetensors"));
}

TEST(Command, ARunWithoutItsOptimizerIsNotBegunAgain) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  const Result stopped =
      shell(folder, kSmall + kSchedule + "--device reference --stop-after 2 --out run");
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("coda train --resume run --device reference"));
  const Result resumed = shell(folder, "rm run/optimizer.safetensors; coda train --resume run");
  EXPECT_EQ(resumed.code, 2);
  EXPECT_THAT(resumed.err, HasSubstr("expected optimizer.safetensors"));
}

TEST(Command, SeedsAreWholeNumbers) {
  const TemporaryFolder folder;
  for (const char* seed : {"-1", "18446744073709551616", "x", "1.5"}) {
    const Result result = shell(folder, kSmall + "--out run --seed=" + seed);
    EXPECT_EQ(result.code, 2) << seed;
    EXPECT_THAT(result.err, HasSubstr("--seed: expected a whole number")) << seed;
  }
}

TEST(Command, ASignalSavesAndPrintsHowToContinue) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  const Result stopped =
      shell(folder, kSmall +
                        "--steps 1000000 --save-every 0 --out run & pid=$!; for i in "
                        "$(seq 600); do test -s run/metrics.jsonl && break; sleep 0.05; "
                        "done; kill -TERM $pid; wait $pid");
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("Continue with: coda train --resume run"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "run" / "model.safetensors"));
  EXPECT_EQ(shell(folder, "coda train --resume run --stop-after 1").code, 0);
}

// The signal comes once the program handles it, and long before 3 MB of text are pieces.
TEST(Command, ASignalWhileARunIsSetUpLeavesNothing) {
  const TemporaryFolder folder;
  std::string text;
  for (std::int64_t i = 0; i < 300000; ++i)
    text += std::to_string(i * 7919 % 100003) + (i % 9 ? " " : "\n");
  folder.write("text.txt", text);
  const Result stopped = shell(folder,
                               "coda train --data text.txt --out run & pid=$!; for i in $(seq "
                               "600); do caught=0x$(sed -n 's/^SigCgt:\t//p' /proc/$pid/status); "
                               "[ $((caught & 0x4000)) -ne 0 ] && break; sleep 0.01; done; "
                               "kill -TERM $pid; wait $pid");
  EXPECT_EQ(stopped.code, 0) << stopped.out;
  EXPECT_THAT(stopped.err, HasSubstr("stopped before the first step; nothing was written"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run"));
}

TEST(Command, GenerateSendsATerminalNoControlCharacters) {
  const TemporaryFolder folder;
  const Result terminal = shell(folder, "script -qec true /dev/null");
  if (terminal.code != 0) GTEST_SKIP() << "no terminal can be had here: " << terminal.err;
  folder.write("text.txt", some_text());
  ASSERT_EQ(shell(folder, kSmall + "--steps 1 --out run").code, 0);
  const std::string generate =
      "coda generate --model run --prompt The --tokens 28 --temperature 4 --top-p 1 ";
  std::string raw, shown;
  for (int seed = 0; seed < 8; ++seed) {  // bytes of an untrained model
    const std::string command = generate + "--seed " + std::to_string(seed);
    raw += shell(folder, command).out;
    shown += shell(folder, "script -qec '" + command + "' /dev/null").out;
  }
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t';
  };
  EXPECT_TRUE(std::any_of(raw.begin(), raw.end(), is_control)) << "the test shows nothing";
  EXPECT_TRUE(std::none_of(shown.begin(), shown.end(), is_control)) << shown;
  EXPECT_THAT(shown, HasSubstr("\\x"));
}

TEST(Command, EvalAndTrainAgreeOnTheSameTokens) {
  const TemporaryFolder folder;
  folder.write("text.txt", some_text());
  const Result trained = shell(folder, kSmall + "--steps 2 --eval-tokens 100 --json --out run");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Result evaluated = shell(folder,
                                 "coda eval --model run --data text.txt --held-out --seq 32 "
                                 "--eval-tokens 100 --json");
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  for (const char* what : {"unigram_loss", "eval_loss"})
    EXPECT_DOUBLE_EQ(evaluated.lines().back()[what], trained.lines().back()[what]) << what;
}

TEST(Command, ExplainShowsMathProgramsAndCosts) {
  const TemporaryFolder folder;
  const Result layer = shell(folder, "coda explain llama-layer --d-model 256");
  EXPECT_EQ(layer.code, 0) << layer.err;
  EXPECT_THAT(layer.out, AllOf(HasSubstr("matmul nt"), HasSubstr("program "), HasSubstr("GFLOP")));
  const auto totals = [&](const std::string& options) {
    const Result result = shell(folder, "coda explain --json " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.lines().back();
  };
  const json fused = totals("llama-layer --d-model 256 --tokens 1000");
  const json unfused = totals("llama-layer --d-model 256 --tokens 1000 --unfused");
  EXPECT_LT(fused["forward"]["bytes"], unfused["forward"]["bytes"]);
  // two GEMM passes backward for one forward; FLOPs of the head are 2 M N K
  EXPECT_EQ(fused["backward"]["flops"], 2 * fused["forward"]["flops"].get<double>());
  const json head = totals("llama-head --d-model 256 --vocab 1024 --tokens 1000");
  EXPECT_EQ(head["forward"]["flops"], 2.0 * 1000 * 256 * 1024);
}

TEST(Command, ExplainShowsKernelsOfTheGpuWithoutOne) {
  const TemporaryFolder folder;
  // Without NVRTC on the path this is quick; what the compiler knows is tested where it is.
  const std::string command =
      "CODA_NVRTC=nowhere coda explain llama-head --d-model 256 --device cuda ";
  const Result text = shell(folder, command);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("kernels for sm_90a"), HasSubstr("not compiled"),
                              HasSubstr("class Epilogue"), HasSubstr("in one piece, ascending")));
  const Result brief = shell(folder, command + "--brief --json");
  EXPECT_EQ(brief.code, 0) << brief.err;
  bool product = false;
  for (const json& line : brief.lines()) {
    EXPECT_FALSE(line.contains("source"));
    product = product || (line.contains("kernel") && line["kernel"]["threads"] == 384);
  }
  EXPECT_TRUE(product);
  EXPECT_GT(brief.lines().back()["sm_count"], 0);
}

TEST(Command, CheckHasACaseForEveryOp) {
  const TemporaryFolder folder;
  const Result result = shell(folder, "coda check --json");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  std::map<std::string, int> cases;
  for (const json& line : result.lines()) {
    if (line.contains("case")) ++cases[line["case"].get<std::string>()];
  }
  for (const OpRow& row : op_table()) {
    const bool math = row.op_class != OpClass::leaf && row.op_class != OpClass::memory &&
                      row.op_class != OpClass::opaque;
    if (math) {
      EXPECT_GE(cases["op/" + std::string(row.name)], 3) << row.name;
    }
  }
  EXPECT_EQ(cases["attention"], 6);
  EXPECT_EQ(shell(folder, "coda check --filter op/exp --tol 1e-12").code, 1);
  const Result some = shell(folder, "coda check --filter op/exp --dtype bf16 --json");
  EXPECT_EQ(some.lines().back()["compared"], 2);
}

TEST(Command, CheckComparesWithFloat64AndCanFail) {
  const TemporaryFolder folder;
  for (const std::string block : {"llama-layer", "llama-head"}) {
    for (const std::string dtype : {"f32", "bf16", "f16"}) {
      const std::string command = "coda check " + block +
                                  " --d-model 64 --head-dim 16 --vocab 300 --tokens 37 --dtype " +
                                  dtype;
      const Result result = shell(folder, command + " --json");
      EXPECT_EQ(result.code, 0) << result.out << result.err;
      EXPECT_EQ(result.lines().back()["compared"], block == "llama-layer" ? 15 : 3);
      EXPECT_EQ(shell(folder, command + " --tol 1e-12").code, 1);
    }
  }
}

TEST(Command, BenchTimesBothPhasesOfBothPlans) {
  const TemporaryFolder folder;
  const Result result =
      shell(folder,
            "coda bench llama-layer --json --d-model 64 --head-dim 32 --tokens 32 --seconds 0.01");
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(result.lines().size(), 4u);
  for (const json& line : result.lines()) EXPECT_GT(line["gflops"], 0.0);
}

TEST(Command, InfoIsOneObject) {
  const TemporaryFolder folder;
  const Result info = shell(folder, "coda info --json");
  EXPECT_EQ(info.code, 0);
  ASSERT_EQ(info.lines().size(), 1u);
  for (const char* key : {"version", "kernels", "gemm", "onednn", "cuda", "cuda_compiler"})
    EXPECT_TRUE(info.lines()[0].contains(key)) << key;
}

}  // namespace
}  // namespace coda
