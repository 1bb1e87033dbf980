// The one interface of all backends. A Session holds a plan's memory; a run allocates nothing. A
// backend also owns the memory that sessions are bound to: plain memory on a host, the GPU's on a
// device. Work of one backend (copies, runs, updates) happens in the order of the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "coda/plan.h"
#include "coda/tensor.h"

namespace coda {

enum class Phase : std::uint8_t { forward, backward };

class Session {
 public:
  virtual ~Session() = default;

  /// Binds memory to an input or output of the plan. Throws UsageError for an unknown name, a wrong
  /// dtype or extent (tokens are checked at run). The memory must outlive the runs.
  virtual void bind(std::string_view name, const TensorView& view) = 0;

  /// Runs a phase on M = tokens rows. Throws UsageError if tokens is above what was reserved, if
  /// something is not bound or has other than M rows, or for targets or ids out of range, before
  /// anything is written. On a device the work is only enqueued, and what targets, ids and
  /// positions hold is found out there: their rows become NaN and Backend::synchronize throws.
  virtual void run(Phase phase, std::int64_t tokens) = 0;

  /// What a plan-owned buffer holds after a run; for tests and `coda explain`. Memory of the
  /// backend's.
  virtual TensorView buffer(std::string_view name) const = 0;

  /// Seconds spent in each of the phase's steps in all runs so far; empty where nobody measures.
  virtual std::span<const double> step_seconds(Phase) const { return {}; }
};

/// One weight tensor as AdamW sees it, all in the backend's memory. `rounded`: the copy in 16 bits
/// that is computed with, null where that is `value`.
struct AdamWTensor {
  float* value = nullptr;
  const float* gradient = nullptr;
  float* first = nullptr;   ///< running mean of the gradient
  float* second = nullptr;  ///< and of its square
  void* rounded = nullptr;
  DType rounded_dtype = DType::bf16;
  std::int64_t count = 0;
  bool decays = false;
};

/// What one step does to every weight, in fp32; the bias corrections are folded in:
/// value = keep * value - size * m / (root_scale * sqrt(v) + eps), with m and v updated from scale
/// * gradient first.
struct AdamWStep {
  float scale = 1, beta1 = 0, beta2 = 0, size = 0, root_scale = 1, eps = 0;
  float keep = 1;  ///< of tensors that decay; the others keep all
};

/// AdamW on the tensors it was made for, where they are.
class DeviceAdamW {
 public:
  virtual ~DeviceAdamW() = default;
  /// Sum of the squares of all gradients, in fixed order. Waits for it.
  virtual double gradient_square_sum() = 0;
  /// Enqueues the update of values, moments and rounded copies.
  virtual void update(const AdamWStep& step) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// Allocates all that runs of up to max_tokens rows need.
  virtual std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                           std::int64_t max_tokens) = 0;

  // ---- Memory; what is here is that of a host

  /// Can the host read and write this backend's memory?
  virtual bool on_host() const { return true; }
  /// Memory of zeros, aligned to 64 bytes at least; given back with the last copy of the pointer.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);
  /// Between host memory and the backend's. upload may return before the copy is made, but `from`
  /// may be changed then; download waits for all work before it, as synchronize does.
  virtual void upload(void* to, const void* from, std::size_t bytes);
  virtual void download(void* to, const void* from, std::size_t bytes);
  virtual void fill_zero(void* at, std::size_t bytes);
  /// Waits for all work. Throws UsageError if a target, id or position of a run since the last call
  /// was out of range.
  virtual void synchronize() {}

  /// Calls body(index) for every index in [0, count), on the host, shared out over the threads of
  /// the backend if it has some. A piece of work must not depend on which thread does it or when.
  virtual void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

  /// Null on a host, where the caller computes.
  virtual std::unique_ptr<DeviceAdamW> make_adamw(std::span<const AdamWTensor> tensors);
};

/// The scalar evaluator that defines every op; compute is f64 or f32. With f64, buffers that the
/// plan owns are f64, inputs and outputs may be bound as f64 whatever the plan says, and casts do
/// nothing: math without rounding. With f32, casts round.
std::unique_ptr<Backend> make_reference_backend(DType compute);

/// What multiplies matrices on the CPU. `automatic` is oneDNN for operands of a 16-bit type that
/// the processor multiplies natively and coda's own kernel for all else; `onednn` is an error for
/// types that it cannot multiply well here. A single row times a transposed matrix always takes
/// coda's own kernel. `from_environment` reads CODA_CPU_GEMM: auto (or unset), builtin, onednn.
enum class CpuGemm : std::uint8_t { from_environment, automatic, builtin, onednn };

/// oneDNN + Highway. threads 0: all cores. The result does not depend on it. Throws UsageError for
/// an unknown CODA_CPU_GEMM.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0,
                                          CpuGemm gemm = CpuGemm::from_environment);

/// One NVIDIA GPU (Hopper). Throws BackendError if there is none that can be used.
std::unique_ptr<Backend> make_cuda_backend();

/// For `coda info`: oneDNN's version and the instruction set it sees, and what multiplies operands
/// of each type ("built-in" or "oneDNN"). Throws UsageError for an unknown CODA_CPU_GEMM.
struct CpuGemmInfo {
  std::string onednn, f32, bf16, f16;
};
CpuGemmInfo cpu_gemm_info(CpuGemm choice = CpuGemm::from_environment);

/// The instruction set that the CPU's kernels use: "AVX2", "AVX-512", ... CODA_CPU caps it for the
/// whole process: auto (or unset), avx512, avx2, baseline (what the compiler takes for granted).
/// Throws UsageError for an unknown value, as make_cpu_backend does.
std::string cpu_instruction_set();

}  // namespace coda
