// How many programs each block takes, what they carry, and the bytes they move at the sizes the
// design was studied at: M 16384, d 4096, F 11008, V 32768, heads of 128, bf16.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/blocks.h"
#include "plan/explain.h"
#include "plan/plan.h"

namespace coda::blocks {
namespace {

constexpr std::int64_t kTokensCounted = 16384;

Sizes large() {
  return {.d = 4096, .f = 11008, .head = 128, .kv = 4096, .vocab = 32768, .tile = DType::bf16};
}

CompileOptions bf16(double held_price = 0) {
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  options.held_price = held_price;
  return options;
}

struct Counts {
  int gemm = 0, rows = 0, vectors = 0;
  double gigabytes = 0;
};

Counts count(const std::vector<Step>& steps, const Plan& plan) {
  Counts counts;
  for (const Step& step : steps) {
    counts.gigabytes += cost_of(step, plan, kTokensCounted).bytes / 1e9;
    if (!step.program) continue;
    counts.gemm += step.program->form == Form::gemm;
    counts.rows += step.program->form == Form::rows;
    counts.vectors += step.program->form == Form::vectors;
  }
  return counts;
}

int uses(const Program& program, Op op) {
  return static_cast<int>(std::count_if(program.values.begin(), program.values.end(),
                                        [op](const Value& value) { return value.op == op; }));
}

/// Data-gradient programs (nn) in launch order.
std::vector<const Program*> data_gradients(const Plan& plan) {
  std::vector<const Program*> programs;
  for (const Step& step : plan.backward)
    if (step.program && step.program->form == Form::gemm && !step.program->gemm.transpose_a)
      programs.push_back(step.program.get());
  return programs;
}

std::shared_ptr<const Plan> compiled(CompileRequest (*build)(Graph&, const Sizes&),
                                     const Sizes& sizes, const CompileOptions& options) {
  Graph graph;
  return compile(graph, build(graph, sizes), options);
}

TEST(Counts, LlamaLayerForwardIsFourGemmsAndNothingElse) {
  const auto plan = compiled(llama_layer, large(), bf16());
  const Counts forward = count(plan->forward, *plan);
  EXPECT_EQ(forward.gemm, 4);
  EXPECT_EQ(forward.rows + forward.vectors, 0);
  EXPECT_NEAR(forward.gigabytes, 3.46, 0.01);
}

TEST(Counts, LlamaLayerBackwardIsEightGemmsAndOneRowProgram) {
  const auto plan = compiled(llama_layer, large(), bf16());
  const Counts backward = count(plan->backward, *plan);
  EXPECT_EQ(backward.gemm, 8);
  EXPECT_EQ(backward.rows, 1);
  EXPECT_EQ(backward.vectors, 1);  // finishes the two norm weights' gradients
  EXPECT_NEAR(backward.gigabytes, 7.95, 0.01);
  EXPECT_NEAR(saved_bytes(*plan, kTokensCounted) / 1e9, 2.156, 0.01);  // partials: 8 MB

  const auto data = data_gradients(*plan);
  ASSERT_EQ(data.size(), 4u);
  // RMSNorm's backward with the residual's cotangent: loads x and the cotangent, col_sum d_norm.
  EXPECT_EQ(uses(*data[0], Op::load_tile), 2);
  EXPECT_EQ(uses(*data[0], Op::col_sum), 1);
  // SwiGLU's backward with zdz, the sums of gate and up in one.
  EXPECT_EQ(uses(*data[1], Op::load_tile), 2);
  EXPECT_EQ(uses(*data[1], Op::sigmoid), 1);
  EXPECT_EQ(uses(*data[1], Op::row_sum), 1);
  EXPECT_EQ(uses(*data[1], Op::store_tile), 2);
  EXPECT_EQ(uses(*data[2], Op::load_tile), 2);
  EXPECT_EQ(uses(*data[2], Op::col_sum), 1);
  // The output projection's: nothing to do.
  EXPECT_EQ(uses(*data[3], Op::load_tile), 0);

  for (const Step& step : plan->backward)
    if (step.program && step.program->form == Form::rows) {
      EXPECT_NE(step.note.find("d_q, d_k, d_v"), std::string::npos) << step.note;
    }
}

TEST(Counts, HeldBytesHaveAPrice) {
  const auto plan = compiled(llama_layer, large(), bf16(1.5));
  const Counts backward = count(plan->backward, *plan);
  EXPECT_EQ(backward.gemm, 8);
  EXPECT_EQ(backward.rows, 1);
  EXPECT_NEAR(backward.gigabytes, 8.58, 0.01);
  EXPECT_NEAR(saved_bytes(*plan, kTokensCounted) / 1e9, 1.527, 0.01);
}

TEST(Counts, AMemoryBudgetSetsThePrice) {
  CompileOptions options = bf16();
  options.memory_budget = 1.6e9;
  const auto plan = compiled(llama_layer, large(), options);
  EXPECT_LE(saved_bytes(*plan, kTokensCounted), 1.6e9);
  options.memory_budget = 3e9;
  const auto roomy = compiled(llama_layer, large(), options);
  EXPECT_NEAR(saved_bytes(*roomy, kTokensCounted) / 1e9, 2.156, 0.01);
}

TEST(Counts, PassesSwitchedOffCostWhatTheStudyFound) {
  CompileOptions options = bf16();
  options.merge = false;
  const auto unmerged = compiled(llama_layer, large(), options);
  EXPECT_EQ(count(unmerged->forward, *unmerged).gemm, 7);
  EXPECT_EQ(count(unmerged->backward, *unmerged).gemm, 14);
  options = bf16();
  options.defer = false;
  const auto eager = compiled(llama_layer, large(), options);
  EXPECT_EQ(count(eager->forward, *eager).rows, 2);
  EXPECT_EQ(count(eager->backward, *eager).rows, 3);
  options = bf16();
  options.recover = false;  // q, k, v are stored twice
  const auto kept = compiled(llama_layer, large(), options);
  EXPECT_NEAR(count(kept->forward, *kept).gigabytes, 3.86, 0.01);
}

TEST(Counts, GroupedHeadsAndInterleavedWeightsTakeAsManyPrograms) {
  Sizes sizes = large();
  sizes.kv = 1024;
  for (const bool joint : {false, true}) {
    sizes.joint_gate_up = joint;
    const auto plan = compiled(llama_layer, sizes, bf16());
    EXPECT_EQ(count(plan->forward, *plan).gemm, 4);
    EXPECT_EQ(count(plan->forward, *plan).rows, 0);
    EXPECT_EQ(count(plan->backward, *plan).gemm, 8);
    EXPECT_EQ(count(plan->backward, *plan).rows, 1);
  }
}

TEST(Counts, Head) {
  const auto plan = compiled(head, large(), bf16());
  const Counts forward = count(plan->forward, *plan), backward = count(plan->backward, *plan);
  EXPECT_EQ(forward.gemm, 2);
  EXPECT_EQ(forward.rows, 0);
  EXPECT_EQ(backward.gemm, 4);
  EXPECT_EQ(backward.rows, 1);
  EXPECT_NEAR(forward.gigabytes, 2.33, 0.01);
  EXPECT_NEAR(backward.gigabytes, 6.41, 0.01);
  // Both terms of the log-sum-exp are read from one online partial, and it is never one number.
  int online = 0;
  for (const Buffer& buffer : plan->buffers) online += buffer.partial && is_online(buffer.finish);
  EXPECT_EQ(online, 1);
  const std::string text = to_string(*plan);
  EXPECT_NE(text.find("finish_lse_max"), std::string::npos) << text;
  EXPECT_NE(text.find("finish_log_sum"), std::string::npos) << text;
  EXPECT_EQ(text.find("finish_lse "), std::string::npos) << text;
  EXPECT_EQ(text.find("row_max"), std::string::npos) << text;
}

struct Expected {
  const char* name;
  CompileRequest (*build)(Graph&, const Sizes&);
  int forward_rows, backward_rows;
  double forward_gb, backward_gb;
};

// The study behind the design found the same counts and bytes (GPT-2 without the copy of
// d_q, d_k and d_v into one operand, 0.4 GB, which is charged here).
TEST(Counts, NormsPerHeadAfterBlocksAndWithMeans) {
  for (const Expected& e : {Expected{"qk_norm", qk_norm_layer, 0, 1, 3.73, 7.95},
                            Expected{"gemma", gemma_layer, 2, 3, 4.00, 9.02},
                            Expected{"gpt2", gpt2_layer, 2, 3, 3.28, 6.73}}) {
    SCOPED_TRACE(e.name);
    const auto plan = compiled(e.build, large(), bf16());
    const Counts forward = count(plan->forward, *plan), backward = count(plan->backward, *plan);
    EXPECT_EQ(forward.gemm, 4);
    EXPECT_EQ(forward.rows, e.forward_rows);
    EXPECT_EQ(backward.gemm, 8);
    EXPECT_EQ(backward.rows, e.backward_rows);
    EXPECT_NEAR(forward.gigabytes, e.forward_gb, 0.01);
    EXPECT_NEAR(backward.gigabytes, e.backward_gb, 0.01);
  }
}

TEST(Counts, EvaluationStoresNoLogits) {
  Graph graph;
  CompileRequest request = head(graph, large());
  request.wrt.clear();
  const auto plan = compile(graph, request, bf16());
  for (const Buffer& buffer : plan->buffers)
    EXPECT_FALSE(buffer.kind == Kind::tile && buffer.cols == 32768) << buffer.name;
}

TEST(Counts, TilesOf16BitPlansAreOf16Bits) {
  for (const auto build : {llama_layer, head, parallel_block}) {
    const auto plan = compiled(build, large(), bf16());
    for (const Buffer& buffer : plan->buffers)
      if (buffer.kind == Kind::tile && buffer.rows == kTokens && !buffer.partial) {
        EXPECT_EQ(buffer.dtype, DType::bf16) << buffer.name;
      }
  }
}

TEST(Counts, ParallelBlockExplainsEachLeftover) {
  const auto plan = compiled(parallel_block, large(), bf16());
  const Counts forward = count(plan->forward, *plan), backward = count(plan->backward, *plan);
  EXPECT_EQ(forward.gemm, 4);
  EXPECT_LE(forward.rows, 1);
  EXPECT_EQ(backward.gemm, 8);
  EXPECT_LE(backward.rows, 4);
  for (const auto* steps : {&plan->forward, &plan->backward})
    for (const Step& step : *steps)
      if (step.program && step.program->form != Form::gemm) {
        EXPECT_FALSE(step.note.empty()) << step.program->name;
      }
}

TEST(Counts, ModelsTakeOneRowProgramALayerAndTwoMore) {
  for (const int layers : {1, 3}) {
    Graph graph;
    const auto plan = compile(graph, model(graph, large(), layers), bf16());
    EXPECT_EQ(count(plan->forward, *plan).gemm, 4 * layers + 1);
    EXPECT_EQ(count(plan->forward, *plan).rows, 1);  // the first norm: the embedding is no GEMM
    EXPECT_EQ(count(plan->backward, *plan).gemm, 8 * layers + 2);
    // RoPE a layer, d_logits, the copy of the table's gradient in another type.
    EXPECT_EQ(count(plan->backward, *plan).rows, layers + 2);
  }
}

TEST(Counts, EqualRequestsGiveEqualPlans) {
  for (const auto build : {llama_layer, head, parallel_block})
    EXPECT_EQ(to_string(*compiled(build, large(), bf16())),
              to_string(*compiled(build, large(), bf16())));
}

TEST(Explain, TellsMathProgramsBytesAndReasons) {
  const auto plan = compiled(llama_layer, large(), bf16());
  const PlanReport r = report(*plan, kTokensCounted, {989e12, 4.8e12});
  EXPECT_EQ(r.steps.size(), plan->forward.size() + plan->backward.size());
  EXPECT_NEAR((r.forward.bytes + r.backward.bytes) / 1e9, 11.41, 0.02);
  EXPECT_NEAR(r.gemm_bytes / 1e9, 7.68, 0.02);
  // 6 M (d^2 + 3 d F + 3 d^2) operations, and none of them twice.
  const double d = 4096, f = 11008, m = kTokensCounted;
  EXPECT_NEAR(r.forward.flops + r.backward.flops, 6 * m * (4 * d * d + 3 * d * f), 1e6);
  EXPECT_GT(r.floor_seconds, (r.forward.flops + r.backward.flops) / 989e12 * 0.999);
  const std::string text = explain(*plan, kTokensCounted);
  for (const char* part : {"math", "rewrites", "fused:", "apart:", "program "})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace coda::blocks
