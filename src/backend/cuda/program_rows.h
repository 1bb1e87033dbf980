// Row and vector programs as steps of a plan: which kernels they need, with which parameters. Needs
// no GPU: tests run the same launches on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/rows_source.h"
#include "plan/plan.h"
#include "tensor/tensor.h"

namespace coda::cuda {

/// One kernel launch: a grid of grid x grid_y blocks, and the bytes of the kernel's only parameter.
struct RowsLaunch {
  const KernelSource* source = nullptr;  ///< of the RowsProgram
  unsigned grid = 0, grid_y = 1, block = 0;
  std::vector<std::byte> parameter;
};

class RowsProgram {
 public:
  /// A step whose program is of Form::rows or Form::vectors.
  RowsProgram(const Step& step, const Plan& plan);

  std::vector<KernelSource> sources() const;
  std::size_t workspace_bytes(std::int64_t max_tokens) const;
  /// What to launch, in order, for operands at these views.
  std::vector<RowsLaunch> launches(std::span<const TensorView> views, std::int64_t tokens,
                                   float* workspace, unsigned* error_flag);

 private:
  class Parameter;
  void add_finish(std::vector<RowsLaunch>& all, Parameter& parameter,
                  std::span<const TensorView> views, std::int64_t tokens, float* workspace);

  std::shared_ptr<const Program> program_;
  std::vector<PartialLoad> partials_;
  RowsKernel wide_, narrow_;  ///< chunks of columns; and column by column, made when needed
  VectorKernels vectors_;
  KernelSource finish_;
  int jobs_ = 0;  ///< vectors that coda_finish makes
};

}  // namespace coda::cuda
