// The one interface of all backends. A Session holds a plan's memory; a run allocates nothing. A
// backend also owns the memory that sessions are bound to: plain memory on a host, the GPU's on a
// device. Work of one backend (copies, runs, updates) happens in the order of the calls; one thread
// at a time may call a backend and its sessions.
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

/// A plan made ready to run. Its backend must outlive it.
class Session {
 public:
  virtual ~Session() = default;

  /// Binds memory of the backend to an input or output of the plan, until it is bound anew; the
  /// view is copied, the memory must outlive the runs. The dtype is what the plan says (the f64
  /// reference also takes f64), extents: tile [M, cols] and weight [rows, cols] with any stride >=
  /// cols, col [M, 1] with stride 1, row [1, cols], scalar [1, 1], list a contiguous [n, 1] or
  /// [1, n] with n >= 1. Throws UsageError for an unknown name, another dtype or extent, or null
  /// (M is checked at run).
  virtual void bind(std::string_view name, const TensorView& view) = 0;

  /// Runs a phase on M = tokens rows, 0 or more: reads the inputs, writes the outputs of that phase
  /// and nothing else (cached_attention also its caches). Throws UsageError if tokens is above what
  /// was reserved, if something that the phase uses is not bound or has other than M rows, if an
  /// output shares memory with anything else, for a backward that no forward of as many rows came
  /// before, or for targets, ids, positions or offsets out of range, before anything is written.
  /// The same inputs give the same bits, whatever ran before. On a device the work is only
  /// enqueued, and what targets, ids and positions hold is found out there: their rows become NaN
  /// and Backend::synchronize throws.
  virtual void run(Phase phase, std::int64_t tokens) = 0;

  /// What a plan-owned buffer holds after a run. Memory of the backend's, good until the next run. A
  /// result keeps its value until then; the others are for tests and `coda explain`, and share
  /// memory, so that scratch may hold another's values. Throws UsageError for an unknown name.
  virtual TensorView buffer(std::string_view name) const = 0;

  /// Seconds spent in each of the phase's steps in all runs so far; empty where nobody measures.
  virtual std::span<const double> step_seconds(Phase) const { return {}; }
};

/// One weight tensor as AdamW sees it, all in the backend's memory. `rounded`: the copy in 16 bits
/// that is computed with, null where that is `value`. With `low`, value is null and lies in both:
/// see base/split_f32.h; rounded_dtype is bf16.
struct AdamWTensor {
  float* value = nullptr;
  std::int16_t* low = nullptr;
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
  /// Allocates all that runs of up to max_tokens rows need: 0 to 2^31 - 1. The plan is what
  /// compile() returned, or one that verify() accepts; it is kept alive. Throws UsageError for
  /// null, f64 outside the reference backend, an opaque node that has_kernel denies, or rows that
  /// cannot fit, BackendError if there is no such memory.
  virtual std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                           std::int64_t max_tokens) = 0;

  // ---- Memory; what is here is that of a host

  /// Can the host read and write this backend's memory?
  virtual bool on_host() const { return true; }
  /// Memory of zeros, aligned to 64 bytes at least; given back with the last copy of the pointer,
  /// before the backend goes. Throws Error if there is none.
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
  /// the backend if it has some; returns when all are done, and throws what a body threw first. A
  /// piece of work must not depend on which thread does it or when, and may not call the backend.
  virtual void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

  /// Null on a host, where the caller computes.
  virtual std::unique_ptr<DeviceAdamW> make_adamw(std::span<const AdamWTensor> tensors);
};

/// The scalar evaluator that defines every op; compute is f64 or f32. With f64, buffers that the
/// plan owns are f64, inputs and outputs may be bound as f64 whatever the plan says, and casts do
/// nothing: math without rounding. With f32, casts round. Throws UsageError for another compute.
std::unique_ptr<Backend> make_reference_backend(DType compute);

/// What multiplies matrices on the CPU. `automatic` is oneDNN for operands of a 16-bit type that
/// the processor multiplies natively and coda's own kernel for all else; `onednn` is an error for
/// types that it cannot multiply well here. A single row times a transposed matrix always takes
/// coda's own kernel. `from_environment` reads CODA_CPU_GEMM: auto (or unset), builtin, onednn.
enum class CpuGemm : std::uint8_t { from_environment, automatic, builtin, onednn };

/// oneDNN + Highway. threads: up to 4096, 0 for all cores that this process may use. The result
/// does not depend on it. Throws UsageError for another number or an unknown CODA_CPU_GEMM or
/// CODA_CPU, BackendError if the system gives no such threads.
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
