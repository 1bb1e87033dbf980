// The training loop: draws batches, accumulates gradients, clips, updates, evaluates, saves. What
// it does at a step depends on (options, step, state) only, so that a run that stopped and resumed
// equals one that did not, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "coda/error.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/options.h"

namespace coda {

struct StepMetrics {
  std::int64_t step = 0;  ///< from 1
  double loss = 0.0;      ///< mean over the step's labels, before the update
  double lr = 0.0;
  double gradient_norm = 0.0;  ///< before clipping
  double tokens_per_second = 0.0;
  std::int64_t memory_bytes = 0;  ///< of the process, in RAM
  std::optional<double> mfu;      ///< share of the device's peak, where that is known
  std::string skipped;            ///< why the weights were left as they were; empty: they were not
};

struct EvalMetrics {
  std::int64_t step = 0;
  double loss = 0.0;  ///< mean over the held-out labels
};

/// A step as metrics.jsonl has it.
nlohmann::ordered_json to_json(const StepMetrics& metrics);

/// To tell the share of the peak that a step reaches.
struct DeviceSpeed {
  double flops_per_token = 0.0;
  std::optional<double> peak;  ///< FLOPs a second
};

/// What the loop tells its caller, and asks; unset ones are skipped. Metrics are written whatever
/// they do.
struct LoopEvents {
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(const EvalMetrics&)> on_eval;
  std::function<void(std::int64_t step)> on_save;
  std::function<bool()> should_stop;  ///< asked after each step
};

/// Sets the gradients to those of the mean loss over all labels of these micro-batches, however
/// they are spread over them, and returns that mean. With no label at all: zeros and NaN. Throws
/// UsageError for several micro-batches of a model that does not accumulate.
double accumulate_gradients(Model& model, std::span<const Batch> batches);

/// The held-out tokens that a run evaluates: the first of them, at most options.eval_tokens.
std::span<const std::int32_t> evaluated_tokens(const TokenSplit& tokens,
                                               const TrainOptions& options);

/// Mean loss over the labels of these tokens (all but the first, and those that begin documents).
/// The sum runs in double, in order. release: called after each batch.
double mean_loss(Model& model, std::span<const std::int32_t> tokens, std::int64_t seq,
                 std::int64_t batch, const std::function<void()>& release = {});

/// A run that its losses ended. The last checkpoint stays, and was not damaged by them.
class Diverged : public Error {
 public:
  Diverged(const std::string& what, std::string skipping)
      : Error(what), skipping_(std::move(skipping)) {}
  /// The option with which the run can go on without such steps; empty if it skipped them already.
  const std::string& skipping() const { return skipping_; }

 private:
  std::string skipping_;
};

/// Trains from the step after run.done up to `last` (at most options.steps), then saves if the last
/// step was not saved; run.done says how far it came. A step whose loss or gradient is not finite,
/// or whose loss is a spike, is treated as the options ask: skipped, it leaves weights and moments
/// as they were and counts as done; RecentLosses::kMost of them in a row, or all that a shorter
/// schedule has, end the run as well. Throws Diverged if the run ends so.
void train_loop(Model& model, AdamW& optimizer, const TokenSplit& tokens,
                const TrainOptions& options, const Checkpoint& checkpoint, Progression& run,
                std::int64_t last, const LoopEvents& events, const DeviceSpeed& speed = {});

}  // namespace coda
