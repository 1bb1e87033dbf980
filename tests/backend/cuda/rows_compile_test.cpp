// NVRTC compiles what the row and vector programs of whole plans become, without a GPU.
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "backend/cuda/adamw.h"
#include "backend/cuda/embedding.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda/program_rows.h"
#include "plan/blocks.h"
#include "plan/compile.h"

namespace coda::cuda {
namespace {

class CudaRowsCompile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  }

  template <class Build>
  void add(const Build& build, blocks::Sizes sizes, DType dtype, bool fuse) {
    coda::Graph graph;
    sizes.tile = dtype;
    CompileOptions options;
    options.dtype = options.output_dtype = dtype;
    options.fuse = fuse;
    options.accumulate_weight_grads = true;
    options.weight_grad_dtype = DType::f32;
    const auto plan = compile(graph, build(graph, sizes), options);
    for (const auto* steps : {&plan->forward, &plan->backward}) {
      for (const Step& step : *steps) {
        if (!step.program || step.program->form == Form::gemm) continue;
        for (const KernelSource& source : RowsProgram(step, *plan).sources()) {
          sources_[source.entry + source.text] = source;
        }
      }
    }
  }

  /// compile_checked refuses stack frames.
  void expect_compiled() {
    double seconds = 0;
    for (const auto& [key, source] : sources_) {
      try {
        seconds += compile_checked(source).seconds;
      } catch (const std::exception& error) {
        ADD_FAILURE() << source.name << ": " << error.what();
      }
    }
    std::cout << sources_.size() << " kernels, " << seconds << " s\n";
  }

  std::map<std::string, KernelSource> sources_;
};

TEST_F(CudaRowsCompile, RowProgramsOfBlocks) {
  const blocks::Sizes even{.d = 256, .f = 512, .head = 64, .kv = 128, .vocab = 1000};
  const blocks::Sizes equal{.d = 64, .f = 96, .head = 16, .kv = 64, .vocab = 128};
  add(blocks::llama_layer, even, DType::bf16, true);
  add(blocks::head, even, DType::bf16, true);
  add(blocks::qk_norm_layer, even, DType::f32, true);
  add(blocks::qk_norm_layer, equal, DType::bf16, true);
  add(blocks::llama_layer, equal, DType::bf16, true);
  add(blocks::qk_norm_layer, equal, DType::f32, true);
  expect_compiled();
}

TEST_F(CudaRowsCompile, EmbeddingAndAdamW) {
  for (const char* entry :
       {"coda_embedding", "coda_embedding_place", "coda_embedding_order", "coda_embedding_sums"}) {
    sources_[entry] = embedding_source(entry, DType::f32, DType::bf16, 4);
  }
  for (const char* entry : {"coda_adamw", "coda_square_sums", "coda_total"}) {
    sources_[entry] = adamw_source(entry);
  }
  expect_compiled();
}

}  // namespace
}  // namespace coda::cuda
