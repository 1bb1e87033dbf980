// Vector kernels of the CPU attention: packing into fp32 panels, a register-blocked product, and
// the softmax steps. Included once per instruction set by Highway's foreach_target.
//
// A product is C[m, n] (+)= A[m, k] B[k, n]. B is packed into panels of kPanel columns, row after
// row, so that a step of the micro-kernel reads two vectors; A is read element by element, with
// any two strides, so that a transposed A needs no copy.

// clang-format off
#if defined(CODA_ATTENTION_KERNELS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_ATTENTION_KERNELS_INL_H
#undef CODA_ATTENTION_KERNELS_INL_H
#else
#define CODA_ATTENTION_KERNELS_INL_H
#endif
// clang-format on

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/cpu/simd_math-inl.h"
#include "base/convert.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu {
namespace HWY_NAMESPACE {

using Mask = hn::Mask<F32>;

inline constexpr std::int64_t kMicroRows = 6;

inline std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(F32())); }
inline std::int64_t panel_width() { return 2 * lanes(); }

// --- memory types ---

HWY_INLINE VF load(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE VF load(const hwy::bfloat16_t* p) {
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, F32>(), p));
}
HWY_INLINE VF load(const hwy::float16_t* p) {
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), p));
}
inline float get(const float* p) { return *p; }
inline float get(const hwy::bfloat16_t* p) { return f32_from_bf16(p->bits); }
inline float get(const hwy::float16_t* p) {
  std::uint16_t bits;  // float16_t is a number of the compiler's where that has one
  std::memcpy(&bits, p, sizeof bits);
  return f32_from_f16(bits);
}

template <class T>
void copy_elements(const T* src, std::int64_t n, float scale, float* dst) {
  const std::int64_t step = lanes();
  const VF factor = hn::Set(F32(), scale);
  std::int64_t c = 0;
  for (; c + step <= n; c += step) hn::StoreU(hn::Mul(load(src + c), factor), F32(), dst + c);
  for (; c < n; ++c) dst[c] = scale * get(src + c);
}

/// dst[0, n) = scale * columns [col, col + n) of a row of `from`; then zeros up to `width`.
inline void copy_row(const TensorView& from, std::int64_t row, std::int64_t col, std::int64_t n,
                     float scale, float* dst, std::int64_t width) {
  const std::int64_t at = row * from.stride + col;
  switch (from.dtype) {
    case DType::bf16:
      copy_elements(from.as<const hwy::bfloat16_t>() + at, n, scale, dst);
      break;
    case DType::f16:
      copy_elements(from.as<const hwy::float16_t>() + at, n, scale, dst);
      break;
    default:
      copy_elements(from.as<const float>() + at, n, scale, dst);
      break;
  }
  for (std::int64_t c = n; c < width; ++c) dst[c] = 0;
}

/// Columns [col, col + n) of a row of `to` = scale * src, rounded.
inline void store_row(const float* src, std::int64_t n, float scale, const TensorView& to,
                      std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * to.stride + col;
  const auto each = [&](auto* dst, auto round) {
    for (std::int64_t c = 0; c < n; ++c) dst[c] = round(scale * src[c]);
  };
  switch (to.dtype) {
    case DType::bf16:
      each(to.as<std::uint16_t>() + at, bf16_from_f32);
      break;
    case DType::f16:
      each(to.as<std::uint16_t>() + at, f16_from_f32);
      break;
    default:
      each(to.as<float>() + at, [](float x) { return x; });
      break;
  }
}

// --- packing ---

/// One fp32 row of `width` columns (a multiple of the panel) as row `r` of the panels of a B with
/// `capacity` rows.
inline void pack_row(const float* row, std::int64_t width, std::int64_t capacity, std::int64_t r,
                     float* panels) {
  const std::int64_t step = lanes(), panel = panel_width();
  for (std::int64_t c = 0; c < width; c += panel) {
    float* dst = panels + (c / panel * capacity + r) * panel;
    hn::StoreU(load(row + c), F32(), dst);
    hn::StoreU(load(row + c + step), F32(), dst + step);
  }
}

/// One fp32 row of n columns as column `r` of the panels of a B with n rows: packing rows one after
/// another transposes. Panel r / panel_width() starts at a multiple of n * panel_width().
inline void pack_column(const float* row, std::int64_t n, std::int64_t r, float* panels) {
  const std::int64_t panel = panel_width();
  float* dst = panels + r / panel * n * panel + r % panel;
  for (std::int64_t c = 0; c < n; ++c) dst[c * panel] = row[c];
}

// --- products ---

/// A by element: (i, k) is at data[i * row + k * col].
struct Elements {
  const float* data;
  std::int64_t row, col;
};

/// The two vectors at dst (+)= left, right.
HWY_INLINE void store_pair(VF left, VF right, float* dst, bool accumulate) {
  const F32 d;
  if (accumulate) {
    left = hn::Add(left, hn::LoadU(d, dst));
    right = hn::Add(right, hn::LoadU(d, dst + lanes()));
  }
  hn::StoreU(left, d, dst);
  hn::StoreU(right, d, dst + lanes());
}

/// C[kRows, panel] (+)= A[kRows, k] B[k, panel].
template <int kRows>
HWY_INLINE void micro_product(Elements a, const float* HWY_RESTRICT b, std::int64_t k,
                              float* HWY_RESTRICT c, std::int64_t c_row, bool accumulate) {
  const F32 d;
  const std::int64_t step = lanes();
  VF c00 = hn::Zero(d), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00;
  VF c30 = c00, c31 = c00, c40 = c00, c41 = c00, c50 = c00, c51 = c00;
  const float* a0 = a.data;
  const float* a3 = a.data + 3 * a.row;
  for (std::int64_t p = 0; p < k; ++p) {
    const VF b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + step);
    const auto row = [&](int i, VF& left, VF& right) HWY_ATTR {
      const VF value = hn::Set(d, i < 3 ? a0[i * a.row] : a3[(i - 3) * a.row]);
      left = hn::MulAdd(value, b0, left);
      right = hn::MulAdd(value, b1, right);
    };
    row(0, c00, c01);
    if constexpr (kRows > 1) row(1, c10, c11);
    if constexpr (kRows > 2) row(2, c20, c21);
    if constexpr (kRows > 3) row(3, c30, c31);
    if constexpr (kRows > 4) row(4, c40, c41);
    if constexpr (kRows > 5) row(5, c50, c51);
    a0 += a.col;
    a3 += a.col;
    b += 2 * step;
  }
  store_pair(c00, c01, c, accumulate);
  if constexpr (kRows > 1) store_pair(c10, c11, c + 1 * c_row, accumulate);
  if constexpr (kRows > 2) store_pair(c20, c21, c + 2 * c_row, accumulate);
  if constexpr (kRows > 3) store_pair(c30, c31, c + 3 * c_row, accumulate);
  if constexpr (kRows > 4) store_pair(c40, c41, c + 4 * c_row, accumulate);
  if constexpr (kRows > 5) store_pair(c50, c51, c + 5 * c_row, accumulate);
}

/// What of a product is needed for rows [i, i + n): columns [0, columns), terms [first, last).
struct Extent {
  std::int64_t columns, first, last;
};

/// C (+)= A B for rows [begin, end), six at a time. `b_rows` is the row capacity of B's panels,
/// `extent(i, n)` the part that rows [i, i + n) need, which is how causality saves work.
template <class ExtentOf>
void product(std::int64_t begin, std::int64_t end, std::int64_t max_columns, Elements a,
             const float* b, std::int64_t b_rows, float* c, std::int64_t c_row, bool accumulate,
             const ExtentOf& extent) {
  const std::int64_t panel = panel_width();
  for (std::int64_t j = 0; j < max_columns; j += panel) {
    for (std::int64_t i = begin; i < end; i += kMicroRows) {
      const std::int64_t n = std::min(kMicroRows, end - i);
      const Extent need = extent(i, n);
      if (j >= need.columns) continue;
      const Elements part{a.data + i * a.row + need.first * a.col, a.row, a.col};
      const float* from = b + j * b_rows + need.first * panel;
      const std::int64_t k = std::max<std::int64_t>(need.last - need.first, 0);
      float* to = c + i * c_row + j;
      switch (n) {
        case 6:
          micro_product<6>(part, from, k, to, c_row, accumulate);
          break;
        case 5:
          micro_product<5>(part, from, k, to, c_row, accumulate);
          break;
        case 4:
          micro_product<4>(part, from, k, to, c_row, accumulate);
          break;
        case 3:
          micro_product<3>(part, from, k, to, c_row, accumulate);
          break;
        case 2:
          micro_product<2>(part, from, k, to, c_row, accumulate);
          break;
        default:
          micro_product<1>(part, from, k, to, c_row, accumulate);
          break;
      }
    }
  }
}

// --- softmax ---

/// exp(x) within 2 ulp for |x| <= 87; 0 below (where fp32 turns subnormal), inf above; NaN stays
/// NaN. x = q ln 2 + r with |r| <= ln 2 / 2, the polynomial is the Taylor series of exp(r) to r^7.
HWY_INLINE VF exp_within_87(VF x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VF q = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  VF r = hn::NegMulAdd(q, hn::Set(d, 0.693145751953125f), x);  // ln 2 in two parts
  r = hn::NegMulAdd(q, hn::Set(d, 1.428606765330187e-6f), r);
  VF y = hn::Set(d, 1.0f / 5040);
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6));
  y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, q), hn::Set(di, 127)));
  y = hn::Mul(y, hn::BitCast(d, exponent));
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 87.0f)),
                     hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), y);
}

/// Lanes of the vector that starts at column c and are below `valid`.
HWY_INLINE Mask columns_below(std::int64_t valid, std::int64_t c) {
  return hn::FirstN(F32(),
                    static_cast<std::size_t>(std::clamp<std::int64_t>(valid - c, 0, lanes())));
}

/// Largest of s[0, valid), -inf if there is none.
HWY_INLINE float max_of(const float* s, std::int64_t valid) {
  const F32 d;
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF largest = lowest;
  std::int64_t c = 0;
  for (; c + lanes() <= valid; c += lanes()) largest = hn::Max(largest, load(s + c));
  if (c < valid)
    largest = hn::Max(largest, hn::IfThenElse(columns_below(valid, c), load(s + c), lowest));
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// s = softcap tanh(s / softcap) in columns [0, n) and what fills the last vector.
HWY_INLINE void cap_scores(float* s, std::int64_t n, float softcap) {
  const VF cap = constant(softcap), by = constant(1.0f / softcap);
  for (std::int64_t c = 0; c < n; c += lanes())
    hn::StoreU(hn::Mul(cap, tanh(hn::Mul(load(s + c), by))), F32(), s + c);
}

/// slope = 1 / cosh^2(s / softcap), the derivative of a capped score; columns as cap_scores.
HWY_INLINE void cap_slopes(const float* s, std::int64_t n, float softcap, float* slope) {
  const VF one = constant(1.0f), by = constant(-2.0f / softcap);
  for (std::int64_t c = 0; c < n; c += lanes()) {
    const VF e = exp(hn::Mul(hn::Abs(load(s + c)), by));
    const VF root = hn::Add(one, e);
    hn::StoreU(hn::Div(hn::Mul(constant(4.0f), e), hn::Mul(root, root)), F32(), slope + c);
  }
}

/// s = exp(s - shift) in columns [0, valid), 0 in [valid, width); returns the sum.
HWY_INLINE float exponentials(float* s, std::int64_t valid, std::int64_t width, float shift) {
  const F32 d;
  const VF by = hn::Set(d, shift);
  VF total = hn::Zero(d);
  for (std::int64_t c = 0; c < width; c += lanes()) {
    VF p = exp_within_87(hn::Sub(load(s + c), by));
    if (c + lanes() > valid) p = hn::IfThenElseZero(columns_below(valid, c), p);
    hn::StoreU(p, d, s + c);
    total = hn::Add(total, p);
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

/// ds = p * (ds - delta) in columns [0, valid), 0 in [valid, width).
HWY_INLINE void score_gradient(const float* p, float* ds, std::int64_t valid, std::int64_t width,
                               float delta) {
  const F32 d;
  const VF shift = hn::Set(d, delta);
  for (std::int64_t c = 0; c < width; c += lanes()) {
    VF g = hn::Mul(load(p + c), hn::Sub(load(ds + c), shift));
    if (c + lanes() > valid) g = hn::IfThenElseZero(columns_below(valid, c), g);
    hn::StoreU(g, d, ds + c);
  }
}

/// x[0, n) *= factor, n a multiple of the vector.
HWY_INLINE void scale_row(float* x, std::int64_t n, float factor) {
  const VF by = hn::Set(F32(), factor);
  for (std::int64_t c = 0; c < n; c += lanes()) hn::StoreU(hn::Mul(load(x + c), by), F32(), x + c);
}

/// Sum of a * b over n columns, n a multiple of the vector.
HWY_INLINE float dot(const float* a, const float* b, std::int64_t n) {
  VF total = hn::Zero(F32());
  for (std::int64_t c = 0; c < n; c += lanes()) total = hn::MulAdd(load(a + c), load(b + c), total);
  return hn::GetLane(hn::SumOfLanes(F32(), total));
}

}  // namespace HWY_NAMESPACE
}  // namespace coda::cpu
HWY_AFTER_NAMESPACE();

#endif
