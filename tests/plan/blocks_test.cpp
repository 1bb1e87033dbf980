// Blocks compiled and run: every output and gradient against the math.
#include "plan/blocks.h"

#include <gtest/gtest.h>

#include "plan/execute.h"

namespace coda::blocks {
namespace {

constexpr std::int64_t kRows = 24;

Sizes ragged() { return {.d = 40, .f = 33, .head = 10, .kv = 20, .vocab = 97}; }
/// M == N everywhere a mistake of kinds could hide.
Sizes square() { return {.d = kRows, .f = kRows, .head = 12, .kv = kRows, .vocab = kRows}; }

struct Named {
  const char* name;
  CompileRequest (*build)(Graph&, const Sizes&);
};
constexpr Named kBlocks[] = {{"llama", llama_layer},       {"head", head},
                             {"parallel", parallel_block}, {"qk_norm", qk_norm_layer},
                             {"gemma", gemma_layer},       {"gpt2", gpt2_layer},
                             {"softcap", softcap_head}};

Build build_of(const Named& block, const Sizes& sizes) {
  return [&block, sizes](Graph& g) { return block.build(g, sizes); };
}

TEST(Blocks, EveryCombinationOfPassesGivesTheMath) {
  for (const Named& block : kBlocks)
    for (int mask = 0; mask < 32; ++mask) {
      CompileOptions options;
      options.defer = mask & 1;
      options.merge = mask & 2;
      options.recover = mask & 4;
      options.fuse = mask & 8;
      options.search = mask & 16;
      SCOPED_TRACE(testing::Message() << block.name << " passes " << mask);
      expect_plan_equals_math(build_of(block, Sizes{}), options, kRows);
    }
}

TEST(Blocks, SizesGiveTheMath) {
  for (const Named& block : kBlocks)
    for (const Sizes& sizes : {ragged(), square()})
      for (const std::int64_t tokens : {1, 7, 24, 129}) {
        SCOPED_TRACE(testing::Message() << block.name << " d " << sizes.d << " M " << tokens);
        expect_plan_equals_math(build_of(block, sizes), {}, tokens);
      }
}

TEST(Blocks, InterleavedGateAndUpInOneWeight) {
  Sizes sizes = ragged();
  sizes.joint_gate_up = true;
  for (const bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    expect_plan_equals_math(build_of(kBlocks[0], sizes), options, kRows);
  }
}

TEST(Blocks, RecomputationGivesTheMath) {
  for (const Named& block : kBlocks) {
    CompileOptions options;
    options.held_price = 1.5;
    SCOPED_TRACE(block.name);
    expect_plan_equals_math(build_of(block, Sizes{}), options, kRows);
  }
}

TEST(Blocks, EachGradientAloneAndEachLeftOut) {
  for (const Named& block : kBlocks) {
    Graph graph;
    const std::size_t count = block.build(graph, Sizes{}).wrt.size();
    for (std::size_t i = 0; i < count; ++i)
      for (const bool alone : {true, false}) {
        SCOPED_TRACE(testing::Message() << block.name << (alone ? " only " : " without ") << i);
        const Build build = [&](Graph& g) {
          CompileRequest request = block.build(g, ragged());
          const Tensor chosen = request.wrt[i];
          if (alone)
            request.wrt = {chosen};
          else
            request.wrt.erase(request.wrt.begin() + static_cast<std::ptrdiff_t>(i));
          return request;
        };
        expect_plan_equals_math(build, {}, kRows);
      }
    const Build forward = [&](Graph& g) {
      CompileRequest request = block.build(g, ragged());
      request.wrt.clear();
      return request;
    };
    expect_plan_equals_math(forward, {}, kRows);
  }
}

TEST(Blocks, WholeModelsGiveTheMath) {
  for (const bool tied : {false, true})
    for (const bool fuse : {true, false}) {
      CompileOptions options;
      options.fuse = fuse;
      SCOPED_TRACE(testing::Message() << "tied " << tied << " fuse " << fuse);
      const Build build = [&](Graph& g) { return model(g, ragged(), 2, tied); };
      expect_plan_equals_math(build, options, kRows);
    }
}

}  // namespace
}  // namespace coda::blocks
