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
#include <string_view>

#include "coda/dtype.h"
#include "train/adamw.h"
#include "train/model.h"

namespace coda {

class Checkpoint {
 public:
  /// `dtype` is that of the stored weights. Below fp32, the optimiser file also keeps fp32 ones.
  Checkpoint(std::filesystem::path folder, DType dtype);

  /// Writes weights and optimiser state as of `step`. Throws BackendError; the old pair stays.
  void save(std::int64_t step, const Model& model, AdamW& optimizer) const;

  /// Restores what save wrote, and cuts metrics.jsonl to lines up to that step. Returns the step.
  /// Throws UsageError if files are missing, broken, or of another model.
  std::int64_t load(Model& model, AdamW& optimizer) const;

  /// Cuts metrics.jsonl to the lines up to that step; load does so itself.
  void cut_metrics(std::int64_t step) const;

  /// Adds a line to metrics.jsonl. Throws BackendError.
  void log(std::string_view line) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  DType dtype_;
};

/// Reads the weights of a Hugging Face folder into the model. Throws UsageError naming each missing
/// or wrongly shaped tensor; tensors that the model does not know are an error too, except the
/// rotary tables and the tied head that some checkpoints carry.
void load_weights(Model& model, const std::filesystem::path& folder);

}  // namespace coda
