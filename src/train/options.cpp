#include "train/options.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nn/json_object.h"

namespace coda {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainOptions, data, model, tokenizer, vocab, d_model, layers,
                                   heads, kv_heads, d_ff, tie_embeddings, seq, batch, accumulate,
                                   steps, lr, min_lr, warmup, weight_decay, beta1, beta2, clip,
                                   dtype, seed, eval_every, save_every, eval_tokens, data_hash)

namespace {

void at_least(const char* option, std::int64_t value, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (value < least || value > kMost) {
    throw_error<UsageError>("{}: expected a whole number from {} to {}, got {}.", option, least,
                            kMost, value);
  }
}

void within(const char* option, double value, double least, double most) {
  if (!(value >= least && value <= most)) {
    throw_error<UsageError>("{}: expected a number from {} to {}, got {}.", option, least, most,
                            value);
  }
}

void one_of(const char* option, const std::string& value, const char* a, const char* b) {
  if (value != a && value != b) {
    throw_error<UsageError>("{}: expected {} or {}, got \"{}\".", option, a, b, value);
  }
}

}  // namespace

void check(const TrainOptions& o) {
  if (o.data.empty()) {
    throw_error<UsageError>("--data: expected a text file or a folder, got none.");
  }
  one_of("--tokenizer", o.tokenizer, "bpe", "bytes");
  one_of("--dtype", o.dtype, "f32", "bf16");
  at_least("--vocab", o.vocab, 1);
  at_least("--d-model", o.d_model, 1);
  at_least("--layers", o.layers, 1);
  at_least("--heads", o.heads, 1);
  at_least("--kv-heads", o.kv_heads, 0);
  at_least("--d-ff", o.d_ff, 0);
  at_least("--seq", o.seq, 1);
  at_least("--batch", o.batch, 1);
  at_least("--accumulate", o.accumulate, 1);
  at_least("--steps", o.steps, 1);
  at_least("--warmup", o.warmup, 0);
  at_least("--eval-every", o.eval_every, 0);
  at_least("--save-every", o.save_every, 0);
  at_least("--eval-tokens", o.eval_tokens, 2);
  within("--lr", o.lr, 0.0, 1e3);
  within("--min-lr", o.min_lr, 0.0, o.lr);
  within("--weight-decay", o.weight_decay, 0.0, 1e3);
  within("--beta1", o.beta1, 0.0, 0.999999);
  within("--beta2", o.beta2, 0.0, 0.999999);
  within("--clip", o.clip, 0.0, 1e9);
  // Rows of one program are indexed with 32 bits.
  if (o.batch * o.seq > (std::int64_t{1} << 31)) {
    throw_error<UsageError>("--batch: expected at most 2^31 tokens (batch * seq), got {} * {}.",
                            o.batch, o.seq);
  }
}

std::string to_json(const TrainOptions& options) {
  return nlohmann::ordered_json(nlohmann::json(options)).dump(2) + "\n";
}

TrainOptions parse_train_options(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_json_object(text, where);
  try {
    return json.get<TrainOptions>();
  } catch (const nlohmann::json::exception& e) {
    throw_error<UsageError>("{}: expected the options that `coda train` wrote, got: {}.", where,
                            e.what());
  }
}

}  // namespace coda
