// What `coda explain --device cuda` knows of a plan's kernels: without a GPU; without NVRTC too.
#include "backend/cuda/plan_kernels.h"

#include <gtest/gtest.h>

#include "backend/cuda/nvrtc.h"
#include "coda/nn.h"
#include "nn/models/llama_blocks.h"
#include "plan/compile.h"

namespace coda::cuda {
namespace {

std::shared_ptr<const Plan> layer(DType dtype, std::int64_t d_ff = 0) {
  LlamaBlockSizes sizes;
  sizes.d_model = 256;
  sizes.d_ff = d_ff;
  sizes.head_dim = 64;
  sizes.dtype = dtype;
  coda::Graph graph;
  const CompileRequest request = llama_layer_block(graph, sizes);
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = dtype;
  return compile(graph, request, options);
}

const StepKernels& find(const std::vector<StepKernels>& steps, const std::string& part) {
  for (const StepKernels& step : steps) {
    if (step.name.find(part) != std::string::npos) return step;
  }
  throw std::runtime_error("no step " + part);
}

TEST(CudaPlanKernels, EveryStepHasKernelsWithTheirSource) {
  const auto plan = layer(DType::bf16);
  const auto steps = plan_kernels(plan, 16384, 132);
  ASSERT_EQ(steps.size(), plan->forward.size() + plan->backward.size());
  for (const StepKernels& step : steps) {
    SCOPED_TRACE(step.name);
    ASSERT_FALSE(step.kernels.empty());
    for (const KernelReport& kernel : step.kernels) {
      EXPECT_NE(kernel.source.find(kernel.entry), std::string::npos);
      EXPECT_GT(kernel.grid, 0);
      EXPECT_GT(kernel.block, 0);
      if (Nvrtc::why_not().empty()) {
        EXPECT_EQ(kernel.problem, "");
        EXPECT_GT(kernel.registers, 0);
        EXPECT_GE(kernel.ctas_per_sm, 1);
        EXPECT_LE(kernel.occupancy, 1);
      } else {
        EXPECT_EQ(kernel.problem, Nvrtc::why_not());
        EXPECT_FALSE(kernel.compiled);
      }
    }
    if (step.form != "gemm") continue;
    const KernelReport& product = step.kernels.back();
    EXPECT_EQ(product.block, 384);
    EXPECT_NE(product.configuration.find("tiles of"), std::string::npos);
    EXPECT_NE(product.source.find("// program " + step.name), std::string::npos);
  }
}

TEST(CudaPlanKernels, SaysWhatIsCutAlongK) {
  // 3 tiles of 128 x 256 for 132 SMs: the weight gradient of 16384 tokens is cut.
  const auto steps = plan_kernels(layer(DType::bf16), 16384, 132);
  const StepKernels& gradient = find(steps, "d_down_proj");
  EXPECT_NE(gradient.kernels.back().order.find("are cut along K into"), std::string::npos)
      << gradient.kernels.back().order;
  const StepKernels& forward = find(steps, "forward_gemm_x1");
  EXPECT_EQ(forward.kernels.back().order, "K = 256 in one piece, ascending");
}

TEST(CudaPlanKernels, PlainKernelsSayWhy) {
  const auto steps = plan_kernels(layer(DType::f32), 64, 132);
  const KernelReport& kernel = find(steps, "forward_gemm_x1").kernels.back();
  EXPECT_EQ(kernel.entry, "coda_plain_fragments");
  EXPECT_NE(kernel.configuration.find("fp32 operands"), std::string::npos);
  const auto odd = plan_kernels(layer(DType::bf16, 97), 64, 132);
  const KernelReport& narrow = find(odd, "forward_gemm_x2").kernels.back();
  EXPECT_NE(narrow.configuration.find("TMA cannot read"), std::string::npos);
}

TEST(CudaPlanKernels, OpaqueStepsAreThere) {
  coda::Graph graph;
  const Tensor table = graph.weight("table", 100, 64, DType::bf16);
  const Tensor x = embedding(table, graph.col("ids", DType::i32));
  CompileRequest request;
  request.outputs = {{"x", x, {}, true}};
  CompileOptions options;
  options.dtype = options.output_dtype = DType::bf16;
  const auto steps = plan_kernels(compile(graph, request, options), 10, 132);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].form, "opaque");
  ASSERT_EQ(steps[0].kernels.size(), 1u);
  EXPECT_EQ(steps[0].kernels[0].entry, "coda_embedding");
}

/// Columns beside those of a product: a section of the epilogue without an accumulator.
TEST(CudaPlanKernels, ColumnsThatTheProductDoesNotReach) {
  coda::Graph graph;
  const Tensor product = matmul_nt(graph.tile("a", 40), graph.weight("w", 64, 40));
  const Tensor y = cat_cols({product, graph.tile("t", 9)});
  CompileRequest request;
  request.outputs = {{"y", y, {}, true}};
  const auto steps = plan_kernels(compile(graph, request, {}), 10, 132);
  ASSERT_FALSE(steps.empty());
  for (const StepKernels& step : steps) EXPECT_FALSE(step.kernels.empty()) << step.name;
}

TEST(CudaPlanKernels, HandWrittenFilesLeaveALine) {
  const auto steps = plan_kernels(layer(DType::bf16), 128, 132);
  const StepKernels& step = find(steps, "forward_gemm_x1");
  const std::string part = generated_part(step.kernels.back().source);
  EXPECT_LT(part.size() * 3, step.kernels.back().source.size());
  EXPECT_NE(part.find("// here: device/gemm_sm90.cuh\n"), std::string::npos);
  EXPECT_NE(part.find("class Epilogue"), std::string::npos);
  EXPECT_EQ(part.find("mbarrier_init"), std::string::npos);
  EXPECT_NE(to_string(step, true).find("      | class Epilogue"), std::string::npos);
  EXPECT_EQ(to_string(step, false).find("class Epilogue"), std::string::npos);
}

}  // namespace
}  // namespace coda::cuda
