// A run's folder: a Hugging Face model (model.safetensors, config.json, tokenizer files) plus
// options.json, optimizer.safetensors and metrics.jsonl.
//
// Weights and optimiser state change together, in two files. A save writes both beside the old ones
// (*.new) and flushes them; renaming optimizer.safetensors commits, renaming model.safetensors
// follows. Whatever instant a crash takes, every file is whole, and resuming finds either the old
// pair, or the new optimiser state with the new weights still called *.new, and finishes the
// rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "coda/dtype.h"
#include "train/adamw.h"
#include "train/model.h"
#include "train/spike.h"

namespace coda {

/// A run between two steps.
struct Progression {
  std::int64_t done = 0;  ///< steps
  RecentLosses recent = RecentLosses();
  std::int64_t skipped = 0;  ///< the last steps, in a row, that left the weights as they were
};

class Checkpoint {
 public:
  /// `dtype` is that of the stored weights. Below fp32, the optimiser file also keeps fp32 ones.
  Checkpoint(std::filesystem::path folder, DType dtype);

  /// Writes weights, optimiser state and progress, then keeps the last `keep` saves under
  /// checkpoints/ too, each a run's folder of its own. Throws BackendError; the old pair stays.
  void save(const Progression& run, const Model& model, AdamW& optimizer,
            std::int64_t keep = 0) const;

  /// Restores what save wrote, and cuts metrics.jsonl to lines up to that step. Throws UsageError
  /// if files are missing, broken, of another model, or hold numbers that are not finite.
  Progression load(Model& model, AdamW& optimizer) const;

  /// Cuts metrics.jsonl to the lines up to that step; load does so itself.
  void cut_metrics(std::int64_t step) const;

  /// Adds a line to metrics.jsonl. Throws BackendError.
  void log(std::string_view line) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  void keep_save(std::int64_t step, std::int64_t keep) const;

  std::filesystem::path folder_;
  DType dtype_;
};

/// Reads the weights of a Hugging Face folder into the model. Throws UsageError naming a tensor
/// that is missing, of another shape, or holds a number that is not finite; tensors that the model
/// does not know are an error too, except the rotary tables and the tied head that some checkpoints
/// carry.
void load_weights(Model& model, const std::filesystem::path& folder);

}  // namespace coda
