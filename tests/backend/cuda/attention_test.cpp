// Attention on the GPU: every kernel compiles without one; with one, results against the
// definition.
#include "backend/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "backend/cuda/attention_cudnn.h"
#include "backend/cuda/cubin.h"
#include "backend/cuda/gpu_test.h"
#include "backend/cuda/host_kernel.h"
#include "backend/cuda/nvrtc.h"
#include "backend/element.h"
#include "backend/reference/opaque_kernels.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

AttentionVariant variant_of(DType dtype, std::int64_t head_dim, bool backward) {
  AttentionVariant variant;
  variant.dtype = dtype;
  variant.head_dim = head_dim;
  variant.backward = backward;
  return variant;
}

TEST(CudaAttentionCompile, EveryKernelWithoutSpills) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  std::vector<KernelSource> sources;
  const auto add = [&](DType dtype, std::int64_t head_dim, bool wgmma = false) {
    for (const bool backward : {false, true}) {
      AttentionVariant variant = variant_of(dtype, head_dim, backward);
      variant.wgmma = wgmma;
      for (auto& source : attention_sources(variant)) sources.push_back(std::move(source));
    }
  };
  for (const std::int64_t head_dim : {128, 144, 256}) add(DType::bf16, head_dim);
  add(DType::f16, 64);
  for (const std::int64_t head_dim : {64, 128}) add(DType::bf16, head_dim, true);
  add(DType::f32, 20);
  for (auto& source : cudnn_attention_sources()) sources.push_back(std::move(source));
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&] {
    for (;;) {
      std::unique_lock lock(mutex);
      if (next == sources.size()) return;
      const KernelSource& source = sources[next++];
      lock.unlock();
      std::string problem;
      CubinResources resources;
      double seconds = 0;
      try {
        const auto compiled = compile_checked(source);  // throws on a stack frame
        resources = read_cubin(compiled.cubin, source.entry);
        seconds = compiled.seconds;
      } catch (const std::exception& error) {
        problem = error.what();
      }
      lock.lock();
      EXPECT_EQ(problem, "") << source.name;
      EXPECT_LE(resources.shared_bytes + source.shared_bytes, 232448u) << source.name;
      std::cout << source.name << ": " << resources.registers << " registers, "
                << resources.shared_bytes + source.shared_bytes << " bytes shared, " << seconds
                << " s\n";
    }
  };
  std::thread other(work);
  work();
  other.join();
}

// ---- Results. Cases run by the kernels' text compiled for the host and, where there is one, on a
// GPU; both are compared with the definition in double.

struct Case {
  DType dtype;
  std::int64_t n_heads, n_kv_heads, head_dim;
  std::vector<std::int64_t> cu_seqlens;
  bool aligned = true;
  DType offsets = DType::i32;
};

std::string to_text(const Case& c) {
  return fmt::format("{} heads {}/{} of {}, M {}, {} sequences", name_of(c.dtype), c.n_heads,
                     c.n_kv_heads, c.head_dim, c.cu_seqlens.back(), c.cu_seqlens.size() - 1);
}

/// Rows inside wider rows, all NaN at first, so that whoever ignores the stride, reads outside or
/// leaves a result unwritten is caught.
struct Matrix {
  HostTensor memory;
  TensorView view;

  Matrix() = default;
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : memory(dtype, rows, stride), view(memory.view()) {
    view.cols = cols;
    for (std::int64_t i = 0; i < memory.size(); ++i) {
      memory.set(i, std::numeric_limits<double>::quiet_NaN());
    }
  }
  void fill(std::mt19937& random, double spread) {
    std::normal_distribution<double> normal(0, spread);
    for (std::int64_t r = 0; r < view.rows; ++r) {
      for (std::int64_t c = 0; c < view.cols; ++c) write_element(view, r, c, normal(random));
    }
  }
};

/// Operands of a forward and a backward run, and where results go.
struct Operands {
  Attrs attrs;
  std::int64_t tokens;
  HostTensor cu_seqlens;
  Matrix q, k, v, o, lse, d_o, d_q, d_k, d_v;

  /// `dtype`: of the tensors (cases give the kernels').
  Operands(const Case& c, DType dtype) : tokens(c.cu_seqlens.back()) {
    const std::int64_t wide = c.n_heads * c.head_dim, narrow = c.n_kv_heads * c.head_dim;
    const auto make = [&](std::int64_t cols, std::int64_t gap) {
      return Matrix(dtype, tokens, cols, c.aligned ? (cols + 7) / 8 * 8 + 8 : cols + gap);
    };
    q = make(wide, 1);
    k = make(narrow, 3);
    v = make(narrow, 5);
    o = make(wide, 1);
    lse = Matrix(dtype == DType::f64 ? dtype : DType::f32, tokens, c.n_heads, c.n_heads + 1);
    d_o = make(wide, 2);
    d_q = make(wide, 4);
    d_k = make(narrow, 7);
    d_v = make(narrow, 0);
    attrs.index = static_cast<std::int32_t>(c.n_heads);
    attrs.index2 = static_cast<std::int32_t>(c.n_kv_heads);
    attrs.period = c.head_dim;
    attrs.value = 1 / std::sqrt(static_cast<double>(c.head_dim));
    cu_seqlens = HostTensor(c.offsets, static_cast<std::int64_t>(c.cu_seqlens.size()), 1);
    for (std::size_t i = 0; i < c.cu_seqlens.size(); ++i) {
      cu_seqlens.set(static_cast<std::int64_t>(i), static_cast<double>(c.cu_seqlens[i]));
    }
    std::mt19937 random(7);
    q.fill(random, 2);  // scores of a spread of 2: neither flat nor one key only
    k.fill(random, 1);
    v.fill(random, 1);
    d_o.fill(random, 1);
  }

  std::vector<TensorView> forward() const {
    return {q.view, k.view, v.view, cu_seqlens.view(), o.view, lse.view};
  }
  std::vector<TensorView> backward() const {
    return {q.view,   k.view,   v.view,   cu_seqlens.view(), o.view,
            lse.view, d_o.view, d_q.view, d_k.view,          d_v.view};
  }
};

/// Runs both directions; results land in the operands.
using Runner = std::function<void(const Case&, Operands&)>;

/// Error of all of `got`, and of its worst row, by Frobenius norm: relative to all of `want`, and
/// to its largest row. Infinite if a value is not finite or a gap was written.
double error(const Matrix& got, const Matrix& want) {
  double difference = 0, total = 0, worst = 0, largest = 0;
  for (std::int64_t r = 0; r < want.view.rows; ++r) {
    double row_difference = 0, row_total = 0;
    for (std::int64_t c = 0; c < want.view.cols; ++c) {
      const double x = read_element(got.view, r, c), y = read_element(want.view, r, c);
      if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
      row_difference += (x - y) * (x - y);
      row_total += y * y;
    }
    for (std::int64_t c = want.view.cols; c < got.memory.cols(); ++c) {
      if (!std::isnan(got.memory.get(r * got.memory.cols() + c))) {
        return std::numeric_limits<double>::infinity();
      }
    }
    difference += row_difference;
    total += row_total;
    worst = std::max(worst, row_difference);
    largest = std::max(largest, row_total);
  }
  return total == 0 ? std::sqrt(difference)
                    : std::sqrt(std::max(difference / total, worst / largest));
}

/// Half a unit in the last place of 1.
double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-12 : 0x1p-25;
}

void expect_definition(const Case& c, const Runner& runner) {
  SCOPED_TRACE(to_text(c));
  Operands run(c, c.dtype), want(c, DType::f64);
  runner(c, run);
  reference::attention_forward(run.attrs, run.q.view, run.k.view, run.v.view, run.cu_seqlens.view(),
                               want.o.view, want.lse.view);
  reference::attention_backward(run.attrs, run.q.view, run.k.view, run.v.view,
                                run.cu_seqlens.view(), run.o.view, want.lse.view, run.d_o.view,
                                want.d_q.view, want.d_k.view, want.d_v.view);
  // Results are rounded once, and before that every weight (p, ds) that meets a row of v, d_o, k or
  // q: of n weights, n^(1/2) of a rounding at worst, in the rows of two; fewer than two where there
  // are more, since roundings are independent. And fp32 sums: a score of up to 12 carries 12
  // sqrt(D) eps at most, which is its relative effect on p; sums over D features and up to M tokens
  // add sqrt(D + M) eps. Gradients do that twice. e^x itself: 4 eps.
  const double eps = 0x1p-24;
  const double sums = eps * (12 + 1 + 4) * std::sqrt(static_cast<double>(c.head_dim + run.tokens));
  const double limit = 3 * rounding(c.dtype) + sums;
  EXPECT_LE(error(run.o, want.o), limit) << "o";
  EXPECT_LE(error(run.lse, want.lse), sums) << "lse";
  EXPECT_LE(error(run.d_q, want.d_q), limit + sums) << "d_q";
  EXPECT_LE(error(run.d_k, want.d_k), limit + sums) << "d_k";
  EXPECT_LE(error(run.d_v, want.d_v), limit + sums) << "d_v";
}

/// Runs the kernels' text, compiled for the host.
void run_on_host(const Case& c, Operands& run) {
  for (const bool backward : {false, true}) {
    auto variant = variant_of(c.dtype, c.head_dim, backward);
    variant.wgmma = variant.may_use_wgmma() && c.aligned;
    std::vector<double> workspace(
        own_attention_workspace_bytes(run.attrs, variant, run.tokens) / sizeof(double) + 1, NAN);
    const auto launches =
        attention_launches(run.attrs, variant, backward ? run.backward() : run.forward(),
                           run.tokens, workspace.data());
    EXPECT_EQ(launches.params.aligned != 0, c.aligned);
    const auto sources = attention_sources(variant);
    for (std::size_t i = 0; i < launches.sizes.size(); ++i) {
      static HostKernels kernels;
      const void* const argument = &launches.params;
      kernels.get(sources[i])
          .launch(launches.sizes[i].grid, launches.sizes[i].block, {&argument, 1});
    }
  }
}

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer);
#else
  return false;
#endif
}

class CudaAttentionHost : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kHostGpuFolder)) GTEST_SKIP() << "needs the sources";
    if (is_sanitized()) GTEST_SKIP() << "fibers confuse the address sanitizer";
    if (std::system("c++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs c++ on the path";
    ::setenv("CODA_ATTENTION", "wgmma", 1);
  }
  void TearDown() override { ::unsetenv("CODA_ATTENTION"); }
};

TEST_F(CudaAttentionHost, AgreesWithTheDefinition) {
  for (const Case& c : {
           Case{DType::bf16, 4, 2, 72, {0, 5, 5, 6, 140}},
           Case{DType::bf16, 2, 2, 72, {0, 128, 192}},
           Case{DType::bf16, 1, 1, 72, {0, 0, 70, 70}, true, DType::i64},
           Case{DType::f16, 3, 1, 20, {0, 63, 129}, false},
           Case{DType::bf16, 1, 1, 136, {0, 66}},                // columns by two CTAs
           Case{DType::bf16, 2, 1, 64, {0, 5, 5, 6, 140, 460}},  // by wgmma
           Case{DType::f16, 2, 2, 128, {0, 130}},
           Case{DType::f32, 4, 2, 68, {0, 1, 67, 80}},
           Case{DType::f32, 2, 1, 68, {0, 65}, false},
       }) {
    expect_definition(c, run_on_host);
  }
}

TEST_F(CudaAttentionHost, NoTokens) {
  const Case c{DType::bf16, 4, 2, 72, {0, 0, 0}};
  Operands run(c, c.dtype);
  run_on_host(c, run);
}

TEST_F(CudaAttentionHost, ASequenceDoesNotSeeItsNeighbours) {
  for (const std::int64_t head_dim : {72, 64}) {  // mma, wgmma
    const Case c{DType::bf16, 1, 1, head_dim, {0, 40, 140, 151}};
    const Case part{DType::bf16, 1, 1, head_dim, {0, 100}};
    Operands packed(c, c.dtype), alone(part, part.dtype);
    for (auto [whole, own] : {std::pair{&packed.q, &alone.q}, std::pair{&packed.k, &alone.k},
                              std::pair{&packed.v, &alone.v}, std::pair{&packed.d_o, &alone.d_o}}) {
      for (std::int64_t r = 0; r < 100; ++r) {
        for (std::int64_t i = 0; i < own->view.cols; ++i) {
          write_element(own->view, r, i, read_element(whole->view, r + 40, i));
        }
      }
    }
    run_on_host(c, packed);
    run_on_host(part, alone);
    for (auto [whole, own] :
         {std::pair{&packed.o, &alone.o}, std::pair{&packed.lse, &alone.lse},
          std::pair{&packed.d_q, &alone.d_q}, std::pair{&packed.d_k, &alone.d_k},
          std::pair{&packed.d_v, &alone.d_v}}) {
      for (std::int64_t r = 0; r < 100; ++r) {
        for (std::int64_t i = 0; i < own->view.cols; ++i) {
          ASSERT_EQ(read_element(whole->view, r + 40, i), read_element(own->view, r, i));
        }
      }
    }
  }
}

TEST_F(CudaAttentionHost, HugeScoresAndNaN) {
  for (const Case& c : {Case{DType::bf16, 1, 1, 72, {0, 70}}, Case{DType::bf16, 1, 1, 64, {0, 70}},
                        Case{DType::f32, 1, 1, 68, {0, 70}}}) {
    Operands run(c, c.dtype);
    write_element(run.q.view, 5, 3, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t i = 0; i < c.head_dim; ++i) {
      write_element(run.q.view, 69, i, 1e15 * read_element(run.q.view, 69, i));
    }
    run_on_host(c, run);
    for (std::int64_t i = 0; i < c.head_dim; ++i) {
      EXPECT_TRUE(std::isnan(read_element(run.o.view, 5, i)));
      EXPECT_TRUE(std::isnan(read_element(run.d_q.view, 5, i)));
      EXPECT_TRUE(std::isnan(read_element(run.d_k.view, 5, i)));
      for (const std::int64_t row : {4, 6, 69}) {
        EXPECT_TRUE(std::isfinite(read_element(run.o.view, row, i)));
        EXPECT_TRUE(std::isfinite(read_element(run.d_q.view, row, i)));
      }
    }
    // One key takes all: its value, whose rounding is exact.
    double nearest = INFINITY;
    for (std::int64_t t = 0; t < 70; ++t) {
      double distance = 0;
      for (std::int64_t i = 0; i < c.head_dim; ++i) {
        distance += std::abs(read_element(run.o.view, 69, i) - read_element(run.v.view, t, i));
      }
      nearest = std::min(nearest, distance);
    }
    EXPECT_EQ(nearest, 0);
  }
}

// ---- On a GPU

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
    const auto variant = variant_of(c.dtype, c.head_dim, backward);
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
            kernel =
                make(run, variant_of(c.dtype, c.head_dim, backward), most, workspaces[backward]);
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

TEST_F(CudaAttention, AgreesWithTheDefinition) {
  ::setenv("CODA_ATTENTION", "wgmma", 1);
  for (const Case& c : kCases) expect_definition(c, by(make_own));
  ::unsetenv("CODA_ATTENTION");
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
  ::setenv("CODA_ATTENTION", "wgmma", 1);
  for (const Case& c :
       {Case{DType::bf16, 2, 1, 64, {0, 5, 5, 140}}, Case{DType::f16, 1, 1, 128, {0, 66}},
        Case{DType::bf16, 2, 1, 24, {0, 70}}, Case{DType::f32, 2, 1, 20, {0, 66}}}) {
    expect_definition(c, by(make_own));
  }
  ::unsetenv("CODA_ATTENTION");
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
    const auto kernel =
        make_cudnn(run, variant_of(c.dtype, c.head_dim, false), run.tokens, workspace);
    const Copies copies = to_device(run.forward());
    kernel->bind(copies.views, run.tokens);
    EXPECT_NE(why_own(*kernel), "");
    kernel->launch(*stream_);
    stream_->synchronize();
  }
}

TEST(CudaAttentionChoice, SaysWhyOurKernelsRun) {
  EXPECT_EQ(attention_choice({DType::f32, 64, false}).text,
            "own kernels (cuDNN's do not take f32)");
  EXPECT_EQ(attention_choice({DType::bf16, 80, true}).text,
            "own kernels (cuDNN's are used for heads of 64 and 128, not 80)");
  ::setenv("CODA_ATTENTION", "own", 1);
  EXPECT_EQ(attention_choice({DType::bf16, 64, true}).text, "own kernels (CODA_ATTENTION=own)");
  ::unsetenv("CODA_ATTENTION");
  if (CudnnAttention::why_not(true).empty()) {
    EXPECT_TRUE(attention_choice({DType::bf16, 64, false}).cudnn);
    EXPECT_EQ(attention_choice({DType::bf16, 64, true}).text,
              "own kernels (cuDNN's backward of repeatable bits is slower)");
    ::setenv("CODA_ATTENTION", "cudnn", 1);
    EXPECT_TRUE(attention_choice({DType::bf16, 64, true}).cudnn);
  }
  ::unsetenv("CODA_ATTENTION");
  EXPECT_TRUE((AttentionVariant{DType::bf16, 128, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::bf16, 64, true}.may_use_wgmma()));
  ::setenv("CODA_ATTENTION", "wgmma", 1);
  EXPECT_TRUE((AttentionVariant{DType::bf16, 64, true}.may_use_wgmma()));
  ::setenv("CODA_ATTENTION", "mma", 1);
  EXPECT_EQ(attention_choice({DType::bf16, 64, true}).text, "own kernels (CODA_ATTENTION=mma)");
  EXPECT_FALSE((AttentionVariant{DType::bf16, 128, true}.may_use_wgmma()));
  ::setenv("CODA_ATTENTION", "fast", 1);
  EXPECT_THROW(attention_choice({DType::bf16, 64, true}), UsageError);
  ::unsetenv("CODA_ATTENTION");
}

}  // namespace
}  // namespace coda::cuda
