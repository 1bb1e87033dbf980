// Attention to a cache without a GPU: both kernels compile; their very text, compiled for the host,
// agrees with the definition.
#include "backend/cuda/cached_attention.h"

#include <cstdlib>
#include <filesystem>

#include "backend/cuda/cached_attention_case.h"
#include "backend/cuda/cubin.h"
#include "backend/cuda/host_kernel.h"
#include "backend/cuda/nvrtc.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

TEST(CudaCachedAttentionCompile, EveryKernelWithoutSpills) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  for (const CachedAttentionVariant& variant : {CachedAttentionVariant{DType::bf16, 64, true},
                                                {DType::bf16, 128, true},
                                                {DType::f16, 320, true},
                                                {DType::f32, 64, true},
                                                {DType::f32, 128, true},
                                                {DType::f32, 5, false},
                                                {DType::bf16, 100, false},
                                                {DType::bf16, 128, true, true, true},
                                                {DType::f32, 64, true, true, true}}) {
    for (const auto& source : cached_attention_sources(variant)) {
      const auto compiled = compile_checked(source);  // throws on a stack frame
      const auto resources = read_cubin(compiled.cubin, source.entry);
      EXPECT_LE(resources.shared_bytes, 49152u) << source.name;
      std::cout << source.name << ": " << resources.registers << " registers, "
                << resources.shared_bytes << " bytes shared, " << compiled.seconds << " s\n";
    }
  }
}

/// Runs the kernels' text, compiled for the host; returns the error flag.
unsigned run_on_host(const CacheCase& c, CacheOperands& run) {
  static HostKernels kernels;
  const auto views = run.views();
  std::vector<float> workspace(
      cached_attention_bytes(run.attrs, views[3].rows, run.tokens) / sizeof(float), NAN);
  unsigned flag = 0;
  const auto launches =
      cached_attention_launches(run.attrs, views, run.tokens, workspace.data(), &flag);
  const bool aligned = is_aligned_for_cache(run.attrs, views);
  const auto sources =
      cached_attention_sources({c.dtype, c.head_dim, aligned, c.window > 0, c.softcap > 0});
  const void* const argument = &launches.params;
  if (launches.parts_grid == 0) return flag;
  kernels.get(sources[0])
      .launch(launches.parts_grid, kCachedAttentionThreads, {&argument, 1}, launches.parts_grid_y);
  kernels.get(sources[1]).launch(launches.sums_grid, kCachedAttentionThreads, {&argument, 1});
  return flag;
}

class CudaCachedAttentionHost : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kHostGpuFolder)) GTEST_SKIP() << "needs the sources";
    if (is_sanitized()) GTEST_SKIP() << "fibers confuse the address sanitizer";
    if (std::system("c++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs c++ on the path";
  }
};

TEST_F(CudaCachedAttentionHost, AgreesWithTheDefinition) {
  for (const CacheCase& c : {
           CacheCase{DType::bf16, 4, 1, 64, 700, {600}, {1}},  // one token, many parts
           CacheCase{DType::bf16, 4, 2, 64, 300, {0, 63, 0}, {1, 2, 70}},
           CacheCase{DType::bf16, 6, 2, 64, 70, {3, 9, 64}, {5, 0, 6}, true, DType::i64},
           CacheCase{DType::f32, 3, 3, 5, 200, {130, 0}, {1, 9}},
           CacheCase{DType::f32, 2, 2, 64, 129, {128}, {1}, false},
           CacheCase{DType::f16, 2, 1, 136, 90, {80, 2}, {3, 1}},  // columns by two CTAs
           // Windows: of one key; that leave out steps of keys; wider than the cache. Caps.
           CacheCase{DType::f32, 4, 1, 20, 200, {130, 0}, {1, 9}, true, DType::i32, 1},
           CacheCase{DType::bf16, 4, 1, 64, 700, {600}, {3}, true, DType::i32, 150},
           CacheCase{DType::f32, 2, 2, 20, 300, {0, 63}, {1, 170}, true, DType::i32, 70, 2},
           CacheCase{DType::bf16, 4, 2, 64, 100, {70}, {5}, true, DType::i32, 1000, 0.5},
       }) {
    expect_definition(
        c, [](const CacheCase& of, CacheOperands& run) { EXPECT_EQ(run_on_host(of, run), 0u); });
  }
}

TEST_F(CudaCachedAttentionHost, ListsOutOfRangeAreNaNAndTold) {
  const CacheCase c{DType::bf16, 2, 1, 64, 100, {10, 20}, {2, 3}};
  const auto run_with = [&](std::int64_t past, std::int64_t offset) {
    CacheOperands run(c, c.dtype), same(c, c.dtype);
    run.past.set(1, static_cast<double>(past));
    run.cu_seqlens.set(1, static_cast<double>(offset));
    EXPECT_EQ(run_on_host(c, run), 1u) << past << " " << offset;
    return run;
  };
  for (const std::int64_t past : {-1, 98, 1 << 30}) {
    const CacheOperands run = run_with(past, 2), same(c, c.dtype);
    for (const std::int64_t row : {0, 1, 2, 3, 4}) {
      EXPECT_EQ(std::isnan(read_element(run.o.view, row, 0)), row >= 2) << row;
    }
    // Nothing of the second sequence was written.
    const auto half = static_cast<std::size_t>(100 * run.cache_k.view.stride) * 2;
    EXPECT_EQ(
        std::memcmp(run.cache_k.view.as<char>() + half, same.cache_k.view.as<char>() + half, half),
        0);
  }
  run_with(20, -5);
  run_with(20, 7);
}

TEST_F(CudaCachedAttentionHost, HugeScoresAndNaN) {
  const CacheCase c{DType::f32, 2, 1, 64, 100, {40}, {3}};
  CacheOperands run(c, c.dtype);
  for (std::int64_t i = 0; i < 64; ++i) {
    write_element(run.q.view, 0, i, 1e15 * read_element(run.q.view, 0, i));
  }
  write_element(run.q.view, 1, 3, NAN);
  write_element(run.v.view, 2, 7, NAN);  // which only the last token sees
  EXPECT_EQ(run_on_host(c, run), 0u);
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_TRUE(std::isfinite(read_element(run.o.view, 0, i)));
    EXPECT_TRUE(std::isnan(read_element(run.o.view, 1, i)));
    EXPECT_TRUE(std::isfinite(read_element(run.o.view, 1, 64 + i)));
    EXPECT_EQ(std::isnan(read_element(run.o.view, 2, i)), i == 7);
  }
}

TEST(CudaCachedAttentionLists, OfOtherLengthsAreErrors) {
  const CacheCase c{DType::bf16, 2, 1, 64, 100, {10, 20}, {2, 3}};
  CacheOperands run(c, c.dtype);
  auto views = run.views();
  views[6].rows = 1;
  try {
    cached_attention_launches(run.attrs, views, run.tokens, nullptr, nullptr);
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "cached_attention: past: expected one entry for each of the 2 sequences, got 1. "
                 "Give the number of rows that each sequence has in the cache.");
  }
  views[6].rows = 2;
  views[3].rows = 100;
  EXPECT_THROW(cached_attention_launches(run.attrs, views, run.tokens, nullptr, nullptr),
               UsageError);
}

}  // namespace
}  // namespace coda::cuda
