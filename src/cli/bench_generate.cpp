#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/median.h"
#include "cli/command.h"
#include "nn/models/llama_decoder.h"
#include "train/random.h"

namespace coda {
namespace {

constexpr std::int64_t kTurn = 16;  ///< tokens of a turn

struct BenchGenerateCommand {
  std::int64_t d_model = 256, layers = 4, heads = 4, kv_heads = 0, d_ff = 768, vocab = 4096;
  std::vector<std::int64_t> positions{100, 2000};
  std::int64_t turns = 20;
  std::string dtype = "f32";
  DeviceOptions device;
  Printer output;

  LlamaConfig config() const;
  int run() const;
};

LlamaConfig BenchGenerateCommand::config() const {
  for (const auto& [name, value] : {std::pair{"--d-model", d_model},
                                    {"--layers", layers},
                                    {"--heads", heads},
                                    {"--d-ff", d_ff},
                                    {"--vocab", vocab},
                                    {"--turns", turns}}) {
    if (value >= 1 && value <= 1 << 20) continue;
    throw_error<UsageError>("{}: expected a whole number from 1 to 2^20, got {}.", name, value);
  }
  if (d_model % heads != 0) {
    throw_error<UsageError>("--heads: expected a divisor of --d-model {}, got {}.", d_model, heads);
  }
  LlamaConfig c;
  c.hidden_size = d_model;
  c.num_hidden_layers = layers;
  c.num_attention_heads = heads;
  c.num_key_value_heads = kv_heads == 0 ? heads : kv_heads;
  c.head_dim = d_model / heads;
  c.intermediate_size = d_ff;
  c.vocab_size = vocab;
  for (const std::int64_t position : positions) {
    if (position < 0 || position > 1 << 20) {
      throw_error<UsageError>("--positions: expected whole numbers from 0 to 2^20, got {}.",
                              position);
    }
    c.max_position_embeddings = std::max(c.max_position_embeddings, position + kTurn);
  }
  return c;
}

void randomize(LlamaModel& model) {
  for (LlamaModel::Parameter& p : model.parameters()) {
    const CounterRandom random(0, stream_of(p.weight.name));
    const auto values = p.value.as<float>();
    const double spread = 1 / std::sqrt(static_cast<double>(p.weight.cols));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = p.weight.is_vector ? 1.0f : static_cast<float>(spread * random.normal(i));
  }
  model.values_changed();
}

/// Bytes of weights and of the cache that one token at a position has to read.
double bytes_read(const LlamaConfig& c, DType dtype, std::int64_t position) {
  const std::int64_t table = c.tie_word_embeddings ? 0 : c.vocab_size * c.hidden_size;
  const std::int64_t cache =
      2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * (position + 1);
  return static_cast<double>(parameter_count(c) - table + cache) *
         static_cast<double>(size_of(dtype));
}

/// A sequence up to its position, and the seconds a token took in each turn.
struct Candidate {
  std::int64_t position = 0;
  std::unique_ptr<LlamaDecoder> decoder;
  double prompt_seconds = 0;
  std::vector<double> seconds;
};

int BenchGenerateCommand::run() const {
  const LlamaConfig c = config();
  const DType type = parse_dtype(dtype);
  const auto backend = device.make();
  LlamaModel model(c, {type, {}, false}, *backend);
  randomize(model);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  const auto seconds_of = [&](LlamaDecoder& decoder, std::span<const std::int32_t> ids) {
    const auto start = std::chrono::steady_clock::now();
    decoder.append(ids, logits);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<Candidate> candidates;
  for (const std::int64_t position : positions) {
    Candidate candidate{position, nullptr, 0, {}};
    candidate.decoder = std::make_unique<LlamaDecoder>(model, position + kTurn);
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(position));
    for (std::size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(vocab));
    if (position > 0) candidate.prompt_seconds = seconds_of(*candidate.decoder, prompt);
    candidates.push_back(std::move(candidate));
  }
  // The positions take turns, so that whatever else the machine does meets them alike; the first
  // token of a turn finds other things in the caches and does not count.
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (Candidate& candidate : candidates) {
      candidate.decoder->rewind(candidate.position);
      double total = 0;
      for (std::int64_t i = 0; i < kTurn; ++i) {
        const auto id = static_cast<std::int32_t>((turn + i) % vocab);
        const double seconds = seconds_of(*candidate.decoder, std::span(&id, 1));
        if (i > 0) total += seconds;
      }
      candidate.seconds.push_back(total / static_cast<double>(kTurn - 1));
    }
  }
  output.result("{:>10} {:>12} {:>10} {:>10} {:>14}  median of {} turns of {} tokens\n", "position",
                "ms a token", "tokens/s", "GB/s", "prompt tok/s", turns, kTurn - 1);
  for (const Candidate& candidate : candidates) {
    const double seconds = median(candidate.seconds);
    const double rate = bytes_read(c, type, candidate.position) / seconds * 1e-9;
    const double prompt_rate = candidate.position == 0 ? 0
                                                       : static_cast<double>(candidate.position) /
                                                             candidate.prompt_seconds;
    output.object({{"position", candidate.position},
                   {"milliseconds", seconds * 1e3},
                   {"tokens_per_second", 1 / seconds},
                   {"gigabytes_per_second", rate},
                   {"prompt_tokens_per_second", prompt_rate},
                   {"turns", turns}});
    output.result("{:>10} {:>12.3f} {:>10.1f} {:>10.1f} {:>14.1f}\n", candidate.position,
                  seconds * 1e3, 1 / seconds, rate, prompt_rate);
  }
  return 0;
}

}  // namespace

Command add_bench_generate(CLI::App& bench) {
  CLI::App* sub = bench.add_subcommand("generate", "Tokens a second at positions of a sequence");
  auto c = std::make_shared<BenchGenerateCommand>();
  const auto option = [&](const char* group, const char* name, auto& value, const char* text) {
    return sub->add_option(name, value, text)->group(group)->capture_default_str();
  };
  option("Model", "--d-model", c->d_model, "Width");
  option("Model", "--layers", c->layers, "Layers");
  option("Model", "--heads", c->heads, "Query heads");
  option("Model", "--kv-heads", c->kv_heads, "Key-value heads, 0: as many as query heads");
  option("Model", "--d-ff", c->d_ff, "Width of the MLP");
  option("Model", "--vocab", c->vocab, "Tokens that there are");
  option("Model", "--dtype", c->dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  option("Race", "--positions", c->positions, "Tokens before the ones timed")->delimiter(',');
  option("Race", "--turns", c->turns, "Turns of each position");
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer(
      "GB/s: weights and cache that a token has to read.\n"
      "Example:\n  coda bench generate --positions 100,2000 --dtype bf16");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
