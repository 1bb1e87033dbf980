#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/command.h"
#include "train/checkpoint.h"
#include "train/llama_model.h"
#include "train/run_folder.h"
#include "train/sample.h"

namespace coda {
namespace {

struct GenerateCommand {
  std::string model, prompt;
  std::int64_t tokens = 100;
  SampleOptions options{0.8, 0, 0.95};
  std::uint64_t seed = 0;
  std::string dtype = "f32";
  DeviceOptions device;
  Printer output;

  void check() const;
  int run() const;
};

void GenerateCommand::check() const {
  if (tokens < 0 || tokens > (std::int64_t{1} << 31)) {
    throw_error<UsageError>("--tokens: expected a whole number from 0 to 2^31, got {}.", tokens);
  }
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw_error<UsageError>("--temperature: expected 0 (most likely token) or more, got {}.",
                            options.temperature);
  }
  if (options.top_k < 0) {
    throw_error<UsageError>("--top-k: expected 0 (all tokens) or more, got {}.", options.top_k);
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw_error<UsageError>("--top-p: expected a number above 0 and at most 1, got {}.",
                            options.top_p);
  }
  if (const std::size_t at = find_invalid_utf8(prompt); at != prompt.size()) {
    throw_error<UsageError>("--prompt: expected UTF-8 text, got byte 0x{:02x} at offset {}.",
                            static_cast<unsigned char>(prompt[at]), at);
  }
}

int GenerateCommand::run() const {
  check();
  const LlamaConfig config = load_config(model);
  const Tokenizer tokenizer = Tokenizer::load(model);
  check_vocabulary(tokenizer, config, model);
  const std::int64_t window = config.max_position_embeddings;
  std::vector<std::int32_t> ids;
  if (tokenizer.bos() >= 0) ids.push_back(tokenizer.bos());
  const std::vector<std::int32_t> prompt_ids = tokenizer.encode(prompt);
  ids.insert(ids.end(), prompt_ids.begin(), prompt_ids.end());
  if (ids.empty()) throw_error<UsageError>("--prompt: expected some text, got none.");
  const auto backend = device.make();
  const std::int64_t most =
      std::min<std::int64_t>(window, static_cast<std::int64_t>(ids.size()) + tokens);
  const auto llama = make_llama_model(config, *backend, parse_dtype(dtype), most);
  load_weights(*llama, model);

  const CounterRandom random(seed, stream_of("generate"));
  const auto start = std::chrono::steady_clock::now();
  std::string pending, text;  // pending: bytes that may be the beginning of a character
  std::int64_t count = 0;
  output.result("{}", prompt);
  for (; count < tokens; ++count) {
    // Beyond its context the model sees the last tokens only.
    const auto length = std::min<std::int64_t>(window, static_cast<std::int64_t>(ids.size()));
    const Batch batch{length, {ids.end() - length, ids.end()}, {}};
    const std::vector<float> logits = llama->logits(batch);
    const auto vocab = static_cast<std::size_t>(llama->vocab_size());
    const std::int32_t next =
        sample(std::span(logits).last(vocab), options, random, static_cast<std::uint64_t>(count));
    if (next == tokenizer.eos() || config.eos_token_id == next) break;
    ids.push_back(next);
    pending += tokenizer.decode(std::span(&next, 1));
    const std::size_t ready = complete_utf8(pending);
    output.result("{}", pending.substr(0, ready));
    if (!output.json()) std::fflush(stdout);
    text += pending.substr(0, ready);
    pending.erase(0, ready);
  }
  text += pending;
  output.result("{}\n", pending);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  output.object({{"prompt", prompt},
                 {"text", text},
                 {"tokens", count},
                 {"tokens_per_second", static_cast<double>(count) / std::max(seconds, 1e-9)}});
  return 0;
}

}  // namespace

Command add_generate(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("generate", "Continue a text");
  auto c = std::make_shared<GenerateCommand>();
  const auto option = [&](const char* group, const char* name, auto& value, const char* text) {
    return sub->add_option(name, value, text)->group(group)->capture_default_str();
  };
  sub->add_option("--model", c->model, "Hugging Face folder")->required()->group("Input");
  sub->add_option("--prompt", c->prompt, "Text to continue")->required()->group("Input");
  option("Sampling", "--tokens", c->tokens, "Tokens to add at most");
  option("Sampling", "--temperature", c->options.temperature, "0: always the most likely token");
  option("Sampling", "--top-k", c->options.top_k, "Only the k most likely tokens, 0: all");
  option("Sampling", "--top-p", c->options.top_p, "Only the most likely, up to this probability");
  option("Sampling", "--seed", c->seed, "Same seed, same text");
  sub->get_option("--seed")->check(whole_number());
  option("Computation", "--dtype", c->dtype, "f32 or bf16");
  sub->get_option("--dtype")->check(CLI::IsMember({"f32", "bf16"}));
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer("Example:\n  coda generate --model run --prompt \"In the beginning\" --tokens 50");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
