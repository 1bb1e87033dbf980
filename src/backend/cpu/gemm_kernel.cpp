#include "backend/cpu/gemm_kernel.h"

#include "backend/cpu/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_kernel.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using i64 = std::int64_t;
using u16 = std::uint16_t;

// 2 vectors wide; as high as leaves registers for 2 vectors of B and one of A: 16 registers hold
// 6 x 2 accumulators, 32 hold 12 x 2. The scalar fallback only has to be right; its strips of B
// are as wide as pack_transposed writes, since threads pack neighbouring strips at the same time.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kRows = 12, kVectors = 2;
#elif HWY_TARGET == HWY_SCALAR
constexpr int kRows = 6, kVectors = 8;
#else
constexpr int kRows = 6, kVectors = 2;
#endif

/// left(i, r) is A's element (r, i). ahead(i) comes before every kAhead elements of K.
constexpr i64 kAhead = 16;
template <class F, class G>
HWY_INLINE void multiply(i64 k, F left, G ahead, const float* b, float* c, i64 stride,
                         bool accumulate) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  // The tile of c comes from the second or third level: on its way while the sums build up.
  for (int r = 0; r < kRows; ++r) hwy::Prefetch(c + r * stride);
  VF sum[kRows][kVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (i64 start = 0; start < k; start += kAhead) {
    ahead(start);
    const i64 end = start + kAhead < k ? start + kAhead : k;
    for (i64 i = start; i < end; ++i) {
      VF right[kVectors];
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) right[v] = hn::Load(d, b + v * lanes);
      HWY_UNROLL(12)
      for (int r = 0; r < kRows; ++r) {
        const VF factor = hn::Set(d, left(i, r));
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(factor, right[v], sum[r][v]);
      }
      b += kVectors * lanes;
    }
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

void multiply_kernel(i64 k, const float* a, const float* b, float* c, i64 stride, bool accumulate) {
  const auto left = [a](i64 i, int r) { return a[i * kRows + r]; };
  multiply(
      k, left, [](i64) {}, b, c, stride, accumulate);
}

void multiply_rows_kernel(i64 k, const float* a, i64 a_stride, i64 count, const float* b, float* c,
                          i64 stride, bool accumulate) {
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = a + (r < count ? r : 0) * a_stride;
  // Short rows far apart: the hardware does not see the next ones coming.
  const float* next = a + kRows * a_stride;
  const auto ahead = [&](i64 i) {
    for (int r = 0; r < kRows; ++r) hwy::Prefetch(next + r * a_stride + i);
  };
  const auto left = [&rows](i64 i, int r) { return rows[r][i]; };
  multiply(k, left, ahead, b, c, stride, accumulate);
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

#if HWY_TARGET != HWY_SCALAR
/// Rows of 4 elements -> their columns.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void transpose_blocks(D d, V& r0, V& r1, V& r2, V& r3) {
  const hn::Repartition<double, D> dd;
  // Pairs of elements of neighbouring rows, then pairs of those.
  const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
  r0 = hn::BitCast(d, hn::InterleaveLower(dd, low01, low23));
  r1 = hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23));
  r2 = hn::BitCast(d, hn::InterleaveLower(dd, high01, high23));
  r3 = hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23));
}
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// 8 rows by 8 of K.
template <class T>
HWY_INLINE void transpose_8x8(float* y, i64 width, const T* const* x, i64 k, DType dtype) {
  const hn::FixedTag<float, 8> d;
  auto r0 = widened(d, x[0] + k, dtype), r1 = widened(d, x[1] + k, dtype);
  auto r2 = widened(d, x[2] + k, dtype), r3 = widened(d, x[3] + k, dtype);
  auto r4 = widened(d, x[4] + k, dtype), r5 = widened(d, x[5] + k, dtype);
  auto r6 = widened(d, x[6] + k, dtype), r7 = widened(d, x[7] + k, dtype);
  transpose_blocks(d, r0, r1, r2, r3);
  transpose_blocks(d, r4, r5, r6, r7);
  hn::StoreU(hn::ConcatLowerLower(d, r4, r0), d, y);
  hn::StoreU(hn::ConcatLowerLower(d, r5, r1), d, y + width);
  hn::StoreU(hn::ConcatLowerLower(d, r6, r2), d, y + 2 * width);
  hn::StoreU(hn::ConcatLowerLower(d, r7, r3), d, y + 3 * width);
  hn::StoreU(hn::ConcatUpperUpper(d, r4, r0), d, y + 4 * width);
  hn::StoreU(hn::ConcatUpperUpper(d, r5, r1), d, y + 5 * width);
  hn::StoreU(hn::ConcatUpperUpper(d, r6, r2), d, y + 6 * width);
  hn::StoreU(hn::ConcatUpperUpper(d, r7, r3), d, y + 7 * width);
}
#elif HWY_TARGET != HWY_SCALAR
template <class T>
HWY_INLINE void transpose_8x8(float* y, i64 width, const T* const* x, i64 k, DType dtype) {
  const hn::FixedTag<float, 4> d;
  for (i64 i = 0; i < 8; i += 4) {
    auto a0 = widened(d, x[0] + k + i, dtype), a1 = widened(d, x[1] + k + i, dtype);
    auto a2 = widened(d, x[2] + k + i, dtype), a3 = widened(d, x[3] + k + i, dtype);
    auto b0 = widened(d, x[4] + k + i, dtype), b1 = widened(d, x[5] + k + i, dtype);
    auto b2 = widened(d, x[6] + k + i, dtype), b3 = widened(d, x[7] + k + i, dtype);
    transpose_blocks(d, a0, a1, a2, a3);
    transpose_blocks(d, b0, b1, b2, b3);
    float* out = y + i * width;
    hn::StoreU(a0, d, out), hn::StoreU(b0, d, out + 4);
    hn::StoreU(a1, d, out + width), hn::StoreU(b1, d, out + width + 4);
    hn::StoreU(a2, d, out + 2 * width), hn::StoreU(b2, d, out + 2 * width + 4);
    hn::StoreU(a3, d, out + 3 * width), hn::StoreU(b3, d, out + 3 * width + 4);
  }
}
#endif

template <class T>
HWY_INLINE void pack_transposed(float* y, i64 width, const void* const* rows, DType dtype,
                                i64 depth, [[maybe_unused]] i64 ahead) {
  const T* x[8];
  for (int r = 0; r < 8; ++r) x[r] = static_cast<const T*>(rows[r]);
  i64 k = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));
  for (; k + 8 <= depth; k += 8, y += 8 * width) {
    if (ahead != 0 && k % kLine == 0) {
      for (int r = 0; r < 8; ++r)
        hwy::Prefetch(reinterpret_cast<const char*>(x[r] + k) + ahead);
    }
    transpose_8x8(y, width, x, k, dtype);
  }
#endif
  const hn::CappedTag<float, 1> one;
  for (; k < depth; ++k, y += width)
    for (int r = 0; r < 8; ++r) hn::StoreU(widened(one, x[r] + k, dtype), one, y + r);
}

void pack_transposed_kernel(float* y, i64 width, const void* const* x, DType dtype, i64 depth,
                            i64 ahead) {
  if (dtype == DType::f32) return pack_transposed<float>(y, width, x, dtype, depth, ahead);
  if (dtype == DType::bf16) return pack_transposed<u16>(y, width, x, DType::bf16, depth, ahead);
  pack_transposed<u16>(y, width, x, DType::f16, depth, ahead);
}

template <class T>
HWY_INLINE void pack_columns(float* y, i64 width, const T* x, i64 stride, i64 count, DType dtype,
                             i64 depth) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const hn::CappedTag<float, 1> one;
  if (width <= lanes && count >= lanes) {
    i64 k = 0;
    for (; k + 4 <= depth; k += 4, x += 4 * stride, y += 4 * width) {
      const auto r0 = widened(d, x, dtype), r1 = widened(d, x + stride, dtype);
      const auto r2 = widened(d, x + 2 * stride, dtype), r3 = widened(d, x + 3 * stride, dtype);
      hn::StoreU(r0, d, y), hn::StoreU(r1, d, y + width);
      hn::StoreU(r2, d, y + 2 * width), hn::StoreU(r3, d, y + 3 * width);
    }
    for (; k < depth; ++k, x += stride, y += width) hn::StoreU(widened(d, x, dtype), d, y);
    return;
  }
  if (count >= (width + lanes - 1) / lanes * lanes) {
    for (i64 k = 0; k < depth; ++k, x += stride, y += width)
      for (i64 c = 0; c < width; c += lanes) hn::StoreU(widened(d, x + c, dtype), d, y + c);
    return;
  }
  count = count < width ? count : width;
  for (i64 k = 0; k < depth; ++k, x += stride, y += width) {
    i64 c = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::FixedTag<float, 4> four;
    for (; c + 4 <= count; c += 4) hn::StoreU(widened(four, x + c, dtype), four, y + c);
#endif
    for (; c < count; ++c) hn::StoreU(widened(one, x + c, dtype), one, y + c);
    for (; c < width; ++c) y[c] = 0.0f;
  }
}

void pack_columns_kernel(float* y, i64 width, const void* x, i64 stride, i64 count, DType dtype,
                         i64 depth) {
  if (dtype == DType::f32)
    return pack_columns(y, width, static_cast<const float*>(x), stride, count, DType::f32, depth);
  const auto* x16 = static_cast<const u16*>(x);
  if (dtype == DType::bf16) return pack_columns(y, width, x16, stride, count, DType::bf16, depth);
  pack_columns(y, width, x16, stride, count, DType::f16, depth);
}

/// Sixteen columns at a time: enough chains of additions to hide their latency behind reading b.
/// Vectors are no wider than what transpose_8x8 stores: a load that spans two stores waits for both.
template <class T>
HWY_INLINE void multiply_row(i64 depth, const float* HWY_RESTRICT a, const void* const* rows,
                             DType dtype, [[maybe_unused]] i64 ahead, float* HWY_RESTRICT c,
                             bool accumulate) {
  const hn::CappedTag<float, 8> d;
  using V = hn::Vec<decltype(d)>;
  constexpr i64 kLanes = hn::MaxLanes(d);
  constexpr int kParts = static_cast<int>(kRowCols / kLanes);
  const T* x[kRowCols];
  for (int i = 0; i < kRowCols; ++i) x[i] = static_cast<const T*>(rows[i]);
  V sum[kParts];
  for (int v = 0; v < kParts; ++v) sum[v] = hn::Zero(d);
  alignas(64) float y[8 * kRowCols];
  const auto add = [&](float left, const float* right) HWY_ATTR {
    const V value = hn::Set(d, left);
    for (int v = 0; v < kParts; ++v)
      sum[v] = hn::MulAdd(value, hn::Load(d, right + v * kLanes), sum[v]);
  };
  i64 k = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));
  for (; k + 8 <= depth; k += 8) {
    if (ahead != 0 && k % kLine == 0) {
      for (int i = 0; i < kRowCols; ++i)
        hwy::Prefetch(reinterpret_cast<const char*>(x[i] + k) + ahead);
    }
    transpose_8x8(y, kRowCols, x, k, dtype);
    transpose_8x8(y + 8, kRowCols, x + 8, k, dtype);
    for (int i = 0; i < 8; ++i) add(a[k + i], y + i * kRowCols);
  }
#endif
  const hn::CappedTag<float, 1> one;
  for (; k < depth; ++k) {
    for (int i = 0; i < kRowCols; ++i) hn::StoreU(widened(one, x[i] + k, dtype), one, y + i);
    add(a[k], y);
  }
  for (int v = 0; v < kParts; ++v) {
    float* out = c + v * kLanes;
    hn::StoreU(accumulate ? hn::Add(sum[v], hn::LoadU(d, out)) : sum[v], d, out);
  }
}

void multiply_row_kernel(i64 depth, const float* a, const void* const* b, DType dtype, i64 ahead,
                         float* c, bool accumulate) {
  if (dtype == DType::f32)
    return multiply_row<float>(depth, a, b, DType::f32, ahead, c, accumulate);
  if (dtype == DType::bf16)
    return multiply_row<u16>(depth, a, b, DType::bf16, ahead, c, accumulate);
  multiply_row<u16>(depth, a, b, DType::f16, ahead, c, accumulate);
}

}  // namespace

static_assert(kVectors * hn::MaxLanes(F32()) % 8 == 0);  // see kVectors

GemmKernel make_gemm_kernel() {
  return {kRows,
          kVectors * static_cast<i64>(hn::Lanes(F32())),
          multiply_kernel,
          multiply_row_kernel,
          kRows <= 6 ? multiply_rows_kernel : nullptr,
          pack_transposed_kernel,
          pack_columns_kernel};
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(make_gemm_kernel);
const GemmKernel& gemm_kernel() {
  static const GemmKernel kernel = [] {
    cap_instruction_sets();
    return HWY_DYNAMIC_DISPATCH(make_gemm_kernel)();
  }();
  return kernel;
}
}  // namespace coda::cpu
#endif
