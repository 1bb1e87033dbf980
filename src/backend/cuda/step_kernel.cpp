#include "backend/cuda/step_kernel.h"

#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/program_split.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

bool is_gemm(const Step& step) { return step.program && step.program->form == Form::gemm; }

bool is_attention(const Step& step) {
  return step.opaque == Opaque::attention || step.opaque == Opaque::attention_backward;
}

}  // namespace

bool needs_split(const Step& step) { return is_gemm(step) && !plan_epilogue(*step.program).fits; }

std::size_t workspace_bytes_of(const Step& step, const Plan& plan, std::int64_t max_tokens) {
  if (needs_split(step)) return split_workspace_bytes(step, plan, max_tokens);
  if (is_gemm(step)) return gemm_workspace_bytes(step, plan, max_tokens);
  if (step.program) return rows_workspace_bytes(step, plan, max_tokens);
  if (step.opaque == Opaque::cached_attention) {
    return cached_attention_workspace_bytes(step, max_tokens);
  }
  return is_attention(step) ? attention_workspace_bytes(step, plan, max_tokens)
                            : embedding_workspace_bytes(step, plan, max_tokens);
}

std::unique_ptr<StepKernel> make_step_kernel(const Step& step, const Plan& plan,
                                             const StepContext& context) {
  if (needs_split(step)) return make_split_kernel(step, plan, context);
  if (is_gemm(step)) return make_gemm_kernel(step, plan, context);
  if (step.program) return make_rows_kernel(step, plan, context);
  internal_check(step.opaque != Opaque::none, "cuda: a step without program and opaque node");
  if (step.opaque == Opaque::cached_attention) {
    return make_cached_attention_kernel(step, plan, context);
  }
  return is_attention(step) ? make_attention_kernel(step, plan, context)
                            : make_embedding_kernel(step, plan, context);
}

}  // namespace coda::cuda
