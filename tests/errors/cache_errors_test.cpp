// Mistakes with a cache of keys and values. After each, nothing has been written.
#include <cmath>

#include "coda/backend.h"
#include "coda/compile.h"
#include "errors/expect_error.h"

namespace coda {
namespace {

/// Two heads that share one key-value head of 4; two sequences of up to 8 rows.
class CacheErrors : public testing::Test {
 protected:
  CacheErrors() {
    for (HostTensor* cache : {&cache_k, &cache_v})
      for (std::int64_t i = 0; i < cache->size(); ++i) cache->set(i, std::nan(""));
    Graph g;
    const Tensor o = cached_attention(g.tile("q", 8), g.tile("k", 4), g.tile("v", 4),
                                      g.weight("cache_k", 16, 4), g.weight("cache_v", 16, 4),
                                      g.list("cu_seqlens"), g.list("past"), 2, 1, 4, 8, 0.5);
    CompileRequest request;
    request.outputs.push_back({"o", o, {}, true});
    session = make_cpu_backend(1)->prepare(compile(g, request, {}), 16);
    session->bind("q", q.view());
    session->bind("k", k.view());
    session->bind("v", v.view());
    session->bind("cache_k", cache_k.view());
    session->bind("cache_v", cache_v.view());
    session->bind("o", out.view());
    bind(cu_seqlens, past);
  }

  void bind(std::vector<std::int32_t> offsets, std::vector<std::int32_t> rows) {
    cu_seqlens = std::move(offsets);
    past = std::move(rows);
    const auto list = [](std::vector<std::int32_t>& values) {
      const auto n = static_cast<std::int64_t>(values.size());
      return TensorView{values.data(), DType::i32, 1, n, n};
    };
    session->bind("cu_seqlens", list(cu_seqlens));
    session->bind("past", list(past));
  }

  template <class F>
  void rejects(F mistake, const Message& message) {
    expect_error<UsageError>(mistake, message);
    for (std::int64_t i = 0; i < cache_k.size(); ++i) {
      ASSERT_TRUE(std::isnan(cache_k.get(i)) && std::isnan(cache_v.get(i))) << "a cache changed";
    }
  }

  HostTensor q{DType::f32, 5, 8}, k{DType::f32, 5, 4}, v{DType::f32, 5, 4}, out{DType::f32, 5, 8};
  HostTensor cache_k{DType::f32, 16, 4}, cache_v{DType::f32, 16, 4};
  std::vector<std::int32_t> cu_seqlens{0, 2, 5}, past{0, 0};
  std::unique_ptr<Session> session;
};

TEST_F(CacheErrors, RunsWithoutMistakeAndWritesTheNewRowsOnly) {
  session->run(Phase::forward, 5);
  for (std::int64_t row = 0; row < 16; ++row)
    EXPECT_EQ(std::isnan(cache_k.get(row * 4)), row % 8 >= (row < 8 ? 2 : 3)) << row;
}

TEST_F(CacheErrors, MoreRowsThanTheCapacity) {
  bind({0, 2, 5}, {6, 6});
  rejects([&] { session->run(Phase::forward, 5); },
          {"past: entry 1", "at least 0 and, with the 3 rows of this run, at most 8 (the cache", "6", "larger cache"});
}

TEST_F(CacheErrors, NegativePast) {
  bind({0, 2, 5}, {-1, 0});
  rejects([&] { session->run(Phase::forward, 5); },
          {"past: entry 0", "at least 0", "-1", "Give"});
}

TEST_F(CacheErrors, OtherNumbersOfSequences) {
  bind({0, 2, 5}, {0});
  rejects([&] { session->run(Phase::forward, 5); },
          {"past", "one entry for each of the 2 sequences", "1", "Give the number of rows"});
  bind({0, 2, 4, 5}, {0, 0, 0});
  rejects([&] { session->run(Phase::forward, 5); },
          {"past", "at most 2 sequences", "3", "fewer sequences"});
}

TEST_F(CacheErrors, OneMemoryForBothCaches) {
  session->bind("cache_v", cache_k.view());
  rejects([&] { session->run(Phase::forward, 5); },
          {"input cache_k", "memory of its own", "memory shared with cache_v", "do not overlap"});
}

TEST(CacheGraphErrors, CachesOfAnotherShapeAndGradients) {
  Graph g;
  const auto attend = [&](const char* name, std::int64_t rows, std::int64_t cols) {
    return cached_attention(g.tile("q", 8), g.tile("k", 4), g.tile("v", 4),
                            g.weight(name, rows, cols), g.weight("cache_v", 16, 4), g.list("cu"),
                            g.list("past"), 2, 1, 4, 8, 0.5);
  };
  const Message shape{"opaque",
                      "cached_attention: an input weight [sequences * 1 heads * 8 rows, 4]", "",
                      "one block of rows"};
  expect_error<UsageError>([&] { attend("ragged", 15, 4); }, shape);
  expect_error<UsageError>([&] { attend("narrow", 16, 3); }, shape);
  const Tensor o = attend("cache_k", 16, 4);
  const auto differentiate = [&] { gradients({{o, g.tile("d_o", 8)}}, {g.tile("q", 8)}); };
  expect_error<UsageError>(differentiate,
                           {"gradients: cached_attention", "an operation with a derivative",
                            "one with none", "attention"});
}

}  // namespace
}  // namespace coda
