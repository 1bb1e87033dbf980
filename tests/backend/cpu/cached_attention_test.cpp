// Attention to a cache on the CPU: against its scalar definition in double, and against itself.

#include "backend/cpu/cached_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cached_attention_attrs.h"
#include "backend/element.h"
#include "backend/reference/opaque_kernels.h"

namespace coda {
namespace {

struct Case {
  std::int64_t n_heads, n_kv_heads, head_dim, capacity;
  std::vector<std::int32_t> past, added;  ///< rows of each sequence, in the cache and in the run
  DType dtype = DType::f32;
  std::int64_t window = 0;
  double softcap = 0;
};

// One query in a long cache (split by chunks), a prompt, several sequences, group sizes that do and
// do not fill a block, head dimensions with and without whole vectors, ends of chunks of 256 keys.
const Case kCases[] = {
    {4, 4, 64, 700, {600}, {1}},
    {4, 2, 16, 600, {0}, {600}},
    {6, 2, 8, 520, {255, 0, 511}, {2, 5, 1}},
    {8, 1, 32, 300, {256, 20}, {1, 40}},
    {3, 3, 6, 300, {250}, {20}},
    {5, 5, 20, 40, {3, 0}, {0, 7}},
    {4, 2, 64, 600, {530}, {1}, DType::bf16},
    {4, 4, 16, 600, {100}, {300}, DType::bf16},
    {2, 1, 12, 300, {270}, {3}, DType::bf16},
    {2, 2, 16, 300, {270}, {3}, DType::f16},
    // windows of one key, that begin inside a chunk, that leave chunks out, wider than the cache
    {4, 2, 16, 600, {0}, {600}, DType::f32, 1},
    {6, 2, 8, 520, {255, 0, 511}, {2, 5, 1}, DType::f32, 3},
    {4, 4, 64, 1200, {1100}, {1}, DType::bf16, 300},
    {4, 2, 16, 900, {500}, {300}, DType::f32, 260},
    {2, 1, 12, 300, {270}, {3}, DType::f32, 1000},
    {4, 2, 64, 700, {600}, {1}, DType::f32, 0, 3},
    {8, 1, 32, 600, {256, 20}, {1, 340}, DType::f32, 70, 0.5},
};

HostTensor random_tensor(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& random) {
  HostTensor tensor(dtype, rows, cols);
  std::normal_distribution<double> normal(0, 1);
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, normal(random));
  return tensor;
}

HostTensor copy_of(const HostTensor& from) {
  HostTensor to(from.dtype(), from.rows(), from.cols());
  std::memcpy(to.view().data, from.view().data, from.view().bytes());
  return to;
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

/// What a run reads and writes. Rows of the cache behind `past` are NaN.
struct Inputs {
  Attrs attrs;
  std::int64_t tokens = 0;
  HostTensor q, k, v, cache_k, cache_v, o;
  std::vector<std::int32_t> cu_seqlens{0}, past;

  explicit Inputs(const Case& c) : past(c.past) {
    attrs = cached_attention_attrs(c);
    for (const std::int32_t n : c.added) cu_seqlens.push_back(cu_seqlens.back() + n);
    tokens = cu_seqlens.back();
    std::mt19937 random(7);
    q = random_tensor(c.dtype, tokens, c.n_heads * c.head_dim, random);
    k = random_tensor(c.dtype, tokens, c.n_kv_heads * c.head_dim, random);
    v = random_tensor(c.dtype, tokens, c.n_kv_heads * c.head_dim, random);
    const auto sequences = static_cast<std::int64_t>(past.size());
    cache_k = random_tensor(c.dtype, sequences * c.n_kv_heads * c.capacity, c.head_dim, random);
    cache_v = random_tensor(c.dtype, sequences * c.n_kv_heads * c.capacity, c.head_dim, random);
    for (std::int64_t row = 0; row < cache_k.rows(); ++row) {
      if (row % c.capacity < past[static_cast<std::size_t>(row / c.capacity / c.n_kv_heads)])
        continue;
      for (std::int64_t i = row * c.head_dim; i < (row + 1) * c.head_dim; ++i) {
        cache_k.set(i, std::nan(""));
        cache_v.set(i, std::nan(""));
      }
    }
    o = HostTensor(c.dtype, tokens, c.n_heads * c.head_dim);
    for (std::int64_t i = 0; i < o.size(); ++i) o.set(i, std::nan(""));
  }

  static TensorView list(std::vector<std::int32_t>& values) {
    return {values.data(), DType::i32, 1, static_cast<std::int64_t>(values.size()),
            static_cast<std::int64_t>(values.size())};
  }

  void run(cpu::ThreadPool& pool) {
    const std::size_t bytes = cpu::kCachedAttention.workspace_bytes(attrs, tokens, pool.threads());
    std::vector<float> workspace(bytes / sizeof(float), std::nanf(""));
    const std::vector<TensorView> in{q.view(),       k.view(),         v.view(),  cache_k.view(),
                                     cache_v.view(), list(cu_seqlens), list(past)};
    const std::vector<TensorView> out{o.view()};
    cpu::kCachedAttention.run(
        {attrs, tokens, in, out, std::as_writable_bytes(std::span(workspace)), pool});
  }

  /// In double, of the same caches.
  HostTensor expected(HostTensor& keys, HostTensor& values) {
    HostTensor want(DType::f64, o.rows(), o.cols());
    reference::cached_attention(attrs, q.view(), k.view(), v.view(), keys.view(), values.view(),
                                list(cu_seqlens), list(past), want.view());
    return want;
  }
};

TEST(CpuCachedAttention, AgreesWithItsDefinitionInDouble) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message()
                 << c.n_heads << "/" << c.n_kv_heads << " heads of " << c.head_dim << ", past "
                 << c.past[0] << ", " << name_of(c.dtype) << ", window " << c.window << ", softcap "
                 << c.softcap);
    for (const int threads : {1, 3}) {
      Inputs inputs(c);
      HostTensor keys = copy_of(inputs.cache_k), values = copy_of(inputs.cache_v);
      const HostTensor want = inputs.expected(keys, values);
      cpu::ThreadPool pool(threads);
      inputs.run(pool);
      // u = 2^-24. A score s is a sum of head_dim products, each below 6 sigma squared, times the
      // scale: |ds| <= (head_dim + 1) u * sqrt(head_dim) * 36, far from reached; a sum of random
      // terms stays below its square root: 6 sqrt(head_dim) u. exp adds 4 u. The weighted sum adds
      // up to 256 terms of a chunk and a few chunks: (256 + 8) u of sum p |v|, again at worst. Both
      // act on a mean of values below 5, twice (numerator and sum).
      const double u = 0x1p-24, dim = static_cast<double>(c.head_dim);
      // A cap rounds scores 5 times more.
      double tolerance = 2 * 5 * (6 * std::sqrt(dim) + 4 + 5 * std::min(c.softcap, 6.0) + 264) * u;
      const double rounding = c.dtype == DType::bf16 ? 0x1p-8 : c.dtype == DType::f16 ? 0x1p-11 : 0;
      for (std::int64_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(inputs.o.get(i), want.get(i), tolerance + rounding * std::abs(want.get(i)))
            << "element " << i << " with " << threads << " threads";
      }
      EXPECT_TRUE(same_bits(inputs.cache_k, keys)) << "and nothing else in the cache changed";
      EXPECT_TRUE(same_bits(inputs.cache_v, values));
    }
  }
}

void expect_bits_of_any_run(const Case& whole) {
  Inputs at_once(whole);
  cpu::ThreadPool one(1), four(4);
  at_once.run(one);
  for (const std::int64_t step : {1, 7, 200}) {
    Inputs parts(whole);
    HostTensor o = copy_of(parts.o);
    const HostTensor q = copy_of(parts.q), k = copy_of(parts.k), v = copy_of(parts.v);
    for (std::int64_t t = 0; t < 450; t += step) {
      const std::int64_t n = std::min<std::int64_t>(step, 450 - t);
      const auto rows = [&](const HostTensor& from) {
        HostTensor to(DType::f32, n, from.cols());
        for (std::int64_t i = 0; i < to.size(); ++i) to.set(i, from.get(t * from.cols() + i));
        return to;
      };
      parts.q = rows(q), parts.k = rows(k), parts.v = rows(v), parts.o = rows(o);
      parts.tokens = n;
      parts.cu_seqlens = {0, static_cast<std::int32_t>(n)};
      parts.past = {static_cast<std::int32_t>(90 + t)};
      parts.run(four);
      for (std::int64_t i = 0; i < parts.o.size(); ++i) o.set(t * o.cols() + i, parts.o.get(i));
    }
    EXPECT_TRUE(same_bits(o, at_once.o)) << step << " rows at a time";
  }
}

TEST(CpuCachedAttention, BitsDependNeitherOnThreadsNorOnHowManyRowsARunHas) {
  expect_bits_of_any_run({6, 2, 24, 600, {90}, {450}});
  expect_bits_of_any_run({6, 2, 24, 600, {90}, {450}, DType::f32, 33, 4});
}

TEST(CpuCachedAttention, InfiniteScoresGiveWhatSoftmaxGives) {
  // A key of -inf has weight 0, in a chunk of its own too; NaN stays NaN.
  Inputs inputs({1, 1, 8, 600, {520}, {1}});
  for (std::int64_t i = 0; i < 8; ++i) inputs.q.set(i, 1.0);
  for (std::int64_t i = 256 * 8; i < 512 * 8; ++i) inputs.cache_k.set(i, -HUGE_VAL);
  HostTensor keys = copy_of(inputs.cache_k), values = copy_of(inputs.cache_v);
  const HostTensor want = inputs.expected(keys, values);
  cpu::ThreadPool pool(2);
  inputs.run(pool);
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_NEAR(inputs.o.get(i), want.get(i), 3e-4);
  inputs.cache_k.set(3, std::nan(""));
  inputs.run(pool);
  EXPECT_TRUE(std::isnan(inputs.o.get(0)));
}

}  // namespace
}  // namespace coda
