// The definition of attention in double, which every backend is compared with: against the formula
// over all pairs of tokens, and its backward against finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/reference/opaque_kernels.h"
#include "coda/tensor.h"

namespace coda {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 3;

/// Operands of both directions in double; random q, k, v and d_o.
struct Attention {
  Attrs attrs;
  std::vector<std::int64_t> sequence_of;  ///< of each token
  HostTensor q, k, v, cu_seqlens, o, lse, d_o, d_q, d_k, d_v;

  Attention(std::int64_t window, double softcap) {
    const std::vector<std::int64_t> ends = {0, 5, 5, 6, 17};
    cu_seqlens = HostTensor(DType::i32, static_cast<std::int64_t>(ends.size()), 1);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      cu_seqlens.set(static_cast<std::int64_t>(i), static_cast<double>(ends[i]));
      while (i > 0 && static_cast<std::int64_t>(sequence_of.size()) < ends[i]) {
        sequence_of.push_back(static_cast<std::int64_t>(i));
      }
    }
    attrs.index = kHeads;
    attrs.index2 = kKvHeads;
    attrs.period = kDim;
    attrs.value = 0.7;
    attrs.lo = window;
    attrs.softcap = softcap;
    std::mt19937 random(5);
    std::normal_distribution<double> normal(0, 1.5);
    const auto make = [&](std::int64_t cols) {
      HostTensor tensor(DType::f64, ends.back(), cols);
      for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, normal(random));
      return tensor;
    };
    q = make(kHeads * kDim), k = make(kKvHeads * kDim), v = make(kKvHeads * kDim);
    d_o = make(kHeads * kDim), o = make(kHeads * kDim), lse = make(kHeads);
    d_q = make(kHeads * kDim), d_k = make(kKvHeads * kDim), d_v = make(kKvHeads * kDim);
  }

  void forward() {
    reference::attention_forward(attrs, q.view(), k.view(), v.view(), cu_seqlens.view(), o.view(),
                                 lse.view());
  }
  void backward() {
    reference::attention_backward(attrs, q.view(), k.view(), v.view(), cu_seqlens.view(), o.view(),
                                  lse.view(), d_o.view(), d_q.view(), d_k.view(), d_v.view());
  }
  /// Of which d_q, d_k and d_v are gradients.
  double loss() {
    forward();
    double total = 0;
    for (std::int64_t i = 0; i < o.size(); ++i) total += o.get(i) * d_o.get(i);
    return total;
  }

  bool sees(std::size_t query, std::size_t key) const {
    return sequence_of[query] == sequence_of[key] && key <= query &&
           (attrs.lo == 0 || static_cast<std::int64_t>(query - key) < attrs.lo);
  }
};

const std::pair<std::int64_t, double> kOptions[] = {{0, 0.0},   {1, 0.0}, {3, 0.0},
                                                    {100, 0.0}, {0, 1.5}, {4, 0.5}};

TEST(AttentionDefinition, IsTheFormulaOverAllPairs) {
  for (const auto& [window, softcap] : kOptions) {
    SCOPED_TRACE(testing::Message() << "window " << window << ", softcap " << softcap);
    Attention a(window, softcap);
    a.forward();
    for (std::size_t t = 0; t < a.sequence_of.size(); ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t g = h / (kHeads / kKvHeads);
        double total = 0, sums[kDim] = {};
        for (std::size_t j = 0; j < a.sequence_of.size(); ++j) {
          if (!a.sees(t, j)) continue;
          const auto row = static_cast<std::int64_t>(j);
          double s = 0;
          for (std::int64_t c = 0; c < kDim; ++c) {
            s += a.q.get((static_cast<std::int64_t>(t) * kHeads + h) * kDim + c) *
                 a.k.get((row * kKvHeads + g) * kDim + c);
          }
          s *= 0.7;
          if (softcap > 0) s = softcap * std::tanh(s / softcap);
          total += std::exp(s);
          for (std::int64_t c = 0; c < kDim; ++c) {
            sums[c] += std::exp(s) * a.v.get((row * kKvHeads + g) * kDim + c);
          }
        }
        const std::int64_t at = static_cast<std::int64_t>(t) * kHeads + h;
        ASSERT_NEAR(a.lse.get(at), std::log(total), 1e-12);
        for (std::int64_t c = 0; c < kDim; ++c) {
          ASSERT_NEAR(a.o.get(at * kDim + c), sums[c] / total, 1e-12);
        }
      }
    }
  }
}

TEST(AttentionDefinition, GradientsAreDifferenceQuotients) {
  constexpr double kStep = 1e-5;  // error kStep^2 of the quotient, 1e-16 / kStep of the difference
  for (const auto& [window, softcap] : kOptions) {
    SCOPED_TRACE(testing::Message() << "window " << window << ", softcap " << softcap);
    Attention a(window, softcap);
    a.forward();
    a.backward();
    for (auto [x, gradient] : {std::pair{&a.q, &a.d_q}, {&a.k, &a.d_k}, {&a.v, &a.d_v}}) {
      for (std::int64_t i = 0; i < x->size(); ++i) {
        const double value = x->get(i);
        x->set(i, value + kStep);
        const double above = a.loss();
        x->set(i, value - kStep);
        const double below = a.loss();
        x->set(i, value);
        ASSERT_NEAR(gradient->get(i), (above - below) / (2 * kStep), 1e-7) << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace coda
