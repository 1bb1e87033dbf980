// config.json of a LLaMA-style model in Hugging Face's form. Reading checks every value that the
// model depends on; what coda does not compute (biases, other activations, other RoPE kinds) is an
// error that names the key, never ignored. Writing gives what transformers 5 loads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coda/dtype.h"
#include "coda/nn.h"

namespace coda {

struct LlamaConfig {
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  std::optional<Llama3Rope> rope_scaling;  ///< absent: plain RoPE
  bool tie_word_embeddings = false;
  /// Keys that a query sees, 0: all. Such a model is Mistral's in the file.
  std::int64_t sliding_window = 0;
  std::optional<std::int64_t> bos_token_id;
  std::optional<std::int64_t> eos_token_id;  ///< the first, where the file has a list
  DType dtype = DType::f32;                  ///< of the stored weights

  bool operator==(const LlamaConfig&) const = default;
};

/// Throws UsageError if the sizes do not fit together: positive, heads a multiple of key-value
/// heads, head_dim even, ids within the vocabulary. `where` opens the message ("config.json").
void check(const LlamaConfig& config, std::string_view where);

/// Parses the text of a config.json and checks it. Throws UsageError that names the key.
LlamaConfig parse_llama_config(std::string_view text, std::string_view where);

/// The text of a config.json.
std::string to_json(const LlamaConfig& config);

/// Number of weights; tied embeddings count once.
std::int64_t parameter_count(const LlamaConfig& config);

}  // namespace coda
