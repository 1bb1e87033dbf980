#include "train/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nn/json_object.h"
#include "train/utf8.h"

namespace coda {

namespace {

using nlohmann::json;

constexpr std::int64_t kMost = std::int64_t{1} << 31;
constexpr std::int64_t kWidest = std::int64_t{1} << 24;  // of a model's sizes; d_ff may be derived
constexpr std::int64_t kMostLayers = 10000;

void within(const char* option, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw_error<UsageError>("{}: expected a whole number from {} to {}, got {}.", option, least,
                            most, value);
  }
}

void at_least(const char* option, std::int64_t value, std::int64_t least) {
  within(option, value, least, kMost);
}

void within(const char* option, double value, double least, double most) {
  if (!(value >= least && value <= most)) {
    throw_error<UsageError>("{}: expected a number from {} to {}, got {}.", option, least, most,
                            value);
  }
}

/// options.json is text.
void in_utf8(const char* option, const std::string& value) {
  const std::size_t at = find_invalid_utf8(value);
  if (at == value.size()) return;
  std::string shown;
  append_valid_utf8(value, shown);
  throw_error<UsageError>(
      "{}: {}: expected UTF-8, as options.json keeps it, got byte 0x{:02x} at offset {}. "
      "Give it another name.",
      option, shown, static_cast<unsigned char>(value[at]), at);
}

void one_of(const char* option, const std::string& value,
            std::initializer_list<const char*> choices) {
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    throw_error<UsageError>("{}: expected one of {}, got \"{}\".", option, fmt::join(choices, ", "),
                            value);
  }
}

const char* kind_of(const std::vector<std::string>&) { return "a list of texts"; }
const char* kind_of(const std::string&) { return "a text"; }
const char* kind_of(bool) { return "true or false"; }
const char* kind_of(double) { return "a number"; }
const char* kind_of(std::int64_t) { return "a whole number"; }
const char* kind_of(std::uint64_t) { return "a whole number of 0 or more"; }
template <class T>
const char* kind_of(const std::optional<T>&) {
  return kind_of(T());
}

bool holds(const json& value, const std::vector<std::string>&) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
}
bool holds(const json& value, const std::string&) { return value.is_string(); }
bool holds(const json& value, bool) { return value.is_boolean(); }
bool holds(const json& value, double) { return value.is_number(); }
bool holds(const json& value, std::int64_t) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
}
bool holds(const json& value, std::uint64_t) { return value.is_number_unsigned(); }
template <class T>
bool holds(const json& value, const std::optional<T>&) {
  return value.is_null() || holds(value, T());
}

template <class T>
void read(const json& value, T& option) {
  value.get_to(option);
}
template <class T>
void read(const json& value, std::optional<T>& option) {
  option = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

template <class T>
nlohmann::ordered_json stored(const T& value) {
  return value;
}
template <class T>
nlohmann::ordered_json stored(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nullptr;
}

}  // namespace

double min_lr_of(const TrainOptions& o) { return o.min_lr.value_or(o.lr / 10); }

std::int64_t warmup_of(const TrainOptions& o) {
  return o.warmup.value_or(std::min<std::int64_t>(50, o.steps / 10));
}

void check(const TrainOptions& o) {
  if (o.data.empty()) {
    throw_error<UsageError>("--data: expected a text file or a folder, got none.");
  }
  for (const std::string& path : o.data) in_utf8("--data", path);
  in_utf8("--model", o.model);
  in_utf8("--text-field", o.text_field);
  one_of("--tokenizer", o.tokenizer, {"bpe", "bytes"});
  one_of("--dtype", o.dtype, {"f32", "bf16"});
  one_of("--on-nan", o.on_nan, {"stop", "skip"});
  one_of("--on-spike", o.on_spike, {"ignore", "stop", "skip"});
  at_least("--vocab", o.vocab, 1);
  within("--d-model", o.d_model, 1, kWidest);
  within("--layers", o.layers, 1, kMostLayers);
  within("--heads", o.heads, 1, kWidest);
  within("--kv-heads", o.kv_heads, 0, kWidest);
  within("--d-ff", o.d_ff, 0, kWidest);
  at_least("--seq", o.seq, 1);
  at_least("--batch", o.batch, 1);
  at_least("--accumulate", o.accumulate, 1);
  at_least("--steps", o.steps, 1);
  within("--warmup", warmup_of(o), 0, o.steps);
  at_least("--eval-every", o.eval_every, 0);
  at_least("--save-every", o.save_every, 0);
  at_least("--keep", o.keep, 0);
  at_least("--eval-tokens", o.eval_tokens, 2);
  within("--lr", o.lr, 0.0, 1e3);
  within("--min-lr", min_lr_of(o), 0.0, o.lr);
  within("--weight-decay", o.weight_decay, 0.0, 1e3);
  within("--beta1", o.beta1, 0.0, 0.999999);
  within("--beta2", o.beta2, 0.0, 0.999999);
  within("--clip", o.clip, 0.0, 1e9);
  within("--spike", o.spike, 0.0, 1e9);
  if (o.memory) within("--memory", *o.memory, 1e-6, 1e9);
  if (o.batch * o.accumulate > kMost) {
    throw_error<UsageError>(
        "--accumulate: expected at most 2^31 sequences a step (batch * accumulate), got {} * {}.",
        o.batch, o.accumulate);
  }
  // Rows of one program are indexed with 32 bits.
  if (o.batch * o.seq > (std::int64_t{1} << 31)) {
    throw_error<UsageError>("--batch: expected at most 2^31 tokens (batch * seq), got {} * {}.",
                            o.batch, o.seq);
  }
}

std::string to_json(const TrainOptions& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for_each_option(options,
                  [&](const char* key, const auto& value) { object[key] = stored(value); });
  return object.dump(2) + "\n";
}

TrainOptions parse_train_options(std::string_view text, const std::string& where) {
  json object = parse_json_object(text, where);
  TrainOptions options;
  for_each_option(options, [&](const char* key, auto& value) {
    const auto it = object.find(key);
    if (it == object.end() || !holds(*it, value)) {
      throw_error<UsageError>(
          "{}: {}: expected {}, as `coda train` writes it, got {}. Restore the file; without it, "
          "begin a new run from these weights with --model.",
          where, key, kind_of(value), it == object.end() ? "nothing" : excerpt(*it));
    }
    read(*it, value);
    object.erase(it);
  });
  if (!object.empty()) {
    throw_error<UsageError>("{}: expected only options of `coda train`, got also {}.", where,
                            excerpt(object.begin().key()));
  }
  return options;
}

}  // namespace coda
