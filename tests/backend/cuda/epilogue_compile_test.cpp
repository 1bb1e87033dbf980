// NVRTC compiles the epilogues of a whole layer and head, without a GPU: no stack frame (so no
// spills), no serialised wgmma.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <mutex>
#include <thread>

#include "backend/cpu/harness.h"
#include "backend/cuda/cubin.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda/program_gemm.h"
#include "coda/compile.h"
#include "nn/models/llama_blocks.h"
#include "plan/blocks.h"

namespace coda::cuda {
namespace {

std::shared_ptr<const Plan> block(bool head) {
  LlamaBlockSizes sizes;
  sizes.n_kv_heads = 4;
  coda::Graph graph;
  const CompileRequest request =
      head ? llama_head_block(graph, sizes) : llama_layer_block(graph, sizes);
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  return compile(graph, request, options);
}

std::vector<ProgramGemm> programs() {
  std::vector<ProgramGemm> programs;
  for (const bool head : {false, true}) {
    const auto plan = block(head);
    for (const auto* steps : {&plan->forward, &plan->backward})
      for (const Step& step : *steps)
        if (step.program && step.program->form == Form::gemm) programs.emplace_back(step.program);
  }
  return programs;
}

void expect_compile(const std::vector<KernelSource>& sources) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < sources.size(); i = next++) {
      std::string problem;
      Compilation compiled;
      try {
        compiled = compile_checked(sources[i]);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      const std::lock_guard lock(mutex);
      EXPECT_EQ(problem, "") << sources[i].name;
      if (problem.empty())
        std::cout << sources[i].name << ": "
                  << read_cubin(compiled.cubin, sources[i].entry).registers << " registers, "
                  << compiled.seconds << " s\n";
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
}

TEST(EpilogueCompile, EveryEpilogueOfLayerAndHead) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  std::vector<KernelSource> sources;
  for (const ProgramGemm& program : programs()) {
    EXPECT_TRUE(program.plan().fits) << program.program().name;
    if (program.plan().stage_count > 0)
      sources.push_back(vectors_source(program.program(), program.plan()));
    for (const EpilogueLaunch& launch : program.plan().launches) {
      const GemmShape shape = program.shape(launch, 16384);
      sources.push_back(program.source(launch, program.choose(launch, shape, 132), shape.k));
    }
  }
  expect_compile(sources);
}

TEST(EpilogueCompile, EveryConfigurationWithTheHeaviestEpilogue) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  const auto all = programs();
  const auto heaviest = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.program().values.size() < b.program().values.size();
  });
  std::vector<KernelSource> sources;
  for (const EpilogueLaunch& launch : heaviest->plan().launches) {
    for (const GemmConfig& config : gemm_candidates())
      if (ProgramGemm::fits(launch, config))
        sources.push_back(heaviest->source(launch, config, 2048));
    sources.push_back(heaviest->plain_source(launch));
  }
  expect_compile(sources);
}

TEST(EpilogueCompile, OneRowOfEveryForwardProgram) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  std::vector<KernelSource> sources;
  for (const ProgramGemm& program : programs()) {
    for (const EpilogueLaunch& launch : program.plan().launches)
      if (ProgramGemm::may_be_one_row(launch, program.shape(launch, 1)))
        sources.push_back(program.plain_source(launch, true, {.staged = true}, true));
  }
  EXPECT_GE(sources.size(), 5u);
  expect_compile(sources);
}

/// Three sums of columns a tile fit in no large one; there must be a configuration all the same.
TEST(EpilogueCompile, EveryProgramOfAParallelBlockHasAConfiguration) {
  coda::Graph graph;
  blocks::Sizes sizes;
  sizes.tile = DType::bf16;
  const auto request = blocks::parallel_block(graph, sizes);
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  const auto plan = compile(graph, request, options);
  for (const auto* steps : {&plan->forward, &plan->backward}) {
    for (const Step& step : *steps) {
      if (!step.program || step.program->form != Form::gemm) continue;
      const ProgramGemm program(step.program);
      for (const EpilogueLaunch& launch : program.plan().launches) {
        EXPECT_NO_THROW(program.choose(launch, program.shape(launch, 130), 132));
      }
    }
  }
}

}  // namespace
}  // namespace coda::cuda
