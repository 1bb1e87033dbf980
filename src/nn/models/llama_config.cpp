#include "nn/models/llama_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nn/json_object.h"

namespace coda {
namespace {

using nlohmann::json;

constexpr std::int64_t kSizeLimit = std::int64_t{1} << 31;  // of one size; indices fit in int32
constexpr std::int64_t kLayerLimit = 10000;
constexpr std::int64_t kWeightLimit = std::int64_t{1} << 40;

/// Typed access to the keys of one object; every complaint names the file and the key.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  std::int64_t size(const char* key) const {
    if (!has(key)) throw_error<UsageError>("{}: {}: expected a size, got nothing.", where_, key);
    return integer(key, 1, kSizeLimit);
  }
  std::int64_t size(const char* key, std::int64_t absent) const {
    return has(key) ? integer(key, 1, kSizeLimit) : absent;
  }

  double positive(const char* key, double absent) const {
    if (!has(key)) return absent;
    const json& value = object_[key];
    const double number = value.is_number() ? value.get<double>() : -1.0;
    if (!(number > 0.0) || !std::isfinite(number)) {
      throw_error<UsageError>("{}: {}: expected a positive number, got {}.", where_, key,
                              excerpt(value));
    }
    return number;
  }

  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    if (!object_[key].is_boolean()) {
      throw_error<UsageError>("{}: {}: expected true or false, got {}.", where_, key,
                              excerpt(object_[key]));
    }
    return object_[key].get<bool>();
  }

  std::string text(const char* key, const char* absent) const {
    if (!has(key)) return absent;
    if (!object_[key].is_string()) {
      throw_error<UsageError>("{}: {}: expected text, got {}.", where_, key, excerpt(object_[key]));
    }
    return object_[key].get<std::string>();
  }

  /// A token id, or the first of a list of them.
  std::optional<std::int64_t> token(const char* key) const {
    if (!has(key)) return std::nullopt;
    const json& value = object_[key];
    const json& first = value.is_array() && !value.empty() ? value[0] : value;
    // transformers writes -1 where old tokenizers had none
    if (first.is_number_integer() && first.get<std::int64_t>() == -1) return std::nullopt;
    if (!first.is_number_integer() || first.get<std::int64_t>() < 0) {
      throw_error<UsageError>("{}: {}: expected a token id, got {}.", where_, key, excerpt(value));
    }
    return first.get<std::int64_t>();
  }

  Reader object(const char* key) const {
    if (!object_[key].is_object()) {
      throw_error<UsageError>("{}: {}: expected an object, got {}.", where_, key,
                              excerpt(object_[key]));
    }
    return Reader(object_[key], fmt::format("{}: {}", where_, key));
  }

  void must_be_false(const char* key) const {
    if (flag(key, false)) {
      throw_error<UsageError>(
          "{}: {}: expected false, got true. Models with biases in their "
          "linear layers are not supported.",
          where_, key);
    }
  }

  void must_be_one(const char* key) const {
    if (positive(key, 1.0) != 1.0) {
      throw_error<UsageError>("{}: {}: expected 1 (RoPE turns whole heads), got {}.", where_, key,
                              excerpt(object_[key]));
    }
  }

  bool empty() const { return object_.empty(); }
  const std::string& where() const { return where_; }

 private:
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const json& value = object_[key];
    const bool fits =
        value.is_number_integer() &&
        (value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                    : value.get<std::int64_t>() >= least);
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      throw_error<UsageError>("{}: {}: expected a whole number from {} to {}, got {}.", where_, key,
                              least, most, excerpt(value));
    }
    return value.get<std::int64_t>();
  }

  const json& object_;
  std::string where_;
};

/// rope_parameters (transformers 5) holds theta and the kind; before, theta stood outside and
/// rope_scaling (with "type" in its oldest form) held the kind. Where both stand, rope_scaling
/// holds, whole, as in transformers; an empty one counts as absent.
void read_rope(const Reader& config, LlamaConfig& out) {
  out.rope_theta = config.positive("rope_theta", out.rope_theta);
  config.must_be_one("partial_rotary_factor");
  const bool old = config.has("rope_scaling") && !config.object("rope_scaling").empty();
  const char* key = old ? "rope_scaling" : "rope_parameters";
  if (!config.has(key)) return;
  const Reader rope = config.object(key);
  rope.must_be_one("partial_rotary_factor");
  out.rope_theta = rope.positive("rope_theta", out.rope_theta);
  const std::string kind = rope.text("rope_type", rope.text("type", "default").c_str());
  if (kind == "default") return;
  if (kind != "llama3") {
    throw_error<UsageError>("{}: rope_type: expected \"default\" or \"llama3\", got {}.",
                            rope.where(), excerpt(kind));
  }
  for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!rope.has(needed)) {
      throw_error<UsageError>("{}: {}: expected a positive number, got nothing.", rope.where(),
                              needed);
    }
  }
  Llama3Rope scaling;
  scaling.factor = rope.positive("factor", 0.0);
  scaling.low_freq_factor = rope.positive("low_freq_factor", 0.0);
  scaling.high_freq_factor = rope.positive("high_freq_factor", 0.0);
  scaling.original_max_position_embeddings =
      rope.size("original_max_position_embeddings", out.max_position_embeddings);
  out.rope_scaling = scaling;
}

DType read_dtype(const Reader& config) {
  const std::string name = config.text("dtype", config.text("torch_dtype", "float32").c_str());
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw_error<UsageError>("{}: dtype: expected float32, bfloat16 or float16, got {}.",
                          config.where(), excerpt(name));
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

/// The largest divisor of `size` that is no larger than `wanted`: what the message suggests.
std::int64_t divisor_near(std::int64_t size, std::int64_t wanted) {
  std::int64_t candidate = std::min(wanted, size);
  while (size % candidate != 0) --candidate;
  return candidate;
}

std::int64_t head_dim_of(const Reader& config, const LlamaConfig& c) {
  if (config.has("head_dim")) return config.size("head_dim");
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw_error<UsageError>(
        "{}: num_attention_heads: expected a divisor of hidden_size = {} (no head_dim given), got "
        "{}. Give head_dim, or use {} heads.",
        config.where(), c.hidden_size, c.num_attention_heads,
        divisor_near(c.hidden_size, c.num_attention_heads));
  }
  return c.hidden_size / c.num_attention_heads;
}

void check_size(std::string_view where, const char* key, std::int64_t value,
                std::int64_t most = kSizeLimit) {
  if (value < 1 || value > most) {
    throw_error<UsageError>("{}: {}: expected a whole number from 1 to {}, got {}.", where, key,
                            most, value);
  }
}

void check_token(std::string_view where, const char* key, std::optional<std::int64_t> id,
                 std::int64_t vocab_size) {
  if (id && *id >= vocab_size) {
    throw_error<UsageError>("{}: {}: expected an id below vocab_size = {}, got {}.", where, key,
                            vocab_size, *id);
  }
}

}  // namespace

void check(const LlamaConfig& c, std::string_view where) {
  check_size(where, "hidden_size", c.hidden_size);
  check_size(where, "num_hidden_layers", c.num_hidden_layers, kLayerLimit);
  check_size(where, "num_attention_heads", c.num_attention_heads);
  check_size(where, "num_key_value_heads", c.num_key_value_heads);
  check_size(where, "head_dim", c.head_dim);
  check_size(where, "intermediate_size", c.intermediate_size);
  check_size(where, "vocab_size", c.vocab_size);
  check_size(where, "max_position_embeddings", c.max_position_embeddings);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw_error<UsageError>(
        "{}: num_key_value_heads: expected a divisor of num_attention_heads = {}, got {}. Use {} "
        "key-value heads.",
        where, c.num_attention_heads, c.num_key_value_heads,
        divisor_near(c.num_attention_heads, c.num_key_value_heads));
  }
  if (c.sliding_window != 0) check_size(where, "sliding_window", c.sliding_window);
  if (c.head_dim % 2 != 0) {
    throw_error<UsageError>("{}: head_dim: expected an even number (RoPE rotates pairs), got {}.",
                            where, c.head_dim);
  }
  if (c.rope_scaling && !(c.rope_scaling->low_freq_factor < c.rope_scaling->high_freq_factor)) {
    throw_error<UsageError>(
        "{}: low_freq_factor: expected less than high_freq_factor = {}, got "
        "{}.",
        where, c.rope_scaling->high_freq_factor, c.rope_scaling->low_freq_factor);
  }
  check_token(where, "bos_token_id", c.bos_token_id, c.vocab_size);
  check_token(where, "eos_token_id", c.eos_token_id, c.vocab_size);
  if (parameter_count(c) > kWeightLimit) {
    throw_error<UsageError>(
        "{}: expected sizes of at most 2^40 weights together, got hidden_size "
        "{}, num_hidden_layers {}, intermediate_size {}, vocab_size {}.",
        where, c.hidden_size, c.num_hidden_layers, c.intermediate_size, c.vocab_size);
  }
}

namespace {

/// What would be read without a complaint, but computed wrongly.
void must_be_llama(const Reader& config, const json& root) {
  const std::string type = config.text("model_type", "");
  if (type != "llama" && type != "mistral") {
    throw_error<UsageError>("{}: model_type: expected \"llama\" or \"mistral\", got {}.",
                            config.where(),
                            config.has("model_type") ? excerpt(root["model_type"]) : "nothing");
  }
  const char* architecture = type == "llama" ? "LlamaForCausalLM" : "MistralForCausalLM";
  if (config.has("architectures") && root["architectures"] != json::array({architecture})) {
    throw_error<UsageError>("{}: architectures: expected [\"{}\"], got {}.", config.where(),
                            architecture, excerpt(root["architectures"]));
  }
  if (config.has("quantization_config")) {
    throw_error<UsageError>(
        "{}: quantization_config: expected none, got {}. Store the weights as float32, bfloat16 or "
        "float16.",
        config.where(), excerpt(root["quantization_config"]));
  }
}

/// Mistral is LLaMA with a window and other values for what the file leaves out.
void read_mistral(const Reader& config, const json& root, LlamaConfig& c) {
  c.num_key_value_heads = config.size("num_key_value_heads", 8);
  c.max_position_embeddings = config.size("max_position_embeddings", 131072);
  const bool none = root.contains("sliding_window") && root["sliding_window"].is_null();
  c.sliding_window = none ? 0 : config.size("sliding_window", 4096);
}

}  // namespace

LlamaConfig parse_llama_config(std::string_view text, std::string_view where) {
  const json root = parse_json_object(text, where);
  const Reader config(root, std::string(where));
  must_be_llama(config, root);
  LlamaConfig c;
  c.hidden_size = config.size("hidden_size");
  c.num_hidden_layers = config.size("num_hidden_layers");
  c.num_attention_heads = config.size("num_attention_heads");
  c.num_key_value_heads = config.size("num_key_value_heads", c.num_attention_heads);
  c.intermediate_size = config.size("intermediate_size");
  c.vocab_size = config.size("vocab_size");
  c.max_position_embeddings = config.size("max_position_embeddings", c.max_position_embeddings);
  if (config.text("model_type", "") == "mistral") read_mistral(config, root, c);
  c.head_dim = head_dim_of(config, c);
  c.rms_norm_eps = config.positive("rms_norm_eps", c.rms_norm_eps);
  read_rope(config, c);
  c.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  config.must_be_false("attention_bias");
  config.must_be_false("mlp_bias");
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu") {
    throw_error<UsageError>("{}: hidden_act: expected \"silu\", got {}.", where,
                            excerpt(activation));
  }
  c.bos_token_id = config.token("bos_token_id");
  c.eos_token_id = config.token("eos_token_id");
  c.dtype = read_dtype(config);
  check(c, where);
  return c;
}

std::string to_json(const LlamaConfig& c) {
  nlohmann::ordered_json rope;
  rope["rope_type"] = c.rope_scaling ? "llama3" : "default";
  rope["rope_theta"] = c.rope_theta;
  if (c.rope_scaling) {
    rope["factor"] = c.rope_scaling->factor;
    rope["low_freq_factor"] = c.rope_scaling->low_freq_factor;
    rope["high_freq_factor"] = c.rope_scaling->high_freq_factor;
    rope["original_max_position_embeddings"] = c.rope_scaling->original_max_position_embeddings;
  }
  const auto token = [](std::optional<std::int64_t> id) {
    return id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
  };
  const bool mistral = c.sliding_window > 0;
  nlohmann::ordered_json root = {
      {"architectures", nlohmann::ordered_json::array({mistral ? "MistralForCausalLM"
                                                               : "LlamaForCausalLM"})},
      {"model_type", mistral ? "mistral" : "llama"},
      {"dtype", torch_name(c.dtype)},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position_embeddings},
      {"hidden_act", "silu"},
      {"initializer_range", 0.02},
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_parameters", rope},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"bos_token_id", token(c.bos_token_id)},
      {"eos_token_id", token(c.eos_token_id)},
      {"pad_token_id", nullptr},
      {"use_cache", true},
  };
  if (mistral) root["sliding_window"] = c.sliding_window;
  return root.dump(2) + "\n";
}

std::int64_t parameter_count(const LlamaConfig& c) {
  // In double first: the product of huge sizes must not wrap around before it is refused.
  const auto d = static_cast<double>(c.hidden_size);
  const auto heads = static_cast<double>(c.num_attention_heads + c.num_key_value_heads);
  const double layer = 2 * d * heads * static_cast<double>(c.head_dim) +
                       3 * d * static_cast<double>(c.intermediate_size) + 2 * d;
  const double embeddings = static_cast<double>(c.vocab_size) * d * (c.tie_word_embeddings ? 1 : 2);
  const double total = layer * static_cast<double>(c.num_hidden_layers) + embeddings + d;
  return static_cast<std::int64_t>(std::min(total, 0x1p62));
}

}  // namespace coda
