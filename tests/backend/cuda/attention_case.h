// Cases of attention, run by the kernels' text compiled for the host or by a GPU, and compared with
// the definition in double.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/element.h"
#include "backend/reference/opaque_kernels.h"
#include "coda/tensor.h"

namespace coda::cuda {

struct Case {
  DType dtype;
  std::int64_t n_heads, n_kv_heads, head_dim;
  std::vector<std::int64_t> cu_seqlens;
  bool aligned = true;
  DType offsets = DType::i32;
  std::int64_t window = 0;
  double softcap = 0;
};

inline AttentionVariant variant_of(const Case& c, bool backward) {
  AttentionVariant variant;
  variant.dtype = c.dtype;
  variant.head_dim = c.head_dim;
  variant.backward = backward;
  variant.window = c.window > 0;
  variant.softcap = c.softcap > 0;
  return variant;
}

inline std::string to_text(const Case& c) {
  return fmt::format("{} heads {}/{} of {}, M {}, {} sequences, window {}, softcap {}",
                     name_of(c.dtype), c.n_heads, c.n_kv_heads, c.head_dim, c.cu_seqlens.back(),
                     c.cu_seqlens.size() - 1, c.window, c.softcap);
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
    attrs.lo = c.window;
    attrs.softcap = c.softcap;
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
inline double error(const Matrix& got, const Matrix& want) {
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
inline double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-12 : 0x1p-25;
}

inline void expect_definition(const Case& c, const Runner& runner) {
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
  // add sqrt(D + M) eps. Gradients do that twice. e^x itself: 4 eps. A cap rounds scores 5 times
  // more.
  const double eps = 0x1p-24;
  const double sums =
      eps * ((12 + 1 + 4) * std::sqrt(static_cast<double>(c.head_dim + run.tokens)) +
             5 * std::min(c.softcap, 12.0));
  const double limit = 3 * rounding(c.dtype) + sums;
  EXPECT_LE(error(run.o, want.o), limit) << "o";
  EXPECT_LE(error(run.lse, want.lse), sums) << "lse";
  EXPECT_LE(error(run.d_q, want.d_q), limit + sums) << "d_q";
  EXPECT_LE(error(run.d_k, want.d_k), limit + sums) << "d_k";
  EXPECT_LE(error(run.d_v, want.d_v), limit + sums) << "d_v";
}

}  // namespace coda::cuda
