// A GEMM program in two: the bare product into fp32 memory, then the epilogue as row programs that
// load it. For what no accumulator fragment can hold; right for every program, at the price of
// writing and reading acc.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

class ProgramSplit {
 public:
  /// A row program over a window of acc's rows, as a step: operands of the program, then acc.
  struct Part {
    Step step;
    std::int64_t first_row = 0;
  };

  explicit ProgramSplit(const Step& step);

  /// The product as a step: operands of the program, then acc, f32 [rows, cols].
  const Step& product() const { return product_; }
  /// One, and one more for each window of rows that a weight-gradient program stores.
  const std::vector<Part>& parts() const { return parts_; }

  std::size_t acc_bytes(std::int64_t tokens) const;
  /// Operands of the product, with acc at `memory`, which holds acc_bytes.
  std::vector<TensorView> product_views(std::span<const TensorView> views, std::int64_t tokens,
                                        void* memory) const;
  /// Operands of a part: of those of the product, the rows that it reads.
  std::vector<TensorView> part_views(const Part& part,
                                     std::span<const TensorView> product_views) const;

 private:
  std::shared_ptr<const Program> program_;
  Step product_;
  std::vector<Part> parts_;
};

std::unique_ptr<StepKernel> make_split_kernel(const Step& step, const Plan& plan,
                                              const StepContext& context);
std::size_t split_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

}  // namespace coda::cuda
