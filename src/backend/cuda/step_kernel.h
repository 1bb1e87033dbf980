// One step of a plan on the GPU: what must be compiled for it, how its operands are bound, how it
// is launched. A session (session.cpp) holds one for each step; each kind of step has a maker.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/gemm.h"
#include "backend/cuda/kernel_store.h"
#include "plan/plan.h"
#include "tensor/tensor.h"

namespace coda::cuda {

class StepKernel {
 public:
  virtual ~StepKernel() = default;

  /// The kernels that launches need, so that a session can compile those of all steps at once.
  virtual std::vector<KernelSource> sources() const = 0;

  /// Binds operands in the order of Step::slices: views of device memory for a run of `tokens`
  /// rows. Work of the host only (tensor maps, grids); to be repeated when an address or `tokens`
  /// changes.
  virtual void bind(std::span<const TensorView> views, std::int64_t tokens) = 0;

  /// Enqueues the step. Allocates nothing and waits for nothing, so that it can be captured.
  virtual void launch(const Stream& stream) = 0;
};

/// What steps of one session share. Steps run in the order of one stream.
struct StepContext {
  const GemmWorkspace* gemm = nullptr;
  std::int64_t max_tokens = 0;
  /// Device memory that a step may use while it runs, of at least workspace_bytes_of(step) bytes.
  DevicePointer workspace = 0;
  /// u32 on the device, 0 until a kernel meets a target, id or position out of range.
  DevicePointer error_flag = 0;
  bool simple_epilogues =
      false;  ///< nothing through the ring, nothing deferred: the same bits, slower
};

/// A GEMM with pairs or heads of which no fragment can hold the columns together (odd widths,
/// mostly): the product goes to memory and a row program reads it (program_split.h).
bool needs_split(const Step& step);

/// Of any step: asks the maker's own function below.
std::size_t workspace_bytes_of(const Step& step, const Plan& plan, std::int64_t max_tokens);
/// Of any step: calls the maker below (step_kernel.cpp).
std::unique_ptr<StepKernel> make_step_kernel(const Step& step, const Plan& plan,
                                             const StepContext& context);

/// Form::gemm (program_gemm.cpp).
std::unique_ptr<StepKernel> make_gemm_kernel(const Step& step, const Plan& plan,
                                             const StepContext& context);
/// Vectors that the epilogue reads finished, tables of angles.
std::size_t gemm_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

/// Form::rows and Form::vectors (program_rows.cpp).
std::unique_ptr<StepKernel> make_rows_kernel(const Step& step, const Plan& plan,
                                             const StepContext& context);
std::size_t rows_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

/// Opaque::attention and attention_backward (attention.cpp).
std::unique_ptr<StepKernel> make_attention_kernel(const Step& step, const Plan& plan,
                                                  const StepContext& context);
std::size_t attention_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

/// Opaque::cached_attention (cached_attention.cpp).
std::unique_ptr<StepKernel> make_cached_attention_kernel(const Step& step, const Plan& plan,
                                                         const StepContext& context);
std::size_t cached_attention_workspace_bytes(const Step& step, std::int64_t max_tokens);

/// Opaque::embedding and embedding_backward (embedding.cpp).
std::unique_ptr<StepKernel> make_embedding_kernel(const Step& step, const Plan& plan,
                                                  const StepContext& context);
std::size_t embedding_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

}  // namespace coda::cuda
