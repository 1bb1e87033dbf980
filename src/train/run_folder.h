// What stands in a model's or a run's folder besides weights, and how a run begins.
#pragma once

#include <filesystem>
#include <optional>

#include "nn/models/llama_config.h"
#include "train/file.h"
#include "train/options.h"
#include "train/tokenizer.h"

namespace coda {

/// config.json of a folder. Throws UsageError.
LlamaConfig load_config(const std::filesystem::path& folder);

/// Throws UsageError if the tokenizer of a folder has ids that its model has not.
void check_vocabulary(const Tokenizer& tokenizer, const LlamaConfig& config,
                      const std::filesystem::path& folder);

/// The configuration of a new model. Throws UsageError naming the option.
LlamaConfig new_config(const TrainOptions& options, const Tokenizer& tokenizer);

/// Throws UsageError unless the folder can be made, or is there and empty.
void check_new_run(const std::filesystem::path& folder);

/// Throws UsageError unless a picture can be written to that path: a name in .svg (nothing else is
/// written over by accident) in a folder that takes files, or in new_run, which is yet to be made;
/// empty: there is none.
void check_plot(const std::filesystem::path& plot, const std::filesystem::path& new_run);

/// Writes config.json, the tokenizer and options.json into a folder that appears whole if it is
/// new. The lock keeps other processes from writing the run. Throws UsageError.
FileLock create_run(const std::filesystem::path& folder, const LlamaConfig& config,
                    const Tokenizer& tokenizer, const TrainOptions& options);

/// For whoever continues a run: until the lock is gone no other process may. Throws UsageError if
/// the folder is no run, or is being written.
FileLock lock_run(const std::filesystem::path& folder);

/// Writes options.json again, with what a resumed run was told to do differently.
void save_options(const std::filesystem::path& folder, const TrainOptions& options);

/// options.json of a run. Throws UsageError if the folder is no run.
TrainOptions load_options(const std::filesystem::path& folder);

/// True once a checkpoint was saved. Throws UsageError if half of one is there.
bool has_checkpoint(const std::filesystem::path& folder);

}  // namespace coda
