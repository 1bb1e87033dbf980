// Cases of attention to a cache, run by the kernels' text compiled for the host or by a GPU, and
// compared with the definition in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "backend/cached_attention_attrs.h"
#include "backend/cuda/attention_case.h"
#include "backend/cuda/cached_attention.h"

namespace coda::cuda {

struct CacheCase {
  DType dtype;
  std::int64_t n_heads, n_kv_heads, head_dim, capacity;
  std::vector<std::int64_t> past, added;  ///< rows of each sequence, in the cache and in the run
  bool aligned = true;
  DType lists = DType::i32;
  std::int64_t window = 0;
  double softcap = 0;
};

inline std::string to_text(const CacheCase& c) {
  return fmt::format("{} heads {}/{} of {}, past {}, {} rows, {} sequences, window {}, softcap {}",
                     name_of(c.dtype), c.n_heads, c.n_kv_heads, c.head_dim, c.past.front(),
                     c.added.front(), c.past.size(), c.window, c.softcap);
}

/// Operands of a run. Rows of the caches behind `past`, gaps between rows and o are NaN.
struct CacheOperands {
  Attrs attrs;
  std::int64_t tokens = 0;
  HostTensor cu_seqlens, past;
  Matrix q, k, v, cache_k, cache_v, o;

  CacheOperands(const CacheCase& c, DType dtype) {
    attrs = cached_attention_attrs(c);
    const auto sequences = static_cast<std::int64_t>(c.past.size());
    cu_seqlens = HostTensor(c.lists, sequences + 1, 1);
    past = HostTensor(c.lists, sequences, 1);
    cu_seqlens.set(0, 0);
    for (std::int64_t s = 0; s < sequences; ++s) {
      tokens += c.added[static_cast<std::size_t>(s)];
      cu_seqlens.set(s + 1, static_cast<double>(tokens));
      past.set(s, static_cast<double>(c.past[static_cast<std::size_t>(s)]));
    }
    const auto make = [&](std::int64_t rows, std::int64_t cols, std::int64_t gap) {
      return Matrix(dtype, rows, cols, c.aligned ? (cols + 7) / 8 * 8 + 8 : cols + gap);
    };
    const std::int64_t wide = c.n_heads * c.head_dim, narrow = c.n_kv_heads * c.head_dim;
    q = make(tokens, wide, 1);
    k = make(tokens, narrow, 3);
    v = make(tokens, narrow, 5);
    o = make(tokens, wide, 1);
    cache_k = make(sequences * c.n_kv_heads * c.capacity, c.head_dim, 1);
    cache_v = make(sequences * c.n_kv_heads * c.capacity, c.head_dim, 0);
    std::mt19937 random(7);
    q.fill(random, 2);  // scores of a spread of 2: neither flat nor one key only
    for (Matrix* m : {&k, &v, &cache_k, &cache_v}) m->fill(random, 1);
    for (Matrix* m : {&cache_k, &cache_v}) {
      for (std::int64_t row = 0; row < m->view.rows; ++row) {
        const auto s = static_cast<std::size_t>(row / c.capacity / c.n_kv_heads);
        if (row % c.capacity < c.past[s]) continue;
        for (std::int64_t i = 0; i < c.head_dim; ++i) {
          write_element(m->view, row, i, std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
  }

  std::vector<TensorView> views() const {
    return {q.view,      k.view, v.view, cache_k.view, cache_v.view, cu_seqlens.view(),
            past.view(), o.view};
  }
};

/// Runs it; results land in the operands.
using CacheRunner = std::function<void(const CacheCase&, CacheOperands&)>;

inline bool same_bits(const Matrix& a, const Matrix& b) {
  return std::memcmp(a.memory.view().data, b.memory.view().data, a.memory.view().bytes()) == 0;
}

inline void expect_definition(const CacheCase& c, const CacheRunner& runner) {
  SCOPED_TRACE(to_text(c));
  CacheOperands run(c, c.dtype), same(c, c.dtype);
  Matrix want(DType::f64, run.tokens, run.o.view.cols, run.o.view.cols);
  reference::cached_attention(same.attrs, same.q.view, same.k.view, same.v.view, same.cache_k.view,
                              same.cache_v.view, same.cu_seqlens.view(), same.past.view(),
                              want.view);
  runner(c, run);
  // o is rounded once. Scores of up to 12 carry 12 sqrt(D) eps at most, their relative effect on a
  // weight, and a cap 5 roundings more; e^x 4 eps; sums over up to `keys` keys add sqrt(keys) eps,
  // twice (o and total).
  const double eps = 0x1p-24;
  const auto keys =
      static_cast<double>(*std::max_element(c.past.begin(), c.past.end()) + run.tokens);
  const double sums = eps * (12 * std::sqrt(static_cast<double>(c.head_dim)) +
                             5 * std::min(c.softcap, 12.0) + 4 + 2 * std::sqrt(keys));
  EXPECT_LE(error(run.o, want), 2 * rounding(c.dtype) + sums);
  EXPECT_TRUE(same_bits(run.cache_k, same.cache_k)) << "what else the cache holds stays";
  EXPECT_TRUE(same_bits(run.cache_v, same.cache_v));
}

}  // namespace coda::cuda
