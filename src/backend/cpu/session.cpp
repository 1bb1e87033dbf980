// Runs plans on the CPU. Everything that a run needs is made ready by prepare(): a run allocates
// nothing, except what oneDNN does of its own (see onednn_gemm.h).
#include <algorithm>
#include <chrono>
#include <map>

#include "backend/bindings.h"
#include "backend/cpu/compiled.h"
#include "backend/cpu/instruction_set.h"
#include "backend/cpu/opaque_kernels.h"
#include "base/check.h"

namespace coda {
namespace {

using cpu::CompiledProgram;
using cpu::OpaqueKernel;
using cpu::ThreadPool;

/// A step with the views of its operands, filled in before it runs.
struct CpuStep {
  const Step* step = nullptr;
  std::shared_ptr<const CompiledProgram> program;
  const OpaqueKernel* kernel = nullptr;
  std::size_t workspace_bytes = 0;
  std::vector<TensorView> views;
};

class CpuSession final : public Session {
 public:
  CpuSession(std::shared_ptr<const Plan> plan, std::int64_t max_tokens,
             std::shared_ptr<ThreadPool> pool, CpuGemm gemm)
      : bindings_(plan, max_tokens), pool_(std::move(pool)), gemm_(gemm) {
    steps_[0] = compile(plan->forward, max_tokens);
    steps_[1] = compile(plan->backward, max_tokens);
    for (int i : {0, 1}) seconds_[i].resize(steps_[i].size());
    allocate();
  }

  void bind(std::string_view name, const TensorView& view) override { bindings_.bind(name, view); }

  void run(Phase phase, std::int64_t tokens) override {
    bindings_.begin(phase, tokens);
    std::vector<CpuStep>& steps = steps_[index_of(phase)];
    for (std::size_t index = 0; index < steps.size(); ++index) {
      CpuStep& step = steps[index];
      for (std::size_t i = 0; i < step.views.size(); ++i)
        step.views[i] = bindings_.view(step.step->slices[i], step.step->piece);
      const auto start = std::chrono::steady_clock::now();
      run(step, rows_of(step.step->piece, tokens).rows);
      seconds_[index_of(phase)][index] +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    bindings_.end(phase);
  }

  TensorView buffer(std::string_view name) const override { return bindings_.view(name); }

  std::span<const double> step_seconds(Phase phase) const override {
    return seconds_[index_of(phase)];
  }

 private:
  static std::size_t index_of(Phase phase) { return phase == Phase::forward ? 0 : 1; }

  std::vector<CpuStep> compile(const std::vector<Step>& steps, std::int64_t max_tokens) {
    std::vector<CpuStep> out;
    for (const Step& step : steps) {
      CpuStep made;
      made.step = &step;
      made.views.resize(step.slices.size());
      if (step.program) {
        auto& compiled = compiled_[step.program.get()];
        if (!compiled)
          compiled = std::make_shared<CompiledProgram>(step.program, max_tokens, gemm_);
        made.program = compiled;
      } else {
        made.kernel = &cpu::kernel_of(step.opaque);
        if (made.kernel->workspace_bytes)
          made.workspace_bytes =
              made.kernel->workspace_bytes(step.attrs, max_tokens, pool_->threads());
      }
      out.push_back(std::move(made));
    }
    return out;
  }

  void allocate() {
    std::int64_t shared = 0, bytes = 0;
    for (const auto& steps : steps_) {
      for (const CpuStep& step : steps) {
        bytes = std::max(bytes, static_cast<std::int64_t>(step.workspace_bytes));
        if (!step.program) continue;
        shared = std::max(shared, step.program->shared_floats());
        thread_floats_ = std::max(thread_floats_, step.program->thread_floats());
      }
    }
    thread_floats_ = cpu::padded(thread_floats_);
    shared_ = HostTensor(DType::f32, 1, shared);
    scratch_ = HostTensor(DType::f32, pool_->threads(), thread_floats_);
    workspace_ = HostTensor(DType::f32, 1, (bytes + 3) / 4);
  }

  void run(const CpuStep& step, std::int64_t tokens) {
    if (step.program) {
      step.program->run(step.views, tokens, shared_.view().as<float>(), scratch_.view().as<float>(),
                        thread_floats_, *pool_);
      return;
    }
    const std::span<const TensorView> views(step.views);
    const auto inputs = static_cast<std::size_t>(step.step->n_inputs);
    step.kernel->run({step.step->attrs, tokens, views.first(inputs), views.subspan(inputs),
                      std::span(workspace_.view().as<std::byte>(), step.workspace_bytes), *pool_,
                      step.step->accumulates});
  }

  Bindings bindings_;
  std::shared_ptr<ThreadPool> pool_;
  CpuGemm gemm_;
  std::map<const Program*, std::shared_ptr<const CompiledProgram>> compiled_;
  std::vector<CpuStep> steps_[2];
  std::vector<double> seconds_[2];  ///< per step
  std::int64_t thread_floats_ = 0;
  HostTensor shared_, scratch_, workspace_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, CpuGemm gemm)
      : pool_(std::make_shared<ThreadPool>(threads)), gemm_(cpu::resolved(gemm)) {}
  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                   std::int64_t max_tokens) override {
    return std::make_unique<CpuSession>(std::move(plan), max_tokens, pool_, gemm_);
  }
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) override {
    pool_->parallel_for(count, [&](std::int64_t index, int) { body(index); });
  }

 private:
  std::shared_ptr<ThreadPool> pool_;
  CpuGemm gemm_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, CpuGemm gemm) {
  constexpr int kMostThreads = 4096;
  if (threads < 0 || threads > kMostThreads)
    throw_error<UsageError>(
        "cpu backend: expected 0 (all cores) or a number of threads up to {}, got {}. Give 0.",
        kMostThreads, threads);
  cpu::cap_instruction_sets();
  return std::make_unique<CpuBackend>(threads, gemm);
}

}  // namespace coda
