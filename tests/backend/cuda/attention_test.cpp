// Attention without a GPU: every kernel compiles; its very text, compiled for the host, agrees with
// the definition; and what runs is said.
#include "backend/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/attention_case.h"
#include "backend/cuda/attention_cudnn.h"
#include "backend/cuda/cubin.h"
#include "backend/cuda/host_kernel.h"
#include "backend/cuda/nvrtc.h"
#include "backend/element.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

TEST(CudaAttentionCompile, EveryKernelWithoutSpills) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  std::vector<KernelSource> sources;
  const auto add = [&](DType dtype, std::int64_t head_dim, bool wgmma = false,
                       bool options = false) {
    for (const bool backward : {false, true}) {
      AttentionVariant variant{dtype, head_dim, backward, wgmma, options, options};
      for (auto& source : attention_sources(variant)) sources.push_back(std::move(source));
    }
  };
  for (const std::int64_t head_dim : {128, 144, 256}) add(DType::bf16, head_dim);
  add(DType::f16, 64);
  for (const std::int64_t head_dim : {64, 128}) add(DType::bf16, head_dim, true);
  for (const std::int64_t head_dim : {128, 256}) add(DType::bf16, head_dim, false, true);
  for (const bool options : {false, true}) add(DType::f32, 20, false, options);
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

/// Runs the kernels' text, compiled for the host.
void run_on_host(const Case& c, Operands& run) {
  for (const bool backward : {false, true}) {
    auto variant = variant_of(c, backward);
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

class CudaAttentionHost : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kHostGpuFolder)) GTEST_SKIP() << "needs the sources";
    if (is_sanitized()) GTEST_SKIP() << "fibers confuse the address sanitizer";
    if (std::system("c++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs c++ on the path";
  }
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

TEST_F(CudaAttentionHost, WindowsAndCaps) {
  constexpr DType i32 = DType::i32;
  for (const Case& c : {
           Case{DType::bf16, 2, 1, 72, {0, 5, 5, 6, 140}, true, i32, 1},
           Case{DType::bf16, 2, 1, 72, {0, 100, 300}, true, i32, 64},  // tiles left out
           Case{DType::bf16, 2, 2, 64, {0, 100, 230}, true, i32, 37, 3},
           Case{DType::bf16, 1, 1, 128, {0, 70}, true, i32, 1000, 0.5},  // wider than the sequence
           Case{DType::f16, 2, 1, 20, {0, 63, 129}, false, i32, 0, 50},
           Case{DType::f32, 2, 1, 68, {0, 1, 67, 260}, true, i32, 65},
           Case{DType::f32, 2, 1, 20, {0, 90}, true, i32, 1},
           Case{DType::f32, 2, 1, 20, {0, 5, 90}, true, i32, 20, 2},
       }) {
    expect_definition(c, run_on_host);
  }
}

/// Relative error of a whole matrix.
double frobenius(const Matrix& got, const Matrix& want) {
  double difference = 0, total = 0;
  for (std::int64_t r = 0; r < want.view.rows; ++r) {
    for (std::int64_t i = 0; i < want.view.cols; ++i) {
      const double x = read_element(want.view, r, i);
      difference += std::pow(read_element(got.view, r, i) - x, 2);
      total += x * x;
    }
  }
  return std::sqrt(difference / total);
}

// Of two keys, d_q and d_k are small differences of numbers that must carry the same roundings: by
// delta = dot(o, d_o) both errors are 3.2e-7.
TEST_F(CudaAttentionHost, FewKeysKeepTheirDigits) {
  const Case c{DType::f32, 6, 2, 32, {0, 77}, true, DType::i32, 2};
  Operands run(c, c.dtype), want(c, DType::f64);
  run_on_host(c, run);
  reference::attention_forward(run.attrs, run.q.view, run.k.view, run.v.view, run.cu_seqlens.view(),
                               want.o.view, want.lse.view);
  reference::attention_backward(run.attrs, run.q.view, run.k.view, run.v.view,
                                run.cu_seqlens.view(), want.o.view, want.lse.view, run.d_o.view,
                                want.d_q.view, want.d_k.view, want.d_v.view);
  EXPECT_LE(frobenius(run.d_q, want.d_q), 2.2e-7);
  EXPECT_LE(frobenius(run.d_k, want.d_k), 2.2e-7);
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

TEST(CudaAttentionChoice, SaysWhyOurKernelsRun) {
  EXPECT_EQ(attention_choice({DType::f32, 64, false}).text,
            "own kernels (cuDNN's do not take f32)");
  EXPECT_EQ(attention_choice({DType::bf16, 80, true}).text,
            "own kernels (cuDNN's are used for heads of 64 and 128, not 80)");
  EXPECT_EQ(attention_choice({DType::bf16, 64, true, false, true}).text,
            "own kernels (cuDNN's are used without window and softcap)");
  EXPECT_EQ(attention_choice({DType::bf16, 64, false, false, false, true}).text,
            "own kernels (cuDNN's are used without window and softcap)");
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
  EXPECT_TRUE((AttentionVariant{DType::bf16, 64, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::bf16, 80, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::f32, 64, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::bf16, 64, true, false, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::bf16, 64, true, false, false, true}.may_use_wgmma()));
  ::setenv("CODA_ATTENTION", "mma", 1);
  EXPECT_EQ(attention_choice({DType::bf16, 64, true}).text, "own kernels (CODA_ATTENTION=mma)");
  EXPECT_FALSE((AttentionVariant{DType::bf16, 64, true}.may_use_wgmma()));
  EXPECT_FALSE((AttentionVariant{DType::bf16, 128, true}.may_use_wgmma()));
  ::setenv("CODA_ATTENTION", "fast", 1);
  EXPECT_THROW(attention_choice({DType::bf16, 64, true}), UsageError);
  ::unsetenv("CODA_ATTENTION");
}

}  // namespace
}  // namespace coda::cuda
