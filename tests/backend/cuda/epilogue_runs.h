// Runs of single programs of a plan, for comparing two backends.
#pragma once

#include <functional>
#include <string>

#include "backend/backend.h"
#include "backend/bindings.h"
#include "backend/cpu/harness.h"

namespace coda::testing {

/// A session that gives every step to a function, with the step's views of host memory.
class StepSession : public Session {
 public:
  using RunStep =
      std::function<void(const Step&, const Plan&, const std::vector<TensorView>&, i64 tokens)>;

  StepSession(std::shared_ptr<const Plan> plan, i64 max_tokens, RunStep run_step)
      : bindings_(std::move(plan), max_tokens, {.widen = false, .reuse = false, .poison = true}),
        run_step_(std::move(run_step)) {}

  void bind(std::string_view name, const TensorView& view) override { bindings_.bind(name, view); }

  void run(Phase phase, i64 tokens) override {
    bindings_.begin(phase, tokens);
    const Plan& plan = bindings_.plan();
    for (const Step& step : phase == Phase::forward ? plan.forward : plan.backward) {
      std::vector<TensorView> views;
      for (const Slice& slice : step.slices) views.push_back(bindings_.view(slice, step.piece));
      run_step_(step, plan, views, rows_of(step.piece, tokens).rows);
    }
    bindings_.end(phase);
  }

  TensorView buffer(std::string_view name) const override { return bindings_.view(name); }

 private:
  Bindings bindings_;
  RunStep run_step_;
};

class StepBackend : public Backend {
 public:
  explicit StepBackend(StepSession::RunStep run_step) : run_step_(std::move(run_step)) {}
  std::string_view name() const override { return "steps"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan, i64 max_tokens) override {
    return std::make_unique<StepSession>(std::move(plan), max_tokens, run_step_);
  }

 private:
  StepSession::RunStep run_step_;
};

/// The steps of a plan that are GEMM programs, each as a plan of its own: what it reads is an input
/// (partials: saved memory to be filled), what it writes an output.
inline std::vector<std::shared_ptr<Plan>> gemm_steps(const Plan& plan) {
  std::vector<std::shared_ptr<Plan>> plans;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const Step& step : *steps) {
      if (!step.program || step.program->form != Form::gemm) continue;
      auto one = std::make_shared<Plan>();
      one->buffers = plan.buffers;
      for (Buffer& buffer : one->buffers) {
        buffer.role = Role::scratch;
        buffer.first_step = buffer.last_step = 0;
      }
      for (std::size_t i = 0; i < step.slices.size(); ++i) {
        Buffer& buffer = one->buffers[static_cast<std::size_t>(step.slices[i].buffer)];
        const bool output = step.program->operands[i].output;
        buffer.role = buffer.partial ? Role::saved : output ? Role::output : Role::input;
      }
      one->forward.push_back(step);
      plans.push_back(std::move(one));
    }
  }
  return plans;
}

/// Fills a program's partials (positive, so that square roots and logarithms of them are numbers)
/// as inputs are filled, and runs it.
class FilledBackend : public Backend {
 public:
  explicit FilledBackend(Backend& inner) : inner_(inner) {}
  std::string_view name() const override { return "filled"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan, i64 max_tokens) override {
    return std::make_unique<FilledSession>(inner_.prepare(plan, max_tokens), plan);
  }

 private:
  class FilledSession : public Session {
   public:
    FilledSession(std::unique_ptr<Session> inner, std::shared_ptr<const Plan> plan)
        : inner_(std::move(inner)), plan_(std::move(plan)) {}
    void bind(std::string_view name, const TensorView& view) override { inner_->bind(name, view); }
    void run(Phase phase, i64 tokens) override {
      const Step& step = plan_->forward[0];
      // A first run tells the session how many rows there are; then partials can be filled.
      inner_->run(phase, tokens);
      for (std::size_t i = 0; i < step.slices.size(); ++i) {
        const Buffer& buffer = plan_->buffers[static_cast<std::size_t>(step.slices[i].buffer)];
        if (!buffer.partial) continue;
        const TensorView view = inner_->buffer(buffer.name);
        const bool output = step.program->operands[i].output;
        for (i64 r = 0; r < view.rows; ++r)
          for (i64 c = 0; c < view.cols; ++c)
            write_element(view, r, c,
                          output ? std::nan("") : 1.0 + static_cast<double>((7 * r + 3 * c) % 16));
      }
      inner_->run(phase, tokens);
    }
    TensorView buffer(std::string_view name) const override { return inner_->buffer(name); }

   private:
    std::unique_ptr<Session> inner_;
    std::shared_ptr<const Plan> plan_;
  };
  Backend& inner_;
};

}  // namespace coda::testing
