// Elementary functions on vectors of fp32, compiled once for every instruction set. NaN and
// infinities follow IEEE; bounds are the largest errors met over a dense sweep of each range
// (tests/backend/cpu/kernels_test.cpp holds them to it). Coefficients are minimax fits in double.
//
// Included inside kernels only, between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE.
#if defined(CODA_CPU_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_CPU_SIMD_MATH_INL_H
#undef CODA_CPU_SIMD_MATH_INL_H
#else
#define CODA_CPU_SIMD_MATH_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// At most 16 lanes, so that every instruction set can follow the same order of summation.
using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;

HWY_INLINE VF constant(float value) { return hn::Set(F32(), value); }

/// a[0] + a[1] x + a[2] x^2 + ...
template <std::size_t n>
HWY_INLINE VF polynomial(VF x, const float (&a)[n]) {
  VF sum = constant(a[n - 1]);
  for (std::size_t i = n - 1; i-- > 0;) sum = hn::MulAdd(sum, x, constant(a[i]));
  return sum;
}

/// x 2^k for k in [-252, 254], in two exact steps but for one rounding into a subnormal.
HWY_INLINE VF scale_by_power(VF x, hn::Vec<I32> k) {
  const I32 di;
  const auto half = hn::ShiftRight<1>(k);
  const auto power = [&](hn::Vec<I32> e) {
    return hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127))));
  };
  return hn::Mul(hn::Mul(x, power(half)), power(hn::Sub(k, half)));
}

/// x bounded to [lo, hi]; NaN stays NaN.
HWY_INLINE VF clamp(VF x, float lo, float hi) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  // MINPS and MAXPS return their second operand if either is NaN.
  return hn::Max(constant(lo), hn::Min(constant(hi), x));
#else
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Max(constant(lo), hn::Min(constant(hi), x)));
#endif
}

/// Added to a small number, it leaves the nearest integer in the low bits of the sum.
constexpr float kRounder = 0x1.8p23f;

/// e^x = y 2^k with y in [0.7, 1.42], for bounded x; `shifted` is k + kRounder. NaN gives y = NaN.
HWY_INLINE VF exp_parts(VF x, VF& shifted) {
  static constexpr float kTerms[] = {0x1p-1f, 0x1.555488p-3f, 0x1.555456p-5f, 0x1.1240b6p-7f,
                                     0x1.6dbb5ap-10f};
  shifted = hn::MulAdd(x, constant(1.44269504f), constant(kRounder));
  const VF k = hn::Sub(shifted, constant(kRounder));
  VF r = hn::NegMulAdd(k, constant(0x1.62e4p-1f), x);  // ln 2 in two parts, k * high exact
  r = hn::NegMulAdd(k, constant(0x1.7f7d1cp-20f), r);
  return hn::Add(constant(1.0f), hn::MulAdd(hn::Mul(r, r), polynomial(r, kTerms), r));
}

/// e^x, 1 ulp; subnormal results included.
HWY_INLINE VF exp(VF x) {
  // Beyond these the result is 0 or infinity anyway.
  const I32 di;
  VF shifted;
  const VF y = exp_parts(clamp(x, -105.0f, 89.0f), shifted);
  return scale_by_power(y, hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x4b400000)));
}

/// 1 / (1 + e^-x) of some vectors at once, 3 ulp where the result is a normal number; 0 far below.
/// Step by step for all of them: one chain of steps is long, and out-of-order execution does not
/// reach far enough to overlap several.
template <int n>
HWY_INLINE void sigmoid(VF (&x)[n]) {
  static constexpr float kTerms[] = {0x1p-1f, 0x1.555488p-3f, 0x1.555456p-5f, 0x1.1240b6p-7f,
                                     0x1.6dbb5ap-10f};
  const I32 di;
  const VF one = constant(1.0f);
  VF shifted[n], r[n], square[n], y[n];
  // e^-x = y 2^k as in exp_parts. At the lower bound 2^k is infinite, elsewhere a normal number: k
  // moves into the exponent field of 1.
  for (int i = 0; i < n; ++i) x[i] = clamp(x[i], -88.5f, 87.0f);
  for (int i = 0; i < n; ++i)
    shifted[i] = hn::NegMulAdd(x[i], constant(1.44269504f), constant(kRounder));
  for (int i = 0; i < n; ++i) y[i] = hn::Sub(shifted[i], constant(kRounder));
  for (int i = 0; i < n; ++i) r[i] = hn::NegMulSub(y[i], constant(0x1.62e4p-1f), x[i]);
  for (int i = 0; i < n; ++i) r[i] = hn::NegMulAdd(y[i], constant(0x1.7f7d1cp-20f), r[i]);
  for (int i = 0; i < n; ++i) square[i] = hn::Mul(r[i], r[i]);
  for (int i = 0; i < n; ++i) y[i] = hn::MulAdd(r[i], constant(kTerms[3]), constant(kTerms[2]));
  for (int i = 0; i < n; ++i) y[i] = hn::MulAdd(square[i], constant(kTerms[4]), y[i]);
  for (int i = 0; i < n; ++i) {
    const VF low = hn::MulAdd(r[i], constant(kTerms[1]), constant(kTerms[0]));
    y[i] = hn::MulAdd(square[i], y[i], low);
  }
  for (int i = 0; i < n; ++i) y[i] = hn::Add(one, hn::MulAdd(square[i], y[i], r[i]));
  for (int i = 0; i < n; ++i) {
    const auto field = hn::ShiftLeft<23>(hn::BitCast(di, shifted[i]));
    const VF power = hn::BitCast(F32(), hn::Add(field, hn::Set(di, 0x3f800000)));
    y[i] = hn::MulAdd(y[i], power, one);
  }
  for (int i = 0; i < n; ++i) x[i] = hn::Div(one, y[i]);
}

HWY_INLINE VF sigmoid(VF x) {
  VF one[1] = {x};
  sigmoid(one);
  return one[0];
}

/// 3 ulp.
HWY_INLINE VF tanh(VF x) {
  static constexpr float kTerms[] = {-0x1.555554p-2f, 0x1.11106ep-3f,  -0x1.b9f006p-5f,
                                     0x1.63998p-6f,   -0x1.0c3708p-7f, 0x1.19c322p-9f};
  const VF square = hn::Mul(x, x);
  const VF small = hn::MulAdd(hn::Mul(x, square), polynomial(square, kTerms), x);
  const VF magnitude = hn::Abs(x);
  const VF e = exp(hn::Add(magnitude, magnitude));
  const VF large = hn::Sub(constant(1.0f), hn::Div(constant(2.0f), hn::Add(e, constant(1.0f))));
  return hn::IfThenElse(hn::Lt(magnitude, constant(0.625f)), small, hn::CopySign(large, x));
}

/// 2 ulp. Above 1 it is 1 - erfc, with log(erfc(x)) a polynomial.
HWY_INLINE VF erf(VF x) {
  static constexpr float kNear[] = {0x1.06eba8p-3f,  -0x1.812746p-2f, 0x1.ce2f0ap-4f,
                                    -0x1.b829d8p-6f, 0x1.562b1ap-8f,  -0x1.bcd7dep-11f,
                                    0x1.d8b88ep-14f, -0x1.44cfbep-17f};
  static constexpr float kFar[] = {0x1.80b5d8p-13f, -0x1.212aa2p+0f, -0x1.443bp-1f,
                                   -0x1.bbe4c8p-4f, 0x1.9c884p-6f,   -0x1.12d52p-8f,
                                   0x1.cc6fbap-12f, -0x1.68a51ep-16f};
  const VF near = hn::MulAdd(x, polynomial(hn::Mul(x, x), kNear), x);
  const VF magnitude = hn::Min(hn::Abs(x), constant(4.0f));  // erf(4) rounds to 1
  const VF far = hn::Sub(constant(1.0f), exp(polynomial(magnitude, kFar)));
  const VF y = hn::IfThenElse(hn::Lt(hn::Abs(x), constant(1.0f)), near, hn::CopySign(far, x));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// 2 ulp. log(0) = -inf, of a negative number NaN.
HWY_INLINE VF log(VF x) {
  const I32 di;
  static constexpr float kTerms[] = {0x1.555546p-2f,  -0x1.ffffecp-3f, 0x1.99a57ap-3f,
                                     -0x1.556368p-3f, 0x1.232e74p-3f,  -0x1.fb2a3ap-4f,
                                     0x1.e67da4p-4f,  -0x1.e39b86p-4f, 0x1.1bb17ep-4f};
  const auto subnormal = hn::Lt(x, constant(0x1p-126f));
  const VF normal = hn::IfThenElse(subnormal, hn::Mul(x, constant(0x1p25f)), x);
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)): move the boundary of the exponent field there.
  const auto bits = hn::BitCast(di, normal);
  const auto shifted = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  const auto e = hn::ShiftRight<23>(shifted);
  const VF m = hn::BitCast(F32(), hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const VF bias = hn::IfThenElse(subnormal, constant(-25.0f), constant(0.0f));
  const VF exponent = hn::Add(hn::ConvertTo(F32(), e), bias);
  const VF f = hn::Sub(m, constant(1.0f));
  const VF square = hn::Mul(f, f);
  VF y = hn::Mul(hn::Mul(square, f), polynomial(f, kTerms));
  y = hn::MulAdd(exponent, constant(0x1.7f7d1cp-20f), y);
  y = hn::NegMulAdd(square, constant(0.5f), y);
  y = hn::MulAdd(exponent, constant(0x1.62e4p-1f), hn::Add(y, f));
  const float infinity = hwy::HighestValue<float>() * 2.0f;
  y = hn::IfThenElse(hn::Eq(x, constant(0.0f)), constant(-infinity), y);
  y = hn::IfThenElse(hn::Eq(x, constant(infinity)), x, y);
  const VF nan = hn::BitCast(F32(), hn::Set(di, 0x7fc00000));
  y = hn::IfThenElse(hn::Lt(x, constant(0.0f)), nan, y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

HWY_INLINE VF rsqrt(VF x) { return hn::Div(constant(1.0f), hn::Sqrt(x)); }

/// The larger one; NaN if either is.
HWY_INLINE VF maximum(VF a, VF b) {
  const VF larger = hn::IfThenElse(hn::Gt(a, b), a, b);  // b if b is NaN
  return hn::IfThenElse(hn::IsNaN(a), a, larger);
}

/// fp32 with the low 16 bits zero: rounded to nearest even, as bf16_from_f32.
HWY_INLINE VF round_to_bf16(VF x) {
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(x));
  const auto kept = hn::IfThenElse(nan, quiet, rounded);
  return hn::BitCast(F32(), hn::And(kept, hn::Set(du, 0xffff0000u)));
}

/// The same for results of arithmetic, whose NaNs are quiet, with the low 16 bits left as they
/// come.
HWY_INLINE hn::Vec<U32> bf16_bits_of_result(VF x) {
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(x));
  return hn::Add(bits, hn::IfThenZeroElse(nan, hn::Add(odd, hn::Set(du, 0x7fffu))));
}

/// The 16 bits of an IEEE half in the low part of each lane, as f16_from_f32.
HWY_INLINE hn::Vec<U32> f16_bits(VF x) {
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const VF magnitude = hn::Abs(x);
  const auto m = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(m), hn::Set(du, 1u));
  const auto rounded = hn::Add(m, hn::Add(odd, hn::Set(du, 0xfffu)));
  auto half = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  // Below 2^-14, adding 0.5 aligns and rounds the mantissa.
  const auto aligned = hn::BitCast(du, hn::Add(magnitude, constant(0.5f)));
  const auto tiny = hn::RebindMask(du, hn::Lt(magnitude, constant(0x1p-14f)));
  half = hn::IfThenElse(tiny, hn::Sub(aligned, hn::Set(du, 0x3f000000u)), half);
  const auto huge = hn::RebindMask(du, hn::Ge(magnitude, constant(65520.0f)));
  half = hn::IfThenElse(huge, hn::Set(du, 0x7c00u), half);
  half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, 0x7e00u), half);
  return hn::Or(sign, half);
}

/// The value of an IEEE half in the low 16 bits of each lane.
HWY_INLINE VF f32_of_f16_bits(hn::Vec<U32> half) {
  const U32 du;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto body = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
  const VF scaled = hn::Mul(hn::BitCast(F32(), body), constant(0x1p112f));
  // Exponent 31 is infinity or NaN: exponent field full, mantissa kept.
  const auto full = hn::RebindMask(du, hn::Ge(scaled, constant(65536.0f)));
  const auto special = hn::Or(body, hn::Set(du, 0x7f800000u));
  const auto value = hn::IfThenElse(full, special, hn::BitCast(du, scaled));
  return hn::BitCast(F32(), hn::Or(sign, value));
}

HWY_INLINE VF round_to_f16(VF x) { return f32_of_f16_bits(f16_bits(x)); }

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each instruction set
