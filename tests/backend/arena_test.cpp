// Where a plan's buffers lie: what is alive at the same time apart, but for what is made in place.
#include "backend/arena.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coda/compile.h"
#include "nn/models/llama_blocks.h"

namespace coda {
namespace {

std::shared_ptr<const Plan> head() {
  Graph graph;
  const CompileRequest request = llama_head_block(graph, {});
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  return compile(graph, request, options);
}

/// The step that makes d_logits, and its operands' buffers.
struct Softmax {
  std::size_t logits = 0, d_logits = 0;
};
Softmax softmax_of(const Plan& plan) {
  for (const Step& step : plan.backward) {
    if (!step.program || step.program->form != Form::rows) continue;
    Softmax found;
    for (std::size_t i = 0; i < step.slices.size(); ++i) {
      const auto buffer = static_cast<std::size_t>(step.slices[i].buffer);
      if (plan.buffers[buffer].kind != Kind::tile || plan.buffers[buffer].partial) continue;
      (step.program->operands[i].output ? found.d_logits : found.logits) = buffer;
    }
    return found;
  }
  throw std::runtime_error("no row program");
}

TEST(Arena, TheGradientOfLogitsLiesOnTheLogits) {
  const auto plan = head();
  const Softmax at = softmax_of(*plan);
  const Arena arena = layout_arena(*plan, 1000);
  EXPECT_EQ(arena.placements[at.logits].offset, arena.placements[at.d_logits].offset);
  EXPECT_EQ(arena.placements[at.logits].stride, arena.placements[at.d_logits].stride);
  const Arena apart = layout_arena(*plan, 1000, false);
  EXPECT_NE(apart.placements[at.logits].offset, apart.placements[at.d_logits].offset);
  EXPECT_LT(arena.bytes + arena.placements[at.logits].bytes, apart.bytes + 1);
}

TEST(Arena, GradientsOfWeightsLieOverWhatBackwardHasDoneWith) {
  Graph graph;
  LlamaBlockSizes sizes;
  sizes.d_model = 64, sizes.head_dim = 16;
  const CompileRequest request = llama_layer_block(graph, sizes);
  CompileOptions options;
  options.own_weight_grads = true;
  const auto plan = compile(graph, request, options);
  const Arena arena = layout_arena(*plan, 100), apart = layout_arena(*plan, 100, false);
  EXPECT_LT(arena.bytes, apart.bytes);
  int results = 0;
  for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
    const Buffer& result = plan->buffers[i];
    if (result.role != Role::result) continue;
    ++results;
    EXPECT_EQ(arena.placements[i].stride, result.cols) << result.name;
    // Nothing that is touched from then on, and no other result, may lie on it.
    for (std::size_t j = 0; j < plan->buffers.size(); ++j) {
      const Buffer& other = plan->buffers[j];
      const Placement &a = arena.placements[i], &b = arena.placements[j];
      if (j == i || b.bytes == 0) continue;
      if (other.role != Role::result && other.last_step < result.first_step) continue;
      EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
          << result.name << ", " << other.name;
    }
  }
  EXPECT_EQ(results, 9);  // seven matrices, two norms
}

TEST(Arena, WhatIsReadAfterwardsStaysApart) {
  Plan plan = *head();
  const Softmax at = softmax_of(plan);
  // A later step reads the logits once more.
  Step later = plan.backward.back();
  for (Slice& slice : later.slices) {
    if (static_cast<std::size_t>(slice.buffer) == at.d_logits) {
      slice.buffer = static_cast<std::int32_t>(at.logits);
    }
  }
  plan.backward.push_back(later);
  const Arena arena = layout_arena(plan, 1000);
  EXPECT_NE(arena.placements[at.logits].offset, arena.placements[at.d_logits].offset);
}

/// The head's row program with a sum over the rows of its logits put in; `stored_after`: what is
/// stored waits for it.
Plan with_row_sum(const Softmax& at, bool partial, bool stored_after) {
  Plan plan = *head();
  for (Step& step : plan.backward) {
    if (!step.program || step.program->form != Form::rows) continue;
    auto program = std::make_shared<Program>(*step.program);
    std::vector<Value> values;
    std::vector<std::int32_t> moved;
    std::int32_t sum = -1;
    for (Value value : program->values) {
      for (std::int32_t& arg : value.args) arg = moved[static_cast<std::size_t>(arg)];
      if (value.op == Op::store_tile && sum >= 0 && stored_after) {
        Value scaled;
        scaled.op = Op::mul;
        scaled.kind = Kind::tile;
        scaled.args = {value.args[0], sum};
        values.push_back(scaled);
        value.args[0] = static_cast<std::int32_t>(values.size() - 1);
      }
      moved.push_back(static_cast<std::int32_t>(values.size()));
      values.push_back(value);
      const bool loads =
          value.op == Op::load_tile &&
          static_cast<std::size_t>(step.slices[static_cast<std::size_t>(value.operand)].buffer) ==
              at.logits;
      if (!loads) continue;
      Value reduction;
      reduction.op = Op::row_sum;
      reduction.kind = Kind::col;
      reduction.partial = partial;
      reduction.args = {static_cast<std::int32_t>(values.size() - 1)};
      sum = static_cast<std::int32_t>(values.size());
      values.push_back(reduction);
    }
    program->values = values;
    step.program = program;
    break;
  }
  return plan;
}

TEST(Arena, ReductionsOfWholeRowsComeFirst) {
  const Softmax at = softmax_of(*head());
  const auto in_place = [&](const Plan& plan) {
    const Arena arena = layout_arena(plan, 1000);
    return arena.placements[at.logits].offset == arena.placements[at.d_logits].offset;
  };
  EXPECT_TRUE(in_place(with_row_sum(at, false, false)));
  EXPECT_TRUE(in_place(with_row_sum(at, false, true)));
  EXPECT_FALSE(
      in_place(with_row_sum(at, true, false)));  // partials are read in a pass of their own
}

/// A second reduction waits for the first, and so reads the tile after the store.
TEST(Arena, WhatIsReadAfterTheStoreStaysApart) {
  const Softmax at = softmax_of(*head());
  Plan plan = with_row_sum(at, false, false);
  for (Step& step : plan.backward) {
    if (!step.program || step.program->form != Form::rows) continue;
    auto program = std::make_shared<Program>(*step.program);
    const auto sum = std::find_if(program->values.begin(), program->values.end(),
                                  [](const Value& v) { return v.op == Op::row_sum; });
    const auto id = static_cast<std::int32_t>(sum - program->values.begin());
    Value centred, second;
    centred.op = Op::sub;
    centred.kind = Kind::tile;
    centred.args = {sum->args[0], id};
    second.op = Op::row_sum;
    second.kind = Kind::col;
    second.args = {static_cast<std::int32_t>(program->values.size())};
    program->values.push_back(centred);
    program->values.push_back(second);
    step.program = program;
    break;
  }
  const Arena arena = layout_arena(plan, 1000);
  EXPECT_NE(arena.placements[at.logits].offset, arena.placements[at.d_logits].offset);
}

}  // namespace
}  // namespace coda
