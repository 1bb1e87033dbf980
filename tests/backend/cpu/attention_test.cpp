// CPU attention and embedding kernels against their scalar definition in double.

#include "backend/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/embedding.h"
#include "backend/element.h"
#include "backend/reference/opaque_kernels.h"

namespace coda {
namespace {

/// A matrix inside wider rows, so that a kernel that ignores the stride is caught.
struct Matrix {
  HostTensor memory;
  TensorView view;

  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0)
      : memory(dtype, rows, cols + gap), view(memory.view()) {
    view.cols = cols;
    if (!is_float(dtype)) return;
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

  bool gap_untouched() const {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      for (std::int64_t c = view.cols; c < memory.cols(); ++c) {
        if (!std::isnan(memory.get(r * memory.cols() + c))) return false;
      }
    }
    return true;
  }
};

/// Largest difference, relative to the largest value expected; infinite if any value is not finite.
double error(const TensorView& got, const TensorView& want) {
  double largest = 0, worst = 0;
  for (std::int64_t r = 0; r < want.rows; ++r) {
    for (std::int64_t c = 0; c < want.cols; ++c) {
      const double x = read_element(got, r, c), y = read_element(want, r, c);
      if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, std::abs(y));
      worst = std::max(worst, std::abs(x - y));
    }
  }
  return largest == 0 ? worst : worst / largest;
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

struct Case {
  std::int64_t n_heads, n_kv_heads, head_dim;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t window = 0;
  double softcap = 0;
};

/// One forward and backward run on the CPU, with what went in.
struct AttentionRun {
  Attrs attrs;
  std::int64_t tokens;
  Matrix cu_seqlens, q, k, v, o, lse, d_o, d_q, d_k, d_v;

  AttentionRun(const Case& c, DType dtype)
      : tokens(c.cu_seqlens.back()),
        cu_seqlens(DType::i32, static_cast<std::int64_t>(c.cu_seqlens.size()), 1),
        q(dtype, tokens, c.n_heads * c.head_dim, 8),
        k(dtype, tokens, c.n_kv_heads * c.head_dim, 3),
        v(dtype, tokens, c.n_kv_heads * c.head_dim, 5),
        o(dtype, tokens, c.n_heads * c.head_dim, 1),
        lse(DType::f32, tokens, c.n_heads),
        d_o(dtype, tokens, c.n_heads * c.head_dim, 2),
        d_q(dtype, tokens, c.n_heads * c.head_dim, 4),
        d_k(dtype, tokens, c.n_kv_heads * c.head_dim, 7),
        d_v(dtype, tokens, c.n_kv_heads * c.head_dim) {
    attrs.index = static_cast<std::int32_t>(c.n_heads);
    attrs.index2 = static_cast<std::int32_t>(c.n_kv_heads);
    attrs.period = c.head_dim;
    attrs.value = 1 / std::sqrt(static_cast<double>(c.head_dim));
    attrs.lo = c.window;
    attrs.softcap = c.softcap;
    std::mt19937 random(7);
    q.fill(random, 2);  // scores of a spread of 2: neither flat nor one key only
    k.fill(random, 1);
    v.fill(random, 1);
    d_o.fill(random, 1);
    for (std::size_t i = 0; i < c.cu_seqlens.size(); ++i) {
      cu_seqlens.memory.set(static_cast<std::int64_t>(i), c.cu_seqlens[i]);
    }
  }

  void run(int threads) {
    cpu::ThreadPool pool(threads);
    call(cpu::kAttention, pool, {q.view, k.view, v.view, cu_seqlens.view}, {o.view, lse.view});
    call(cpu::kAttentionBackward, pool,
         {q.view, k.view, v.view, cu_seqlens.view, o.view, lse.view, d_o.view},
         {d_q.view, d_k.view, d_v.view});
  }

 private:
  void call(const cpu::OpaqueKernel& kernel, cpu::ThreadPool& pool, std::vector<TensorView> inputs,
            std::vector<TensorView> outputs) {
    const auto bytes =
        static_cast<std::int64_t>(kernel.workspace_bytes(attrs, tokens, pool.threads()));
    Matrix workspace(DType::f32, 1, bytes / 4);  // poisoned
    kernel.run({attrs, tokens, inputs, outputs,
                std::span(workspace.view.as<std::byte>(), static_cast<std::size_t>(bytes)), pool});
  }
};

/// Half a unit in the last place of 1.
double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-12 : 0x1p-25;
}

const Case kCases[] = {
    {1, 1, 16, {0, 1}},
    {4, 2, 16, {0, 33}},
    {3, 3, 16, {0, 7}},
    {6, 2, 20, {0, 5, 5, 6, 140}},          // an empty sequence, one of one token
    {8, 1, 64, {0, 100, 300}},              // blocks of 48 queries
    {2, 2, 5, {0, 0, 129, 129, 258, 387}},  // empty ones at the start and inside
    {2, 1, 128, {0, 300}},
    {2, 2, 33, {0, 97, 193}},
    {1, 1, 1, {0, 50}},
    // Windows of one key, within a block of keys, across blocks, of whole blocks, and wider than
    // any sequence; of rows that see nothing of a block in between.
    {3, 3, 16, {0, 7}, 1},
    {4, 2, 20, {0, 5, 5, 6, 300}, 1},
    {2, 1, 64, {0, 300}, 7},
    {8, 2, 33, {0, 129, 400}, 128},
    {2, 1, 128, {0, 500}, 131},
    {2, 2, 5, {0, 0, 129, 129, 258, 387}, 100},
    {4, 2, 16, {0, 140}, 1000},
    {2, 1, 20, {0, 70}, std::numeric_limits<std::int64_t>::max()},
    {1, 1, 1, {0, 50}, 2},
    // Caps that bend every score, most, and none.
    {4, 2, 16, {0, 33}, 0, 0.5},
    {6, 2, 20, {0, 5, 5, 6, 140}, 0, 3},
    {2, 1, 128, {0, 300}, 0, 50},
    {2, 2, 33, {0, 97, 300}, 40, 2},
};

TEST(CpuAttention, AgreesWithTheDefinition) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", head_dim " + std::to_string(c.head_dim) +
                   ", M " + std::to_string(c.cu_seqlens.back()) + ", window " +
                   std::to_string(c.window) + ", softcap " + std::to_string(c.softcap));
      AttentionRun run(c, dtype);
      run.run(2);
      Matrix o(DType::f64, run.tokens, run.q.view.cols), lse(DType::f64, run.tokens, c.n_heads);
      Matrix d_q(DType::f64, run.tokens, run.q.view.cols);
      Matrix d_k(DType::f64, run.tokens, run.k.view.cols);
      Matrix d_v(DType::f64, run.tokens, run.k.view.cols);
      reference::attention_forward(run.attrs, run.q.view, run.k.view, run.v.view,
                                   run.cu_seqlens.view, o.view, lse.view);
      reference::attention_backward(run.attrs, run.q.view, run.k.view, run.v.view,
                                    run.cu_seqlens.view, run.o.view, lse.view, run.d_o.view,
                                    d_q.view, d_k.view, d_v.view);
      // The result's own rounding, and fp32 sums: a score of up to 12 carries 12 * sqrt(D) eps at
      // most, which is its relative effect on p; sums over D features and up to M tokens add
      // sqrt(D + M) eps. Gradients do that twice. A cap rounds scores 5 times more.
      const double eps = 0x1p-24;
      const double spread = std::sqrt(static_cast<double>(c.head_dim + run.tokens));
      const double sums = eps * ((12 + 1) * spread + 5 * std::min(c.softcap, 12.0));
      EXPECT_LE(error(run.o.view, o.view), rounding(dtype) * 2 + sums);
      EXPECT_LE(error(run.lse.view, lse.view), sums);
      EXPECT_LE(error(run.d_q.view, d_q.view), rounding(dtype) * 2 + 2 * sums);
      EXPECT_LE(error(run.d_k.view, d_k.view), rounding(dtype) * 2 + 2 * sums);
      EXPECT_LE(error(run.d_v.view, d_v.view), rounding(dtype) * 2 + 2 * sums);
      for (const Matrix* m : {&run.o, &run.d_q, &run.d_k, &run.d_v}) {
        EXPECT_TRUE(m->gap_untouched());
      }
    }
  }
}

TEST(CpuAttention, BitsDoNotDependOnThreads) {
  for (const Case& c : kCases) {
    AttentionRun one(c, DType::bf16), many(c, DType::bf16);
    one.run(1);
    many.run(5);
    EXPECT_TRUE(same_bits(one.o.memory, many.o.memory));
    EXPECT_TRUE(same_bits(one.lse.memory, many.lse.memory));
    EXPECT_TRUE(same_bits(one.d_q.memory, many.d_q.memory));
    EXPECT_TRUE(same_bits(one.d_k.memory, many.d_k.memory));
    EXPECT_TRUE(same_bits(one.d_v.memory, many.d_v.memory));
  }
}

TEST(CpuAttention, ASequenceDoesNotSeeItsNeighbours) {
  // Tokens 40 to 139 alone, and behind and before others.
  AttentionRun packed({4, 2, 24, {0, 40, 140, 151}}, DType::f32),
      alone({4, 2, 24, {0, 100}}, DType::f32);
  for (auto [whole, part] : {std::pair{&packed.q, &alone.q}, std::pair{&packed.k, &alone.k},
                             std::pair{&packed.v, &alone.v}, std::pair{&packed.d_o, &alone.d_o}}) {
    for (std::int64_t r = 0; r < 100; ++r) {
      for (std::int64_t c = 0; c < part->view.cols; ++c) {
        write_element(part->view, r, c, read_element(whole->view, r + 40, c));
      }
    }
  }
  packed.run(2);
  alone.run(2);
  for (auto [whole, part] : {std::pair{&packed.o, &alone.o}, std::pair{&packed.lse, &alone.lse},
                             std::pair{&packed.d_q, &alone.d_q}, std::pair{&packed.d_k, &alone.d_k},
                             std::pair{&packed.d_v, &alone.d_v}}) {
    for (std::int64_t r = 0; r < 100; ++r) {
      for (std::int64_t c = 0; c < part->view.cols; ++c) {
        ASSERT_EQ(read_element(whole->view, r + 40, c), read_element(part->view, r, c));
      }
    }
  }
}

TEST(CpuAttention, AWindowHidesWhatLiesBeforeIt) {
  // What sees a key of NaN is NaN; products take six queries at a time, so that five beside may be.
  AttentionRun run({2, 1, 16, {0, 300}, 9}, DType::f32);
  for (std::int64_t c = 0; c < 16; ++c) {
    write_element(run.k.view, 140, c, std::numeric_limits<double>::quiet_NaN());
    write_element(run.v.view, 140, c, std::numeric_limits<double>::quiet_NaN());
  }
  run.run(2);
  for (std::int64_t t = 0; t < 300; ++t) {
    const bool sees = t >= 140 && t < 140 + 9, beside = t >= 140 - 5 && t < 140 + 9 + 5;
    for (const Matrix* m : {&run.o, &run.d_q}) {
      if (sees) {
        EXPECT_TRUE(std::isnan(read_element(m->view, t, 3))) << t;
      }
      if (!beside) {
        EXPECT_FALSE(std::isnan(read_element(m->view, t, 3))) << t;
      }
    }
  }
}

TEST(CpuAttention, NoTokensIsFine) {
  AttentionRun run({4, 2, 16, {0, 0}}, DType::f32);
  run.run(2);
}

TEST(CpuAttention, NaNAndLargeScores) {
  AttentionRun run({1, 1, 16, {0, 130}}, DType::f32);
  write_element(run.q.view, 5, 3, std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t c = 0; c < 16; ++c) {
    write_element(run.q.view, 129, c, 1e3 * read_element(run.q.view, 129, c));
  }
  run.run(1);
  for (std::int64_t c = 0; c < 16; ++c) {
    EXPECT_TRUE(std::isnan(read_element(run.o.view, 5, c)));
    EXPECT_TRUE(std::isfinite(read_element(run.o.view, 4, c)));
    EXPECT_TRUE(std::isfinite(read_element(run.o.view, 129, c)));
    EXPECT_TRUE(std::isnan(read_element(run.d_q.view, 5, c)));
    EXPECT_TRUE(std::isnan(read_element(run.d_k.view, 5, c)));
    EXPECT_TRUE(std::isfinite(read_element(run.d_k.view, 6, c)));
  }
}

TEST(CpuEmbedding, GathersAndAddsInOrder) {
  const std::int64_t vocab = 11, dim = 70, tokens = 200;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType ids_dtype : {DType::i32, DType::i64}) {
      std::mt19937 random(3);
      Matrix table(dtype, vocab, dim, 3), ids(ids_dtype, tokens, 1), x(dtype, tokens, dim, 1);
      Matrix d_x(dtype, tokens, dim, 2), d_table(DType::f32, vocab, dim, 5);
      table.fill(random, 1);
      d_x.fill(random, 1);
      for (std::int64_t r = 0; r < tokens; ++r) {
        ids.memory.set(r, static_cast<double>(random() % (vocab - 1)));  // the last is never used
      }
      const Attrs attrs;
      cpu::ThreadPool pool(3);
      const std::vector<TensorView> in{table.view, ids.view}, out{x.view};
      cpu::kEmbedding.run({attrs, tokens, in, out, {}, pool});
      const std::vector<TensorView> back_in{ids.view, d_x.view}, back_out{d_table.view};
      cpu::kEmbeddingBackward.run({attrs, tokens, back_in, back_out, {}, pool});
      for (std::int64_t c = 0; c < dim; ++c) {
        std::vector<float> sums(static_cast<std::size_t>(vocab), 0.0f);
        for (std::int64_t r = 0; r < tokens; ++r) {
          const auto id = static_cast<std::int64_t>(ids.memory.get(r));
          ASSERT_EQ(read_element(x.view, r, c), read_element(table.view, id, c));
          sums[static_cast<std::size_t>(id)] += static_cast<float>(read_element(d_x.view, r, c));
        }
        for (std::int64_t id = 0; id < vocab; ++id) {
          ASSERT_EQ(read_element(d_table.view, id, c), sums[static_cast<std::size_t>(id)]);
        }
      }
      EXPECT_TRUE(x.gap_untouched() && d_table.gap_untouched());
    }
  }
}

}  // namespace
}  // namespace coda
