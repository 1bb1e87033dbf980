#include "train/run_folder.h"

#include "base/check.h"
#include "train/file.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

/// 8/3 of d_model keeps the MLP's weights at those of a plain one of 4 d_model; a multiple of 64
/// fills vectors and tiles.
std::int64_t default_d_ff(std::int64_t d_model) { return (d_model * 8 / 3 + 63) / 64 * 64; }

std::optional<std::int64_t> token_id(std::int32_t id) {
  return id < 0 ? std::nullopt : std::optional<std::int64_t>(id);
}

}  // namespace

LlamaConfig load_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  std::error_code unused;
  if (!fs::is_directory(folder, unused)) {
    throw_error<UsageError>("{}: expected a model folder (config.json, model.safetensors), got {}.",
                            folder.string(),
                            fs::exists(folder, unused) ? "a file" : "nothing there");
  }
  return parse_llama_config(read_file(path), path.string());
}

void check_vocabulary(const Tokenizer& tokenizer, const LlamaConfig& config,
                      const fs::path& folder) {
  if (tokenizer.vocab_size() <= config.vocab_size) return;
  throw_error<UsageError>("{}: expected a tokenizer of at most vocab_size = {} pieces, got {}.",
                          folder.string(), config.vocab_size, tokenizer.vocab_size());
}

LlamaConfig new_config(const TrainOptions& options, const Tokenizer& tokenizer) {
  if (options.d_model % options.heads != 0 || options.d_model / options.heads % 2 != 0) {
    throw_error<UsageError>(
        "--heads: expected a divisor of --d-model = {} with an even quotient (RoPE rotates pairs), "
        "got {}.",
        options.d_model, options.heads);
  }
  LlamaConfig c;
  c.hidden_size = options.d_model;
  c.num_hidden_layers = options.layers;
  c.num_attention_heads = options.heads;
  c.num_key_value_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
  c.head_dim = options.d_model / options.heads;
  c.intermediate_size = options.d_ff > 0 ? options.d_ff : default_d_ff(options.d_model);
  c.vocab_size = tokenizer.vocab_size();
  c.max_position_embeddings = options.seq;
  c.rms_norm_eps = 1e-5;
  c.tie_word_embeddings = options.tie_embeddings;
  c.bos_token_id = token_id(tokenizer.bos());
  c.eos_token_id = token_id(tokenizer.eos());
  c.dtype = parse_dtype(options.dtype);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw_error<UsageError>("--kv-heads: expected a divisor of --heads = {}, got {}.",
                            c.num_attention_heads, c.num_key_value_heads);
  }
  check(c, "model");
  return c;
}

void check_new_run(const fs::path& folder) {
  std::error_code unused;
  if (!fs::exists(folder, unused)) return;
  if (!fs::is_directory(folder, unused)) {
    throw_error<UsageError>("--out: {}: expected a new folder, got a file.", folder.string());
  }
  if (fs::is_empty(folder, unused)) return;
  throw_error<UsageError>("--out: {}: expected a new or empty folder, got {}.", folder.string(),
                          fs::exists(folder / "options.json", unused)
                              ? "one that holds a run. Continue it with --resume, or choose another"
                              : "one with other files");
}

void create_run(const fs::path& folder, const LlamaConfig& config, const Tokenizer& tokenizer,
                const TrainOptions& options) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw_error<BackendError>("--out: {}: cannot make the folder: {}.", folder.string(),
                              error.message());
  }
  replace_file(folder / "config.json", to_json(config));
  tokenizer.save(folder);
  replace_file(folder / "options.json", to_json(options));
}

TrainOptions load_options(const fs::path& folder) {
  const fs::path path = folder / "options.json";
  std::error_code unused;
  if (!fs::exists(path, unused)) {
    throw_error<UsageError>("--resume: {}: expected a run (a folder with options.json), got none.",
                            folder.string());
  }
  TrainOptions options = parse_train_options(read_file(path), path.string());
  check(options);
  return options;
}

bool has_checkpoint(const fs::path& folder) { return fs::exists(folder / "optimizer.safetensors"); }

}  // namespace coda
