#include "train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace coda {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The micro-batches of one step.
std::vector<Batch> batches_of(std::span<const std::int32_t> tokens, const TrainOptions& options,
                              std::int64_t step) {
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < options.accumulate; ++i) {
    batches.push_back(draw_batch(tokens, options.seq, options.seed, step,
                                 options.batch * options.accumulate, i * options.batch,
                                 options.batch));
  }
  return batches;
}

}  // namespace

double accumulate_gradients(Model& model, std::span<const Batch> batches) {
  model.zero_gradients();
  std::int64_t labels = 0;
  for (const Batch& batch : batches) labels += batch.valid_labels();
  if (labels == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto scale = static_cast<float>(1.0 / static_cast<double>(labels));
  double loss = 0.0;
  for (const Batch& batch : batches) loss += model.forward_backward(batch, scale);
  return loss / static_cast<double>(labels);
}

std::span<const std::int32_t> evaluated_tokens(const TokenSplit& tokens,
                                               const TrainOptions& options) {
  const auto most = static_cast<std::size_t>(std::max(options.eval_tokens, options.seq + 1));
  return tokens.held_out.first(std::min(tokens.held_out.size(), most));
}

double mean_loss(Model& model, std::span<const std::int32_t> tokens, std::int64_t seq,
                 std::int64_t batch) {
  double loss = 0.0;
  for (const Batch& b : consecutive_batches(tokens, seq, batch)) loss += model.evaluate(b);
  return loss / static_cast<double>(tokens.size() - 1);
}

std::int64_t train_loop(Model& model, AdamW& optimizer, const TokenSplit& tokens,
                        const TrainOptions& options, const Checkpoint& checkpoint,
                        std::int64_t done, std::int64_t last, const LoopEvents& events) {
  const Schedule schedule{options.lr, options.min_lr, options.warmup, options.steps};
  last = std::min(last, options.steps);
  std::int64_t saved = done;
  const auto save = [&] {
    checkpoint.save(done, model, optimizer);
    saved = done;
    if (events.on_save) events.on_save(done);
  };
  while (done < last) {
    const double start = seconds_now();
    const std::int64_t step = done + 1;
    StepMetrics report{step, 0.0, schedule.at(step), 0.0, 0.0};
    report.loss = accumulate_gradients(model, batches_of(tokens.training, options, step));
    report.gradient_norm = optimizer.gradient_norm();
    if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
      throw_error<Error>(
          "train: step {}: expected a finite loss and gradient, got loss {} and gradient norm {}. "
          "Lower --lr, or raise --warmup; the last checkpoint is of step {}.",
          step, report.loss, report.gradient_norm, saved);
    }
    const bool clips = options.clip > 0.0 && report.gradient_norm > options.clip;
    optimizer.update(step, report.lr, clips ? options.clip / report.gradient_norm : 1.0);
    model.weights_updated();
    done = step;
    const auto step_tokens = static_cast<double>(options.batch * options.accumulate * options.seq);
    report.tokens_per_second = step_tokens / std::max(seconds_now() - start, 1e-9);
    checkpoint.log(nlohmann::ordered_json{{"step", step},
                                          {"loss", report.loss},
                                          {"lr", report.lr},
                                          {"gradient_norm", report.gradient_norm},
                                          {"tokens_per_second", report.tokens_per_second}}
                       .dump());
    if (events.on_step) events.on_step(report);
    const bool evaluates = options.eval_every > 0 && step % options.eval_every == 0;
    if (evaluates || step == options.steps) {
      const EvalMetrics eval{
          step, mean_loss(model, evaluated_tokens(tokens, options), options.seq, options.batch)};
      checkpoint.log(nlohmann::ordered_json{{"step", step}, {"eval_loss", eval.loss}}.dump());
      if (events.on_eval) events.on_eval(eval);
    }
    if (options.save_every > 0 && step % options.save_every == 0) save();
    if (events.should_stop && events.should_stop()) break;
  }
  if (saved != done) save();
  return done;
}

}  // namespace coda
