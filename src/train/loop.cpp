#include "train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "train/speed.h"

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

/// In a row: weights that give NaN do not get better, and a level that the losses keep has become
/// theirs by then.
constexpr auto kMostSkipped = static_cast<std::int64_t>(RecentLosses::kMost);

/// A NaN has a sign bit that means nothing, and fmt prints it.
double without_sign(double x) { return std::isnan(x) ? std::abs(x) : x; }

std::string last_checkpoint(std::int64_t step) {
  return step == 0 ? "there is no checkpoint yet"
                   : fmt::format("the last checkpoint is of step {}", step);
}

/// Why a step must not change the weights; "" if it may. Throws Diverged if the options say stop.
std::string reason_to_skip(const StepMetrics& report, const RecentLosses& recent,
                           const TrainOptions& options, std::int64_t saved) {
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
    if (options.on_nan == "skip") return "nan";
    throw Diverged(
        fmt::format("train: step {}: expected a finite loss and gradient, got loss {} and gradient "
                    "norm {}; {}. Lower --lr, raise --warmup, or leave such steps out.",
                    report.step, report.loss, report.gradient_norm, last_checkpoint(saved)),
        "--on-nan skip");
  }
  const std::optional<double> median = recent.median();
  const bool spikes = median && report.loss > *median + options.spike;
  if (!spikes || options.on_spike == "ignore") return "";
  if (options.on_spike == "skip") return "spike";
  throw Diverged(
      fmt::format(
          "train: step {}: expected a loss of at most {:.4f} (--spike {} above the median "
          "of the last {}), got a spike of {:.4f}; {}. Lower --lr, or leave such steps out.",
          report.step, *median + options.spike, options.spike, recent.all().size(), report.loss,
          last_checkpoint(saved)),
      "--on-spike skip");
}

/// Throws Diverged if so many steps were skipped that more would change nothing.
void check_skipped(const Progression& run, const StepMetrics& report, const TrainOptions& options,
                   std::int64_t saved) {
  if (run.skipped < std::min(kMostSkipped, options.steps)) return;
  throw Diverged(
      fmt::format("train: step {}: expected fewer than {} skipped steps in a row, got as many (the "
                  "last: {}, loss {}); {}. Lower --lr or raise --warmup.",
                  report.step, run.skipped, report.skipped, report.loss, last_checkpoint(saved)),
      "");
}

}  // namespace

double accumulate_gradients(Model& model, std::span<const Batch> batches) {
  if (batches.size() > 1 && !model.accumulates()) {
    throw_error<UsageError>(
        "train: expected one micro-batch for a model that does not accumulate, got {}. Make it "
        "with accumulates = true.",
        batches.size());
  }
  std::int64_t labels = 0;
  for (const Batch& batch : batches) labels += batch.valid_labels();
  if (model.accumulates() || labels == 0) model.zero_gradients();
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
                 std::int64_t batch, const std::function<void()>& release) {
  double loss = 0.0;
  std::int64_t labels = 0;
  for_each_consecutive(tokens, seq, batch, [&](const Batch& b) {
    loss += model.evaluate(b);
    labels += b.valid_labels();
    if (release) release();
  });
  return loss / static_cast<double>(std::max<std::int64_t>(1, labels));
}

nlohmann::ordered_json to_json(const StepMetrics& m) {
  nlohmann::ordered_json json{{"step", m.step},
                              {"loss", m.loss},
                              {"lr", m.lr},
                              {"gradient_norm", m.gradient_norm},
                              {"tokens_per_second", m.tokens_per_second},
                              {"memory_bytes", m.memory_bytes},
                              {"mfu", m.mfu ? nlohmann::ordered_json(*m.mfu) : nullptr}};
  if (!m.skipped.empty()) json["skipped"] = m.skipped;
  return json;
}

void train_loop(Model& model, AdamW& optimizer, const TokenSplit& tokens,
                const TrainOptions& options, const Checkpoint& checkpoint, Progression& run,
                std::int64_t last, const LoopEvents& events, const DeviceSpeed& speed) {
  const Schedule schedule{options.lr, min_lr_of(options), warmup_of(options), options.steps};
  last = std::min(last, options.steps);
  std::int64_t saved = run.done;
  const auto save = [&] {
    checkpoint.save(run, model, optimizer, options.keep);
    saved = run.done;
    if (events.on_save) events.on_save(saved);
  };
  while (run.done < last) {
    const double start = seconds_now();
    const std::int64_t step = run.done + 1;
    StepMetrics report;
    report.step = step;
    report.lr = schedule.at(step);
    report.loss =
        without_sign(accumulate_gradients(model, batches_of(tokens.training, options, step)));
    report.gradient_norm = without_sign(optimizer.gradient_norm());
    report.skipped = reason_to_skip(report, run.recent, options, saved);
    if (std::isfinite(report.loss)) run.recent.add(report.loss);
    if (report.skipped.empty()) {
      const bool clips = options.clip > 0.0 && report.gradient_norm > options.clip;
      optimizer.update(step, report.lr, clips ? options.clip / report.gradient_norm : 1.0);
      model.weights_updated();
      run.skipped = 0;
    } else {
      ++run.skipped;
      check_skipped(run, report, options, saved);
    }
    run.done = step;
    const auto step_tokens = static_cast<double>(options.batch * options.accumulate * options.seq);
    report.tokens_per_second = step_tokens / std::max(seconds_now() - start, 1e-9);
    report.memory_bytes = resident_memory();
    if (speed.peak) {
      report.mfu = report.tokens_per_second * speed.flops_per_token / *speed.peak;
    }
    checkpoint.log(to_json(report).dump());
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
  if (saved != run.done) save();
}

}  // namespace coda
