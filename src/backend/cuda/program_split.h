// A GEMM program in two: the bare product into fp32 memory, then the epilogue as a row program that
// loads it. For what no accumulator fragment can hold; right for every program, at the price of
// writing and reading acc.
#pragma once

#include <memory>

#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

/// False for weight-gradient programs that store blocks of rows; those fit fragments.
bool can_split(const Program& program);

/// The epilogue: operands of the program, then one more, "acc", f32 [rows, cols].
Program epilogue_of(const Program& program);

std::unique_ptr<StepKernel> make_split_kernel(const Step& step, const Plan& plan,
                                              const StepContext& context);
std::size_t split_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

}  // namespace coda::cuda
