// Attention on a GPU, our kernels and cuDNN's, against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "backend/cuda/attention_case.h"
#include "backend/cuda/attention_cudnn.h"
#include "backend/cuda/gpu_test.h"

namespace coda::cuda {
namespace {

class CudaAttention : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) stream_ = std::make_unique<Stream>();
  }

  /// Device copies of views' memory, whole rows.
  struct Copies {
    std::vector<DeviceBuffer> buffers;
    std::vector<TensorView> views;
  };
  static std::size_t bytes_of(const TensorView& view) {
    return static_cast<std::size_t>(std::max<std::int64_t>(view.rows, 1) * view.stride) *
           size_of(view.dtype);
  }
  Copies to_device(const std::vector<TensorView>& views) {
    Copies copies;
    for (TensorView view : views) {
      DeviceBuffer& buffer = copies.buffers.emplace_back(bytes_of(view));
      if (view.rows > 0) buffer.upload(view.data, bytes_of(view), *stream_);
      view.data = reinterpret_cast<void*>(buffer.pointer());
      copies.views.push_back(view);
    }
    stream_->synchronize();
    return copies;
  }

  /// Makes the kernel of one direction, for runs of up to so many tokens, and its workspace.
  using Make = std::function<std::unique_ptr<StepKernel>(
      const Operands&, const AttentionVariant&, std::int64_t max_tokens, DeviceBuffer& workspace)>;

  static std::unique_ptr<StepKernel> make_own(const Operands& run, const AttentionVariant& variant,
                                              std::int64_t max_tokens, DeviceBuffer& workspace) {
    workspace = DeviceBuffer(
        std::max(own_attention_workspace_bytes(run.attrs, variant, max_tokens), std::size_t{1}));
    return std::make_unique<OwnAttention>(run.attrs, variant, workspace.pointer());
  }
  static std::unique_ptr<StepKernel> make_cudnn(const Operands& run,
                                                const AttentionVariant& variant,
                                                std::int64_t max_tokens, DeviceBuffer& workspace) {
    std::array<std::int64_t, kCudnnOperands> strides{};
    std::size_t operand = 0;
    for (const Matrix* m :
         {&run.q, &run.k, &run.v, &run.o, &run.lse, &run.d_o, &run.d_q, &run.d_k, &run.d_v}) {
      strides[operand++] = m->view.stride;
    }
    const std::size_t bytes =
        cudnn_attention_workspace_bytes(run.attrs, variant, max_tokens, strides);
    workspace = DeviceBuffer(bytes);
    return std::make_unique<CudnnAttentionStep>(run.attrs, variant, max_tokens, workspace.pointer(),
                                                bytes);
  }
  /// What runs by default where cuDNN is there.
  static std::unique_ptr<StepKernel> make_both(const Operands& run, const AttentionVariant& variant,
                                               std::int64_t max_tokens, DeviceBuffer& workspace) {
    return (variant.backward ? make_own : make_cudnn)(run, variant, max_tokens, workspace);
  }
  static std::string why_own(const StepKernel& kernel) {
    const auto* step = dynamic_cast<const CudnnAttentionStep*>(&kernel);
    return step ? step->why_own() : "";
  }

  /// One direction; results are copied back. The second of two runs, each on poisoned results, is
  /// recorded as a graph, and must repeat the first's bits.
  void run_direction(const Case& c, Operands& run, bool backward, const Make& make) {
    const auto variant = variant_of(c, backward);
    const auto views = backward ? run.backward() : run.forward();
    const std::size_t results = backward ? 7 : 4;
    DeviceBuffer workspace;
    const auto kernel = make(run, variant, run.tokens, workspace);
    std::vector<std::vector<unsigned char>> first;
    for (const bool captured : {false, true}) {
      Copies copies = to_device(views);
      kernel->bind(copies.views, run.tokens);
      EXPECT_EQ(why_own(*kernel), "");
      if (captured) {
        Graph::capture(*stream_, [&] { kernel->launch(*stream_); }).launch(*stream_);
      } else {
        kernel->launch(*stream_);
      }
      for (std::size_t i = results; i < views.size(); ++i) {
        std::vector<unsigned char> bytes(bytes_of(views[i]));
        copies.buffers[i].download(bytes.data(), bytes.size(), *stream_);
        if (captured) {
          EXPECT_TRUE(bytes == first[i - results]) << "result " << i << " of a second run";
          if (views[i].rows > 0) std::memcpy(views[i].data, bytes.data(), bytes.size());
        } else {
          first.push_back(std::move(bytes));
        }
      }
    }
  }

  Runner by(const Make& make) {
    return [this, make](const Case& c, Operands& run) {
      for (const bool backward : {false, true}) run_direction(c, run, backward, make);
    };
  }

  /// Runs all of `cases`, of one dtype and shape, on the same kernels and the same memory: the
  /// first as it is, every other of the same M from the graph that the first left, others bound
  /// anew.
  void expect_replays(const std::vector<Case>& cases, const Make& make) {
    std::int64_t most = 0;
    for (const Case& c : cases) most = std::max(most, c.cu_seqlens.back());
    std::unique_ptr<StepKernel> kernels[2];
    DeviceBuffer workspaces[2];
    std::unique_ptr<Graph> graphs[2];
    std::int64_t recorded = -1;
    std::vector<DeviceBuffer> memory;
    unsigned seed = 0;
    for (const Case& c : cases) {
      expect_definition(c, [&](const Case&, Operands& run) {
        std::mt19937 random(++seed);
        for (Matrix* m : {&run.q, &run.k, &run.v, &run.d_o}) m->fill(random, 1);
        const auto views = run.backward();
        if (memory.empty()) {
          for (const TensorView& view : views) {
            memory.emplace_back(static_cast<std::size_t>((most + 1) * view.stride) * 8);
          }
        }
        std::vector<TensorView> bound;
        for (std::size_t i = 0; i < views.size(); ++i) {
          TensorView view = views[i];
          memory[i].upload(view.data, bytes_of(view), *stream_);
          view.data = reinterpret_cast<void*>(memory[i].pointer());
          bound.push_back(view);
        }
        stream_->synchronize();
        for (const bool backward : {false, true}) {
          auto& kernel = kernels[backward];
          if (!kernel) {
            kernel = make(run, variant_of(c, backward), most, workspaces[backward]);
          }
          if (recorded != run.tokens) {
            kernel->bind({bound.data(), backward ? 10u : 6u}, run.tokens);
            EXPECT_EQ(why_own(*kernel), "");
            kernel->launch(*stream_);  // what is loaded on first use may not be recorded
            graphs[backward] = std::make_unique<Graph>(
                Graph::capture(*stream_, [&] { kernel->launch(*stream_); }));
          }
          graphs[backward]->launch(*stream_);
        }
        recorded = run.tokens;
        for (const std::size_t i : {4, 5, 7, 8, 9}) {
          memory[i].download(views[i].data, bytes_of(views[i]), *stream_);
        }
      });
    }
  }

  std::unique_ptr<Stream> stream_;
};

const Case kCases[] = {
    {DType::bf16, 1, 1, 64, {0, 1}},
    {DType::bf16, 4, 2, 64, {0, 33}},
    {DType::bf16, 6, 2, 24, {0, 5, 5, 6, 140}},
    {DType::bf16, 8, 1, 64, {0, 100, 300}},
    {DType::bf16, 2, 2, 5, {0, 0, 129, 129, 258, 387}, false},
    {DType::bf16, 2, 1, 128, {0, 300}},
    {DType::bf16, 4, 1, 128, {0, 64, 128, 320}, true, DType::i64},
    {DType::bf16, 2, 2, 80, {0, 97, 193}, false},
    {DType::bf16, 2, 2, 144, {0, 97, 193}},
    {DType::bf16, 2, 1, 256, {0, 150}},
    {DType::bf16, 2, 1, 320, {0, 150}},
    {DType::f16, 4, 2, 64, {0, 97, 193}},
    {DType::f16, 3, 1, 33, {0, 97, 193}, false},
    {DType::f16, 4, 2, 128, {0, 200}},
    {DType::f32, 4, 2, 64, {0, 33, 34, 161}},
    {DType::f32, 1, 1, 1, {0, 50}, false},
    {DType::f32, 2, 1, 128, {0, 130}},
};

/// Windows of one key, within a tile, of whole tiles, across tiles, wider than a sequence; caps
/// that bend every score, most, and none.
const Case kOptions[] = {
    {DType::bf16, 4, 2, 64, {0, 33}, true, DType::i32, 1},
    {DType::bf16, 6, 2, 64, {0, 5, 5, 6, 140, 460}, true, DType::i32, 7},
    {DType::bf16, 2, 1, 128, {0, 500}, true, DType::i32, 64},
    {DType::bf16, 4, 1, 128, {0, 64, 128, 320}, true, DType::i64, 100, 3},
    {DType::bf16, 2, 2, 80, {0, 97, 193}, false, DType::i32, 1000},
    {DType::bf16, 2, 1, 256, {0, 350}, true, DType::i32, 128, 50},
    {DType::bf16, 2, 1, 320, {0, 150}, true, DType::i32, 30, 2},
    {DType::bf16, 8, 2, 64, {0, 200}, true, DType::i32, 0, 0.5},
    {DType::f16, 4, 2, 64, {0, 97, 393}, true, DType::i32, 65, 4},
    {DType::f16, 3, 1, 33, {0, 97, 193}, false, DType::i32, 20, 3},
    {DType::f32, 4, 2, 64, {0, 33, 34, 361}, true, DType::i32, 63},
    {DType::f32, 2, 1, 128, {0, 230}, true, DType::i32, 129, 30},
    {DType::f32, 1, 1, 1, {0, 50}, false, DType::i32, 1, 1},
};

TEST_F(CudaAttention, WindowsAndCapsAgreeWithTheDefinition) {
  for (const Case& c : kOptions) expect_definition(c, by(make_own));
}

TEST_F(CudaAttention, AgreesWithTheDefinition) {
  for (const Case& c : kCases) expect_definition(c, by(make_own));
}

TEST_F(CudaAttention, AgreesWithTheDefinitionWithoutWgmma) {
  ::setenv("CODA_ATTENTION", "mma", 1);
  for (const Case& c : kCases) {
    if (c.head_dim == 64 || c.head_dim == 128) expect_definition(c, by(make_own));
  }
  ::unsetenv("CODA_ATTENTION");
}

/// One of every kind of kernel, for compute-sanitizer (scripts/sanitize_gpu.sh).
TEST_F(CudaAttention, SmallShapes) {
  for (const Case& c :
       {Case{DType::bf16, 2, 1, 64, {0, 5, 5, 140}}, Case{DType::f16, 1, 1, 128, {0, 66}},
        Case{DType::bf16, 2, 1, 24, {0, 70}}, Case{DType::f32, 2, 1, 20, {0, 66}},
        Case{DType::bf16, 2, 1, 24, {0, 140}, true, DType::i32, 9, 3},
        Case{DType::f32, 2, 1, 20, {0, 140}, true, DType::i32, 9, 3}}) {
    expect_definition(c, by(make_own));
  }
}

const Case kReplays[] = {
    {DType::bf16, 4, 2, 64, {0, 100, 100, 228, 300}}, {DType::bf16, 4, 2, 64, {0, 1, 64, 65, 300}},
    {DType::bf16, 4, 2, 64, {0, 50, 51, 52, 120}},    {DType::bf16, 4, 2, 64, {0, 0, 0, 119, 120}},
    {DType::bf16, 4, 2, 64, {0, 300, 300, 300, 300}},
};

TEST_F(CudaAttention, OtherLengthsAndTokensOnTheSameKernels) {
  expect_replays({std::begin(kReplays), std::end(kReplays)}, make_own);
}

TEST_F(CudaAttention, NoTokens) {
  const Case c{DType::bf16, 4, 2, 64, {0, 0}};
  Operands run(c, c.dtype);
  by(make_own)(c, run);
}

// ---- cuDNN

class CudnnAttentionTest : public CudaAttention {
 protected:
  void SetUp() override {
    CudaAttention::SetUp();
    if (!IsSkipped() && !HasFatalFailure() && !CudnnAttention::why_not(true).empty()) {
      GTEST_SKIP() << CudnnAttention::why_not(true);
    }
  }
};

const Case kCudnnCases[] = {
    {DType::bf16, 1, 1, 64, {0, 1}},
    {DType::bf16, 4, 2, 64, {0, 33}},
    {DType::bf16, 6, 2, 64, {0, 5, 5, 6, 140}},
    {DType::bf16, 8, 1, 64, {0, 100, 300}},
    {DType::bf16, 2, 1, 128, {0, 300}},
    {DType::bf16, 3, 3, 128, {0, 0, 70, 70}},
    {DType::bf16, 4, 1, 128, {0, 64, 128, 320}, true, DType::i64},
    {DType::f16, 4, 2, 64, {0, 97, 193}},
    {DType::f16, 4, 2, 128, {0, 200}},
};

TEST_F(CudnnAttentionTest, AgreesWithTheDefinition) {
  for (const Case& c : kCudnnCases) {
    expect_definition(c, by(make_cudnn));
    expect_definition(c, by(make_both));
  }
}

TEST_F(CudnnAttentionTest, OtherLengthsAndTokensOnTheSameKernels) {
  expect_replays({std::begin(kReplays), std::end(kReplays)}, make_cudnn);
}

TEST_F(CudnnAttentionTest, WhatDoesNotFitRunsOnOurKernels) {
  Case many{DType::bf16, 1, 1, 64, {0}};
  for (std::int64_t i = 0; i <= kCudnnSequences; ++i) many.cu_seqlens.push_back(i + 1);
  for (const Case& c : {Case{DType::bf16, 2, 1, 64, {0, 70}, false}, many}) {
    Operands run(c, c.dtype);
    DeviceBuffer workspace;
    const auto kernel = make_cudnn(run, variant_of(c, false), run.tokens, workspace);
    const Copies copies = to_device(run.forward());
    kernel->bind(copies.views, run.tokens);
    EXPECT_NE(why_own(*kernel), "");
    kernel->launch(*stream_);
    stream_->synchronize();
  }
}

}  // namespace
}  // namespace coda::cuda
