#include "backend/cpu/gemm_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_kernel.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using i64 = std::int64_t;
using u16 = std::uint16_t;

// 2 vectors wide; as high as leaves registers for 2 vectors of B and one of A: 16 registers hold
// 6 x 2 accumulators, 32 hold 12 x 2. The scalar fallback only has to be right.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kRows = 12, kVectors = 2;
#elif HWY_TARGET == HWY_SCALAR
constexpr int kRows = 6, kVectors = 4;
#else
constexpr int kRows = 6, kVectors = 2;
#endif

void multiply_kernel(i64 k, const float* a, i64 a_row, i64 a_step, const float* b, float* c,
                     i64 stride, bool accumulate) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  VF sum[kRows][kVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (i64 i = 0; i < k; ++i) {
    VF right[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) right[v] = hn::Load(d, b + v * lanes);
    HWY_UNROLL(12)
    for (int r = 0; r < kRows; ++r) {
      const VF left = hn::Set(d, a[r * a_row]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
    a += a_step;
    b += kVectors * lanes;
  }
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      float* out = c + r * stride + v * lanes;
      hn::Store(accumulate ? hn::Add(sum[r][v], hn::Load(d, out)) : sum[r][v], d, out);
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<D> widened(D d, const float* x, DType) {
  return hn::LoadU(d, x);
}

template <class D>
HWY_INLINE hn::Vec<D> widened(D d, const u16* x, DType dtype) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<u16, D> d16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, x));
  if (dtype == DType::bf16) return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto body = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto scaled = hn::Mul(hn::BitCast(d, body), hn::Set(d, 0x1p112f));
  const auto full = hn::RebindMask(du, hn::Ge(scaled, hn::Set(d, 65536.0f)));
  const auto value =
      hn::IfThenElse(full, hn::Or(body, hn::Set(du, 0x7f800000u)), hn::BitCast(du, scaled));
  return hn::BitCast(d, hn::Or(sign, value));
}

template <class T>
HWY_INLINE void widen_rest(float* y, const T* x, DType dtype, i64 n) {
  const hn::CappedTag<float, 1> d;
  for (i64 i = 0; i < n; ++i) hn::StoreU(widened(d, x + i, dtype), d, y + i);
}

template <class T>
HWY_INLINE void widen_row(float* y, const T* x, DType dtype, i64 n) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(widened(d, x + i, dtype), d, y + i);
  widen_rest(y + i, x + i, dtype, n - i);
}

void widen_kernel(float* y, const void* x, DType dtype, i64 n) {
  if (dtype == DType::f32)
    widen_row(y, static_cast<const float*>(x), dtype, n);
  else
    widen_row(y, static_cast<const u16*>(x), dtype, n);
}

template <class T>
HWY_INLINE void transpose4(float* y, i64 stride, const T* x0, const T* x1, const T* x2, const T* x3,
                           DType dtype, i64 n) {
  i64 k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> dd;
  for (; k + 4 <= n; k += 4) {
    const auto r0 = widened(d, x0 + k, dtype), r1 = widened(d, x1 + k, dtype);
    const auto r2 = widened(d, x2 + k, dtype), r3 = widened(d, x3 + k, dtype);
    // Pairs of elements of neighbouring rows, then pairs of those.
    const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
    hn::Store(hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)), d, y + k * stride);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)), d, y + (k + 1) * stride);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)), d, y + (k + 2) * stride);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23)), d, y + (k + 3) * stride);
  }
#endif
  for (; k < n; ++k) {
    widen_rest(y + k * stride, x0 + k, dtype, 1);
    widen_rest(y + k * stride + 1, x1 + k, dtype, 1);
    widen_rest(y + k * stride + 2, x2 + k, dtype, 1);
    widen_rest(y + k * stride + 3, x3 + k, dtype, 1);
  }
}

template <class T>
void transpose4_of(float* y, i64 stride, const void* const* x, DType dtype, i64 n) {
  transpose4(y, stride, static_cast<const T*>(x[0]), static_cast<const T*>(x[1]),
             static_cast<const T*>(x[2]), static_cast<const T*>(x[3]), dtype, n);
}

void transpose4_kernel(float* y, i64 stride, const void* const* x, DType dtype, i64 n) {
  if (dtype == DType::f32)
    transpose4_of<float>(y, stride, x, dtype, n);
  else
    transpose4_of<u16>(y, stride, x, dtype, n);
}

}  // namespace

GemmKernel make_gemm_kernel() {
  return {kRows, kVectors * static_cast<i64>(hn::Lanes(F32())), multiply_kernel, widen_kernel,
          transpose4_kernel};
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(make_gemm_kernel);
const GemmKernel& gemm_kernel() {
  static const GemmKernel kernel = HWY_DYNAMIC_DISPATCH(make_gemm_kernel)();
  return kernel;
}
}  // namespace coda::cpu
#endif
