#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "cli/command.h"
#include "train/continuation.h"
#include "train/file.h"
#include "train/run_folder.h"
#include "train/sample.h"

namespace coda {
namespace {

constexpr std::int64_t kDefaultTokens = 100;

struct GenerateCommand {
  std::string model, prompt;
  std::optional<std::int64_t> tokens;
  SampleOptions options{0.8, 0, 0.95};
  std::uint64_t seed = 0;
  std::string dtype = "f32";
  DeviceOptions device;
  Printer output;

  void check() const;
  std::int64_t count_to_add(std::int64_t prompt_tokens, std::int64_t window) const;
  int run() const;
};

void GenerateCommand::check() const {
  if (tokens && (*tokens < 0 || *tokens > (std::int64_t{1} << 31))) {
    throw_error<UsageError>("--tokens: expected a whole number from 0 to 2^31, got {}.", *tokens);
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

/// Ids that end a text: the tokenizer's, config.json's, and those of generation_config.json, which
/// may be several.
std::set<std::int64_t> end_ids(const std::string& folder, const LlamaConfig& config,
                               const Tokenizer& tokenizer) {
  std::set<std::int64_t> ids;
  if (tokenizer.eos() >= 0) ids.insert(tokenizer.eos());
  if (config.eos_token_id) ids.insert(*config.eos_token_id);
  const auto file = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(file)) return ids;
  const auto json = nlohmann::json::parse(read_file(file), nullptr, false);
  if (!json.is_object()) {
    throw_error<UsageError>("{}: expected a JSON object, got something else. Correct or remove it.",
                            file.string());
  }
  const auto eos = json.value("eos_token_id", nlohmann::json());
  for (const auto& id : eos.is_array() ? eos : nlohmann::json::array({eos}))
    if (id.is_number_integer()) ids.insert(id.get<std::int64_t>());
  return ids;
}

/// How many tokens fit behind the prompt. Beyond its positions a model has learnt nothing.
std::int64_t GenerateCommand::count_to_add(std::int64_t prompt_tokens, std::int64_t window) const {
  const std::int64_t wanted = tokens.value_or(1);
  if (prompt_tokens <= window && wanted <= window - prompt_tokens)
    return tokens.value_or(std::min(kDefaultTokens, window - prompt_tokens));
  throw_error<UsageError>(
      "generate: expected at most {} tokens of prompt and continuation together (the "
      "max_position_embeddings of config.json), got {} + {}. Shorten the prompt, or give a smaller "
      "--tokens.",
      window, prompt_tokens, wanted);
}

/// For a terminal, which would obey control characters: those but line breaks and tabs as \xNN,
/// U+0080 to U+009F among them.
std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const unsigned next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool is_control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (is_control) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

int GenerateCommand::run() const {
  check();
  const LlamaConfig config = load_config(model);
  const Tokenizer tokenizer = Tokenizer::load(model);
  check_vocabulary(tokenizer, config, model);
  const std::set<std::int64_t> ends = end_ids(model, config, tokenizer);
  std::vector<std::int32_t> ids;
  if (tokenizer.bos() >= 0) ids.push_back(tokenizer.bos());
  const std::vector<std::int32_t> prompt_ids = tokenizer.encode(prompt);
  ids.insert(ids.end(), prompt_ids.begin(), prompt_ids.end());
  if (ids.empty()) throw_error<UsageError>("--prompt: expected some text, got none.");
  const auto prompt_tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t most = count_to_add(prompt_tokens, config.max_position_embeddings);
  const auto backend = device.make();
  Continuation continuation(config, model, *backend, parse_dtype(dtype), prompt_tokens + most);

  const CounterRandom random(seed, stream_of("generate"));
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  std::string pending, text;  // pending: bytes that may be the beginning of a character
  std::int64_t count = 0;
  bool ended = false;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const auto shown = [&](const std::string& some) { return terminal ? printable(some) : some; };
  output.result("{}", shown(prompt));
  const auto start = std::chrono::steady_clock::now();
  auto read = start;  // the prompt
  for (; count < most; ++count) {
    continuation.append(ids, logits);
    if (count == 0) read = std::chrono::steady_clock::now();
    const std::int32_t next = sample(logits, options, random, static_cast<std::uint64_t>(count));
    ended = ends.contains(next);
    if (ended) break;
    ids.assign(1, next);
    pending += tokenizer.decode(ids);
    const std::size_t ready = complete_utf8(pending);
    output.result("{}", shown(pending.substr(0, ready)));
    if (!output.json()) std::fflush(stdout);
    text += pending.substr(0, ready);
    pending.erase(0, ready);
  }
  text += pending;
  output.result("{}\n", shown(pending));
  const auto seconds = [](auto from, auto to) {
    return std::max(std::chrono::duration<double>(to - from).count(), 1e-9);
  };
  const double writing = seconds(read, std::chrono::steady_clock::now());
  output.object(
      {{"prompt", prompt},
       {"text", text},
       {"prompt_tokens", prompt_tokens},
       {"tokens", count},
       {"stopped", ended ? "end of text" : "tokens"},
       {"prompt_tokens_per_second", static_cast<double>(prompt_tokens) / seconds(start, read)},
       {"tokens_per_second", static_cast<double>(count) / writing}});
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
  sub->add_option("--tokens", c->tokens,
                  "Tokens to add at most (without it: 100, or as many as the model has room for)")
      ->group("Sampling");
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
