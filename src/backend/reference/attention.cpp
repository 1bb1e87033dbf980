// Attention as its definition says, one score at a time, in double.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/element.h"
#include "backend/reference/opaque_kernels.h"

namespace coda::reference {
namespace {

struct Heads {
  std::int64_t count, group, dim;  ///< query heads, query heads per key-value head, dimension

  explicit Heads(const Attrs& attrs)
      : count(attrs.index), group(attrs.index / attrs.index2), dim(attrs.period) {}
};

std::int64_t offset(const TensorView& cu_seqlens, std::int64_t i) {
  return cu_seqlens.dtype == DType::i64 ? cu_seqlens.as<std::int64_t>()[i]
                                        : cu_seqlens.as<std::int32_t>()[i];
}

/// Calls body(begin, t, h) for every token t of every sequence, which begins at `begin`, and every
/// query head.
template <class Body>
void for_each_query(const Heads& heads, const TensorView& cu_seqlens, const Body& body) {
  const std::int64_t sequences = cu_seqlens.rows * cu_seqlens.cols - 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t begin = offset(cu_seqlens, s), end = offset(cu_seqlens, s + 1);
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads.count; ++h) body(begin, t, h);
    }
  }
}

/// Head `a_head` of row `a_row` times head `b_head` of row `b_row`.
double dot(const TensorView& a, std::int64_t a_row, std::int64_t a_head, const TensorView& b,
           std::int64_t b_row, std::int64_t b_head, std::int64_t dim) {
  double total = 0;
  for (std::int64_t c = 0; c < dim; ++c) {
    total += read_element(a, a_row, a_head * dim + c) * read_element(b, b_row, b_head * dim + c);
  }
  return total;
}

/// The first key that the query at `t` sees, of those from `begin` on.
std::int64_t first_key(const Attrs& attrs, std::int64_t begin, std::int64_t t) {
  return attrs.lo > 0 ? std::max(begin, t - attrs.lo + 1) : begin;
}

/// A score, and its derivative by q . k.
struct Score {
  double value, slope;
};

Score score(const Attrs& attrs, double product) {
  const double scaled = attrs.value * product;
  if (attrs.softcap == 0) return {scaled, attrs.value};
  const double x = scaled / attrs.softcap;
  return {attrs.softcap * std::tanh(x), attrs.value / (std::cosh(x) * std::cosh(x))};
}

/// Of query (t, h) against keys [first, t].
std::vector<Score> scores(const Attrs& attrs, const TensorView& q, const TensorView& k,
                          std::int64_t first, std::int64_t t, std::int64_t h) {
  const Heads heads(attrs);
  std::vector<Score> s;
  for (std::int64_t j = first; j <= t; ++j) {
    s.push_back(score(attrs, dot(q, t, h, k, j, h / heads.group, heads.dim)));
  }
  return s;
}

double largest_of(const std::vector<Score>& scores) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const Score& s : scores) largest = std::max(largest, s.value);
  return largest;
}

}  // namespace

void attention_forward(const Attrs& attrs, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& cu_seqlens, const TensorView& o,
                       const TensorView& lse) {
  const Heads heads(attrs);
  for_each_query(heads, cu_seqlens, [&](std::int64_t begin, std::int64_t t, std::int64_t h) {
    const std::int64_t first = first_key(attrs, begin, t);
    const std::vector<Score> s = scores(attrs, q, k, first, t, h);
    const double largest = largest_of(s);
    double total = 0;
    for (const Score& x : s) total += std::exp(x.value - largest);
    for (std::int64_t c = 0; c < heads.dim; ++c) {
      double value = 0;
      for (std::size_t j = 0; j < s.size(); ++j) {
        value +=
            std::exp(s[j].value - largest) / total *
            read_element(v, first + static_cast<std::int64_t>(j), h / heads.group * heads.dim + c);
      }
      write_element(o, t, h * heads.dim + c, value);
    }
    write_element(lse, t, h, largest + std::log(total));
  });
}

void cached_attention(const Attrs& attrs, const TensorView& q, const TensorView& k,
                      const TensorView& v, const TensorView& cache_k, const TensorView& cache_v,
                      const TensorView& cu_seqlens, const TensorView& past, const TensorView& o) {
  const Heads heads(attrs);
  const std::int64_t kv_heads = attrs.index2, capacity = attrs.hi;
  const std::int64_t sequences = cu_seqlens.rows * cu_seqlens.cols - 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t begin = offset(cu_seqlens, s), end = offset(cu_seqlens, s + 1);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t at = offset(past, s) + t - begin;
      for (std::int64_t c = 0; c < kv_heads * heads.dim; ++c) {
        const std::int64_t row = (s * kv_heads + c / heads.dim) * capacity + at;
        write_element(cache_k, row, c % heads.dim, read_element(k, t, c));
        write_element(cache_v, row, c % heads.dim, read_element(v, t, c));
      }
    }
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads.count; ++h) {
        const std::int64_t first = (s * kv_heads + h / heads.group) * capacity;
        const std::int64_t place = offset(past, s) + t - begin;  // of the query in its sequence
        const std::int64_t key = first_key(attrs, 0, place);
        std::vector<double> weights;
        for (std::int64_t j = key; j <= place; ++j) {
          weights.push_back(score(attrs, dot(q, t, h, cache_k, first + j, 0, heads.dim)).value);
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& w : weights) total += w = std::exp(w - largest);
        for (std::int64_t c = 0; c < heads.dim; ++c) {
          double value = 0;
          for (std::int64_t j = key; j <= place; ++j) {
            value += weights[static_cast<std::size_t>(j - key)] / total *
                     read_element(cache_v, first + j, c);
          }
          write_element(o, t, h * heads.dim + c, value);
        }
      }
    }
  }
}

void attention_backward(const Attrs& attrs, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& cu_seqlens, const TensorView& o,
                        const TensorView& lse, const TensorView& d_o, const TensorView& d_q,
                        const TensorView& d_k, const TensorView& d_v) {
  const Heads heads(attrs);
  std::vector<double> q_sum(static_cast<std::size_t>(d_q.rows * d_q.cols), 0.0);
  std::vector<double> k_sum(static_cast<std::size_t>(d_k.rows * d_k.cols), 0.0);
  std::vector<double> v_sum(static_cast<std::size_t>(d_v.rows * d_v.cols), 0.0);
  const auto at = [](std::vector<double>& sums, const TensorView& like, std::int64_t row,
                     std::int64_t col) -> double& {
    return sums[static_cast<std::size_t>(row * like.cols + col)];
  };
  for_each_query(heads, cu_seqlens, [&](std::int64_t begin, std::int64_t t, std::int64_t h) {
    const std::int64_t g = h / heads.group;
    const std::int64_t first = first_key(attrs, begin, t);
    const std::vector<Score> s = scores(attrs, q, k, first, t, h);
    const double log_total = read_element(lse, t, h);
    const double delta = dot(d_o, t, h, o, t, h, heads.dim);
    for (std::size_t i = 0; i < s.size(); ++i) {
      const std::int64_t j = first + static_cast<std::int64_t>(i);
      const double p = std::exp(s[i].value - log_total);
      const double ds = p * (dot(d_o, t, h, v, j, g, heads.dim) - delta);
      for (std::int64_t c = 0; c < heads.dim; ++c) {
        const std::int64_t qc = h * heads.dim + c, kc = g * heads.dim + c;
        at(q_sum, d_q, t, qc) += s[i].slope * ds * read_element(k, j, kc);
        at(k_sum, d_k, j, kc) += s[i].slope * ds * read_element(q, t, qc);
        at(v_sum, d_v, j, kc) += p * read_element(d_o, t, qc);
      }
    }
  });
  const auto store = [&](std::vector<double>& sums, const TensorView& to) {
    for (std::int64_t r = 0; r < to.rows; ++r) {
      for (std::int64_t c = 0; c < to.cols; ++c) write_element(to, r, c, at(sums, to, r, c));
    }
  };
  store(q_sum, d_q);
  store(k_sum, d_k);
  store(v_sum, d_v);
}

}  // namespace coda::reference
