// Whole compiled plans, forward and backward, on the CPU against the reference backend.
#include <functional>

#include "backend/cpu/harness.h"
#include "plan/blocks.h"
#include "plan/compile.h"

namespace coda::testing {
namespace {

using Build = std::function<CompileRequest(Graph&, const blocks::Sizes&)>;

/// fp32 plans: sums of up to some hundred terms through up to eight products, relative to the
/// largest element of each result. 16-bit plans: a few roundings of the memory type go one way on
/// one backend and the other way on the other.
double terms_of(DType dtype) { return dtype == DType::f32 ? 4096 : epsilon_of(dtype) * 0x1p23 * 4; }

void check_block(const Build& build, const blocks::Sizes& sizes, const CompileOptions& options) {
  for (const i64 m : {0, 1, 24, options.pieces > 1 ? 300 : 130}) {
    Graph graph;
    const auto plan = std::make_shared<Plan>(*compile(graph, build(graph, sizes), options));
    RunOptions run;
    run.tokens = m;
    run.integer_limit["targets"] = run.id_limit["ids"] = sizes.vocab;
    const auto reference = make_reference_backend(DType::f32);
    const Outputs want = run_plan(*reference, plan, run);
    const auto cpu = make_cpu_backend(2);
    expect_close(*plan, run_plan(*cpu, plan, run), want, terms_of(options.dtype));
  }
}

/// Every block at regular, odd and narrow sizes; fused and not; each memory type.
void check_all(const Build& build, std::int32_t pieces = 1) {
  const blocks::Sizes sizes[] = {
      {.d = 64, .f = 96, .head = 16, .kv = 64, .vocab = 128},
      {.d = 130, .f = 97, .head = 26, .kv = 52, .vocab = 129},
      {.d = 8, .f = 700, .head = 2, .kv = 4, .vocab = 7, .joint_gate_up = true}};
  for (blocks::Sizes s : sizes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      s.tile = dtype;
      CompileOptions options;
      options.dtype = options.output_dtype = dtype;
      options.pieces = pieces;
      check_block(build, s, options);
      options.held_price = 1.5;
      check_block(build, s, options);
      options.fuse = false;
      options.weight_grad_dtype = dtype;
      check_block(build, s, options);
      options.accumulate_weight_grads = true;
      options.weight_grad_dtype = DType::f32;
      check_block(build, s, options);
    }
  }
}

TEST(CpuPlan, LlamaLayer) { check_all(blocks::llama_layer); }
TEST(CpuPlan, Head) { check_all(blocks::head); }
TEST(CpuPlan, HeadInPieces) {
  for (const bool tied : {false, true})
    check_all([&](Graph& g, const blocks::Sizes& s) { return blocks::summed_head(g, s, tied); }, 3);
}
TEST(CpuPlan, ParallelBlock) { check_all(blocks::parallel_block); }

}  // namespace
}  // namespace coda::testing
