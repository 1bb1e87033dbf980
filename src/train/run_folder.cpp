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
  // A new folder appears whole: a run killed meanwhile leaves its name free.
  fs::path target = fs::absolute(folder);
  if (!target.has_filename()) target = target.parent_path();
  const bool is_new = !fs::exists(target);
  const fs::path staging = is_new ? fs::path(target.string() + ".new") : target;
  std::error_code error;
  if (is_new) fs::remove_all(staging, error);
  fs::create_directories(staging, error);
  if (error) {
    throw_error<BackendError>("--out: {}: cannot make the folder: {}.", folder.string(),
                              error.message());
  }
  replace_file(staging / "config.json", to_json(config));
  tokenizer.save(staging);
  replace_file(staging / "options.json", to_json(options));
  if (is_new) rename_file(staging, target);
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

bool has_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / "optimizer.safetensors")) return true;
  if (!fs::exists(folder / "model.safetensors")) return false;
  throw_error<UsageError>(
      "--resume: {}: expected optimizer.safetensors beside model.safetensors, got none. Restore "
      "it, "
      "or begin a new run from these weights with --model {}.",
      folder.string(), folder.string());
}

}  // namespace coda
