// The training loop: draws batches, accumulates gradients, clips, updates, evaluates, saves. What
// it does at a step depends on (options, step, state) only, so that a run that stopped and resumed
// equals one that did not, bit for bit.
#pragma once

#include <cstdint>
#include <functional>

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
};

struct EvalMetrics {
  std::int64_t step = 0;
  double loss = 0.0;  ///< mean over the held-out labels
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
/// they are spread over them, and returns that mean. With no label at all: zeros and NaN.
double accumulate_gradients(Model& model, std::span<const Batch> batches);

/// The held-out tokens that a run evaluates: the first of them, at most options.eval_tokens.
std::span<const std::int32_t> evaluated_tokens(const TokenSplit& tokens,
                                               const TrainOptions& options);

/// Mean loss over the labels of these tokens (all but the first). The sum runs in double, in order.
double mean_loss(Model& model, std::span<const std::int32_t> tokens, std::int64_t seq,
                 std::int64_t batch);

/// Trains from the step after `done` up to `last` (at most options.steps), then saves if the last
/// step was not saved. Returns the last step done. Throws Error if the loss is not finite; the last
/// checkpoint stays.
std::int64_t train_loop(Model& model, AdamW& optimizer, const TokenSplit& tokens,
                        const TrainOptions& options, const Checkpoint& checkpoint,
                        std::int64_t done, std::int64_t last, const LoopEvents& events);

}  // namespace coda
