#include "train/run_folder.h"

#include <unistd.h>

#include "base/check.h"
#include "train/file.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptionsFile = "options.json";
constexpr const char* kLockFile = ".lock";

fs::path whole(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

bool is_empty_but_lock(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename() != kLockFile) return false;
  }
  return !error;
}

void remove_all_but_lock(const fs::path& folder) {
  std::error_code unused;
  for (const auto& entry : fs::directory_iterator(folder, unused)) {
    if (entry.path().filename() != kLockFile) fs::remove_all(entry.path(), unused);
  }
}

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
  if (folder.empty()) throw_error<UsageError>("--model: expected a folder, got an empty path.");
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
  constexpr std::int64_t kMostWeights = std::int64_t{1} << 40;
  if (parameter_count(c) > kMostWeights) {  // before check, which has names of config.json
    throw_error<UsageError>(
        "--d-model, --layers, --d-ff, --vocab: expected sizes of at most 2^40 weights together, "
        "got {}, {}, {} and {}.",
        c.hidden_size, c.num_hidden_layers, c.intermediate_size, c.vocab_size);
  }
  check(c, "model");
  return c;
}

namespace {

/// Tried, since permissions do not say it for every file system (/proc) and user. Where a folder
/// can be made, a file can.
bool can_make_folder_in(const fs::path& above) {
  std::string name = (above / ".coda-XXXXXX").string();
  return ::mkdtemp(name.data()) != nullptr && ::rmdir(name.c_str()) == 0;
}

}  // namespace

void check_new_run(const fs::path& folder) {
  std::error_code unused;
  const fs::path path = whole(folder);
  if (fs::is_symlink(fs::symlink_status(path, unused)) && !fs::exists(path, unused)) {
    throw_error<UsageError>(
        "--out: {}: expected a new or empty folder, got a link to {}, which is not there. Make "
        "that folder, or remove the link.",
        folder.string(), fs::read_symlink(path, unused).string());
  }
  if (!fs::exists(path, unused)) {
    fs::path above = path.parent_path();
    while (!fs::exists(above, unused) && above.has_relative_path()) above = above.parent_path();
    if (can_make_folder_in(above)) return;
    throw_error<UsageError>(
        "--out: {}: expected a path at which a folder can be made, got {} in the way. Choose a "
        "folder that this user may write into.",
        folder.string(),
        above.string() + (fs::is_directory(above, unused) ? " (not writable)" : " (a file)"));
  }
  if (!fs::is_directory(path, unused)) {
    throw_error<UsageError>("--out: {}: expected a new or empty folder, got a file.",
                            folder.string());
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    throw_error<UsageError>(
        "--out: {}: expected a folder that this user may write into, got one without that "
        "permission. Choose another.",
        folder.string());
  }
  if (is_empty_but_lock(path)) return;
  throw_error<UsageError>("--out: {}: expected a new or empty folder, got {}.", folder.string(),
                          fs::exists(path / kOptionsFile, unused)
                              ? "one that holds a run. Continue it with --resume, or choose another"
                              : "one with other files. Choose another");
}

void check_plot(const fs::path& plot, const fs::path& new_run) {
  std::error_code unused;
  const fs::path path = fs::absolute(plot).lexically_normal();
  const fs::path folder = path.parent_path();
  if (path.extension() != ".svg") {
    throw_error<UsageError>(
        "--plot: {}: expected a file whose name ends in .svg, got another name.", plot.string());
  }
  if (fs::is_directory(path, unused)) {
    throw_error<UsageError>("--plot: {}: expected a file, got a folder. Name a file in it.",
                            plot.string());
  }
  if (!new_run.empty() && folder == whole(new_run)) return;
  if (fs::is_directory(folder, unused) && can_make_folder_in(folder)) return;
  throw_error<UsageError>(
      "--plot: {}: expected a file in a folder that this user may write into, got {}. Choose "
      "another, or make the folder.",
      plot.string(), fs::is_directory(folder, unused) ? "one that is not" : "no such folder");
}

FileLock create_run(const fs::path& folder, const LlamaConfig& config, const Tokenizer& tokenizer,
                    const TrainOptions& options) {
  // A new folder appears whole: a run killed meanwhile leaves its name free.
  const fs::path target = whole(folder);
  const bool is_new = !fs::exists(target);
  const fs::path staging = is_new ? fs::path(target.string() + ".new") : target;
  make_folder(staging);
  FileLock lock(staging / kLockFile);
  // Between the check and the lock another process may have begun, and ended, a run here.
  check_new_run(folder);
  remove_all_but_lock(staging);  // what one that was killed left
  try {
    replace_file(staging / "config.json", to_json(config));
    tokenizer.save(staging);
    save_options(staging, options);
    if (is_new) rename_file(staging, target);
  } catch (...) {
    remove_all_but_lock(staging);
    std::error_code unused;
    if (is_new) fs::remove_all(staging, unused);
    throw;
  }
  return lock;
}

FileLock lock_run(const fs::path& folder) {
  std::error_code unused;
  if (!fs::exists(folder / kOptionsFile, unused)) {
    throw_error<UsageError>("--resume: {}: expected a run (a folder with options.json), got none.",
                            folder.string());
  }
  FileLock lock(folder / kLockFile);
  remove_unfinished(folder);
  return lock;
}

void save_options(const fs::path& folder, const TrainOptions& options) {
  replace_file(folder / kOptionsFile, to_json(options));
}

TrainOptions load_options(const fs::path& folder) {
  const fs::path path = folder / kOptionsFile;
  TrainOptions options = parse_train_options(read_file(path), path.string());
  try {
    check(options);
  } catch (const UsageError& e) {
    throw_error<UsageError>("{}: {}", path.string(), e.what());
  }
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
