// `coda bench train`: whole training steps of a LLaMA on random tokens, and where their time goes.
// With --stdin a step is run for each line that comes, so that another program can take turns
// (benchmarks/train_step_cpu.py).
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/median.h"
#include "cli/command.h"
#include "nn/models/llama.h"
#include "train/adamw.h"

namespace coda {
namespace {

struct BenchTrainCommand {
  LlamaConfig config;
  std::int64_t seq = 256, batch = 8, steps = 10;
  std::string dtype = "f32";
  bool from_stdin = false;
  DeviceOptions device;
  Printer output;

  int run() const;
};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

rusage usage() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u;
}

double processor_seconds() {
  const rusage u = usage();
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/// What a step of a plan is, in a few words.
std::string kind_of(const Step& step) {
  if (!step.program) {
    switch (step.opaque) {
      case Opaque::attention:
        return "attention, forward";
      case Opaque::attention_backward:
        return "attention, backward";
      default:
        return "embedding";
    }
  }
  const Program& p = *step.program;
  if (p.form == Form::rows) return "row programs";
  if (p.form == Form::vectors) return "vector programs";
  if (p.gemm.transpose_a) return "GEMM tn, weight gradients";
  return p.gemm.transpose_b ? "GEMM nt, forward" : "GEMM nn, data gradients";
}

/// A model with its optimiser and one batch that it sees again and again.
class Trainer {
 public:
  Trainer(const BenchTrainCommand& c, Backend& backend)
      : model_(c.config, {c.dtype == "bf16" ? DType::bf16 : DType::f32, {}}, backend),
        tokens_(c.seq * c.batch) {
    model_.reserve(tokens_);
    std::mt19937 random(1);
    for (LlamaModel::Parameter& p : model_.parameters()) {
      const auto values = p.value.as<float>();
      for (float& value : values)
        value =
            p.weight.is_vector ? 1.0f : 0.02f * (static_cast<float>(random() % 2001) / 577 - 1.73f);
      std::vector<std::int64_t> shape{p.weight.cols};
      if (!p.weight.is_vector) shape.insert(shape.begin(), p.weight.rows);
      parameters_.push_back({p.weight.name, shape, values, p.gradient.as<float>()});
    }
    model_.values_changed();
    const auto vocab = static_cast<std::uint32_t>(c.config.vocab_size);
    for (std::int64_t i = 0; i < tokens_; ++i) {
      ids_.push_back(static_cast<std::int32_t>(random() % vocab));
      labels_.push_back(static_cast<std::int32_t>(random() % vocab));
      positions_.push_back(static_cast<std::int32_t>(i % c.seq));
    }
    for (std::int64_t end = 0; end <= tokens_; end += c.seq)
      cu_seqlens_.push_back(static_cast<std::int32_t>(end));
    optimizer_ = std::make_unique<AdamW>(parameters_, AdamWOptions{}, &backend);
  }

  double step() {
    const double start = wall_seconds();
    model_.zero_gradients();
    const double zeroed = wall_seconds();
    const double loss = model_.forward_backward({ids_, positions_, cu_seqlens_, labels_},
                                                1.0f / static_cast<float>(tokens_));
    const double ran = wall_seconds();
    const double norm = optimizer_->gradient_norm();
    optimizer_->update(++steps_, 1e-3, std::min(1.0, 1.0 / norm));
    const double updated = wall_seconds();
    model_.values_changed();
    outside_["zero gradients"] += zeroed - start;
    outside_["gradient norm, AdamW"] += updated - ran;
    outside_["rounded copies of weights"] += wall_seconds() - updated;
    return loss / static_cast<double>(tokens_);
  }

  /// Seconds of all steps so far, by kind.
  std::map<std::string, double> seconds() {
    std::map<std::string, double> total = outside_;
    const Plan& plan = model_.plan(LlamaModel::Use::training);
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const auto& steps = phase == Phase::forward ? plan.forward : plan.backward;
      const std::span<const double> seconds = model_.training_seconds(phase);
      for (std::size_t i = 0; i < seconds.size(); ++i) total[kind_of(steps[i])] += seconds[i];
    }
    return total;
  }

 private:
  LlamaModel model_;
  std::int64_t tokens_;
  std::int64_t steps_ = 0;
  std::vector<Parameter> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  std::vector<std::int32_t> ids_, labels_, positions_, cu_seqlens_;
  std::map<std::string, double> outside_;
};

int BenchTrainCommand::run() const {
  const auto backend = device.make();
  if (!backend->on_host()) throw_error<UsageError>("bench train: expected --device cpu.");
  Trainer trainer(*this, *backend);
  trainer.step();  // warms up
  const std::map<std::string, double> before = trainer.seconds();
  std::vector<double> walls;
  std::string line;
  const auto goes_on = [&] {
    if (!from_stdin) return static_cast<std::int64_t>(walls.size()) < steps;
    return static_cast<bool>(std::getline(std::cin, line));
  };
  const auto tokens = static_cast<double>(seq * batch);
  if (from_stdin) output.object({{"ready", true}});
  std::fflush(stdout);
  while (goes_on()) {
    const double start = wall_seconds(), processor = processor_seconds();
    const double loss = trainer.step();
    walls.push_back(wall_seconds() - start);
    output.object({{"step", walls.size()},
                   {"loss", loss},
                   {"seconds", walls.back()},
                   {"processor_seconds", processor_seconds() - processor}});
    std::fflush(stdout);
  }
  if (walls.empty()) return 0;
  double sum = 0.0;
  for (const double wall : walls) sum += wall;
  const auto count = static_cast<double>(walls.size());
  const double typical = median(walls);
  const double peak = static_cast<double>(usage().ru_maxrss) / 1024;
  output.result("median of {} steps: {:.1f} ms, {:.0f} tokens/s; peak memory {:.0f} MiB\n",
                walls.size(), typical * 1e3, tokens / typical, peak);
  nlohmann::ordered_json parts;
  for (const auto& [kind, seconds] : trainer.seconds()) {
    const auto old = before.find(kind);
    const double own = (seconds - (old == before.end() ? 0.0 : old->second)) / count;
    parts[kind] = own * 1e3;
    output.result("{:<28} {:>9.2f} ms {:>6.1f} %\n", kind, own * 1e3, 100 * own * count / sum);
  }
  output.object({{"median_seconds", typical},
                 {"tokens_per_second", tokens / typical},
                 {"peak_mebibytes", peak},
                 {"milliseconds_of", parts}});
  return 0;
}

}  // namespace

Command add_bench_train(CLI::App& bench) {
  CLI::App* train =
      bench.add_subcommand("train", "Whole training steps, and where their time goes");
  auto command = std::make_shared<BenchTrainCommand>();
  BenchTrainCommand& c = *command;
  LlamaConfig& m = c.config;
  m.hidden_size = 256, m.num_hidden_layers = 4, m.intermediate_size = 768, m.vocab_size = 4096;
  m.num_attention_heads = 4, m.num_key_value_heads = 0, m.head_dim = 64;
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    train->add_option(name, value, what)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
        ->capture_default_str()
        ->group("Model");
  };
  size("--d-model", m.hidden_size, "Width");
  size("--layers", m.num_hidden_layers, "Layers");
  size("--heads", m.num_attention_heads, "Heads");
  train->add_option("--kv-heads", m.num_key_value_heads, "Key-value heads, 0: as many as heads")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->capture_default_str()
      ->group("Model");
  size("--head-dim", m.head_dim, "Width of a head");
  size("--d-ff", m.intermediate_size, "Width of the MLP");
  size("--vocab", m.vocab_size, "Vocabulary");
  size("--seq", c.seq, "Tokens of a sequence");
  size("--batch", c.batch, "Sequences of a step");
  train->add_option("--dtype", c.dtype, "f32, or bf16 with fp32 master weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str()
      ->group("Model");
  train->add_option("--steps", c.steps, "Steps after the first, which warms up")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str()
      ->group("Run");
  train->add_flag("--stdin", c.from_stdin, "One step for each line of standard input")
      ->group("Run");
  c.device.add_options(*train);
  c.output.add_option(*train);
  train->footer("Example:\n  coda bench train --dtype bf16 --steps 10");
  return {train, [command] {
            LlamaConfig& config = command->config;
            if (config.num_key_value_heads == 0)
              config.num_key_value_heads = config.num_attention_heads;
            return command->run();
          }};
}

}  // namespace coda
