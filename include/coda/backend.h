// The one interface of all backends. A Session holds a plan's memory; a run allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
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
  /// anything is written.
  virtual void run(Phase phase, std::int64_t tokens) = 0;

  /// What a plan-owned buffer holds after a run; for tests and `coda explain`.
  virtual TensorView buffer(std::string_view name) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// Allocates all that runs of up to max_tokens rows need.
  virtual std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                           std::int64_t max_tokens) = 0;
};

/// The scalar evaluator that defines every op; compute is f64 or f32. With f64, buffers that the
/// plan owns are f64, inputs and outputs may be bound as f64 whatever the plan says, and casts do
/// nothing: math without rounding. With f32, casts round.
std::unique_ptr<Backend> make_reference_backend(DType compute);

/// What multiplies matrices on the CPU. `automatic` is oneDNN for operands of a 16-bit type that
/// the processor multiplies natively and coda's own kernel for all else; `onednn` is an error for
/// types that it cannot multiply well here. `from_environment` reads CODA_CPU_GEMM: auto (or
/// unset), builtin, onednn.
enum class CpuGemm : std::uint8_t { from_environment, automatic, builtin, onednn };

/// oneDNN + Highway. threads 0: all cores. The result does not depend on it. Throws UsageError for
/// an unknown CODA_CPU_GEMM.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0,
                                          CpuGemm gemm = CpuGemm::from_environment);

/// For `coda info`: oneDNN's version and the instruction set it sees, and what multiplies operands
/// of each type ("built-in" or "oneDNN"). Throws UsageError for an unknown CODA_CPU_GEMM.
struct CpuGemmInfo {
  std::string onednn, f32, bf16, f16;
};
CpuGemmInfo cpu_gemm_info(CpuGemm choice = CpuGemm::from_environment);

}  // namespace coda
