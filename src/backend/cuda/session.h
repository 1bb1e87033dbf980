// Plans on one GPU. A session compiles all kernels of its plan at once, keeps the plan's buffers in
// one block of device memory and enqueues the steps on the backend's only stream: no run allocates
// or waits. What did not change since the last run is not bound again, and is replayed as a graph.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/bindings.h"
#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

class CudaSession;

class CudaBackend final : public Backend {
 public:
  CudaBackend();

  std::string_view name() const override { return "cuda"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                   std::int64_t max_tokens) override;
  bool on_host() const override { return false; }
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* at, std::size_t bytes) override;
  void synchronize() override;
  std::unique_ptr<DeviceAdamW> make_adamw(std::span<const AdamWTensor> tensors) override;

  const Stream& stream() const { return stream_; }

 private:
  friend class CudaSession;
  void copy_to_host(void* to, const void* from, std::size_t bytes);  ///< waits
  Stream stream_;
  GemmWorkspace gemm_;
  DeviceBuffer error_flag_;
  std::vector<CudaSession*> sessions_;  ///< alive
};

class CudaSession final : public Session {
 public:
  CudaSession(CudaBackend& backend, std::shared_ptr<const Plan> plan, std::int64_t max_tokens);
  ~CudaSession() override;
  CudaSession(const CudaSession&) = delete;
  CudaSession& operator=(const CudaSession&) = delete;

  void bind(std::string_view name, const TensorView& view) override;
  void run(Phase phase, std::int64_t tokens) override;
  TensorView buffer(std::string_view name) const override { return bindings_.view(name); }

  /// Milliseconds of each step of a phase, run one after another with an event between; for
  /// benchmarks. Waits.
  std::vector<double> timed_run(Phase phase, std::int64_t tokens);

  /// The runs since the last call are known to be good, or (bad) one may not be: then throws what
  /// it should have thrown for integers out of range, if they are still there.
  void settle(bool bad);

 private:
  struct BoundStep {
    std::unique_ptr<StepKernel> kernel;
    const Step* step = nullptr;
    std::vector<TensorView> views;
    std::int64_t tokens = -1;  ///< bound for so many; -1: not bound
  };
  std::vector<BoundStep> make_steps(const std::vector<Step>& steps, const StepContext& context);
  /// Checks the run and binds the steps that need it; true if one did.
  bool bind_steps(Phase phase, std::int64_t tokens);

  CudaBackend& backend_;
  std::shared_ptr<const Plan> plan_;
  Bindings bindings_;
  DeviceBuffer workspace_;
  std::map<std::string, std::shared_ptr<const Program>> programs_;  ///< by structure
  std::vector<BoundStep> steps_[2];
  std::unique_ptr<Graph> graphs_[2];
  bool ran_[2] = {false, false};  ///< since the last synchronize
};

}  // namespace coda::cuda
