#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "cli/command.h"
#include "cli/tokens.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/llama_model.h"
#include "train/loop.h"
#include "train/run_folder.h"

namespace coda {
namespace {

struct EvalCommand {
  std::string model;
  std::vector<std::string> data;
  std::string text_field = "text";
  std::int64_t seq = 0, batch = 8, eval_tokens = 0;
  std::string dtype = "f32";
  bool held_out = false;
  DeviceOptions device;
  Printer output;

  int run() const;
};

int EvalCommand::run() const {
  const LlamaConfig config = load_config(model);
  const Tokenizer tokenizer = Tokenizer::load(model);
  check_vocabulary(tokenizer, config, model);
  const std::int64_t length = seq > 0 ? seq : config.max_position_embeddings;
  if (seq < 0 || batch < 1 || length > config.max_position_embeddings ||
      batch > (std::int64_t{1} << 31) / length) {
    throw_error<UsageError>(
        "--seq, --batch: expected 1 to max_position_embeddings = {} tokens a sequence and at most "
        "2^31 a batch, got {} and {}.",
        config.max_position_embeddings, seq, batch);
  }
  const auto backend = device.make();
  const Texts texts = open_texts(data, text_field, output);
  const std::filesystem::path kept = std::filesystem::path(model) / "tokens.bin";
  const LoadedTokens loaded = load_tokens(texts, tokenizer, kept, "", output);
  const std::span<const std::int32_t> all = loaded.file.tokens();
  TokenSplit split = held_out ? split_tokens(all, length) : TokenSplit{all, all};
  if (eval_tokens < 0)
    throw_error<UsageError>("--eval-tokens: expected 0 (all) or more, got {}.", eval_tokens);
  if (eval_tokens > 0) {
    TrainOptions options;
    options.eval_tokens = eval_tokens;
    options.seq = length;
    split.held_out = evaluated_tokens(split, options);
  }
  if (split.held_out.size() < 2) {
    throw_error<UsageError>("--data: expected at least 2 tokens, got {}.", split.held_out.size());
  }
  const auto count = static_cast<std::int64_t>(split.held_out.size());
  const auto llama =
      make_llama_model(config, *backend, parse_dtype(dtype), std::min(batch * length, count));
  load_weights(*llama, model);
  const auto release = [&] { loaded.file.release(); };
  std::int64_t tokens = 0;
  for_each_consecutive(split.held_out, length, batch, [&](const Batch& b) {
    tokens += b.valid_labels();
    release();
  });
  const double loss = mean_loss(*llama, split.held_out, length, batch, release);
  const std::optional<double> unigram =
      telling_unigram_loss(split.training, split.held_out, config.vocab_size, release);
  output.object({{"eval_loss", loss},
                 {"perplexity", std::exp(loss)},
                 {"unigram_loss", unigram ? nlohmann::ordered_json(*unigram) : nullptr},
                 {"tokens", tokens}});
  output.result("loss {:.4f} (perplexity {:.2f}) over {} tokens{}\n", loss, std::exp(loss), tokens,
                unigram ? fmt::format("; a unigram model reaches {:.4f}", *unigram) : "");
  if (!std::isfinite(loss)) {
    throw_error<BackendError>(
        "{}: expected a finite loss, got {}: a logit overflows or is NaN. Check the weights (`coda "
        "verify`), or compute in --dtype f32.",
        model, std::isnan(loss) ? "NaN" : "infinity");
  }
  return 0;
}

}  // namespace

Command add_eval(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("eval", "Mean cross-entropy of a model on text");
  auto c = std::make_shared<EvalCommand>();
  sub->add_option("--model", c->model, "Hugging Face folder")->required()->group("Input");
  sub->add_option("--data", c->data, "Text files or folders (UTF-8)")->required()->group("Input");
  sub->add_option("--text-field", c->text_field, "What holds the text in lines of .jsonl files")
      ->group("Input")
      ->capture_default_str();
  sub->add_flag("--held-out", c->held_out,
                "Only the part that `coda train` on the same data and --seq held out")
      ->group("Input");
  sub->add_option("--eval-tokens", c->eval_tokens,
                  "Tokens to evaluate at most, 0: all; `coda train` takes as many as its option of "
                  "this name says")
      ->group("Input")
      ->capture_default_str();
  sub->add_option("--seq", c->seq, "Tokens of a sequence, 0: as many as the model was made for")
      ->group("Computation")
      ->capture_default_str();
  sub->add_option("--batch", c->batch, "Sequences at once")
      ->group("Computation")
      ->capture_default_str();
  sub->add_option("--dtype", c->dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group("Computation")
      ->capture_default_str();
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer(
      "The unigram loss is that of token frequencies of the training part (without --held-out: of "
      "the text itself), with one added to each; texts of less than ten tokens an id tell too "
      "little of them and give none.\n"
      "Example:\n  coda eval --model run --data book.txt --held-out");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
