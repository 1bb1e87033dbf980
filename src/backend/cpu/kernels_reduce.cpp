// Reductions. The order is fixed whatever the instruction set: element c of a granule goes to lane
// c mod 16, lanes fold as 8 + 8, 4 + 4, 2 + 2, 1 + 1.
#include "backend/cpu/kernels.h"
#include "coda/program.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_reduce.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

constexpr i64 kLanes = 16;
constexpr float kMinusInfinity = -__builtin_inff();

struct Sum {
  static constexpr float kIdentity = 0.0f;
  static HWY_INLINE VF combine(VF a, VF b) { return hn::Add(a, b); }
  static HWY_INLINE float combine(float a, float b) { return a + b; }
};
struct Max {
  static constexpr float kIdentity = kMinusInfinity;
  static HWY_INLINE VF combine(VF a, VF b) { return maximum(a, b); }
  static HWY_INLINE float combine(float a, float b) { return a != a || a > b ? a : b; }
};

/// Reduces f(x[0]), ..., f(x[n - 1]), n <= kColumnGranule.
template <class Fold, class F>
HWY_INLINE float reduce_granule(const float* x, i64 n, F f) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  HWY_ALIGN float lane[kLanes];
  const VF identity = hn::Set(d, Fold::kIdentity);
  for (i64 i = 0; i < kLanes; i += lanes) {
    VF sum = identity;
    i64 c = i;
    for (; c + lanes <= n; c += kLanes) sum = Fold::combine(sum, f(hn::LoadU(d, x + c)));
    if (c < n) {
      const auto inside = hn::FirstN(d, static_cast<std::size_t>(n - c));
      sum = Fold::combine(sum, hn::IfThenElse(inside, f(hn::LoadU(d, x + c)), identity));
    }
    hn::Store(sum, d, lane + i);
  }
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = Fold::combine(lane[i], lane[i + width]);
  return lane[0];
}

struct Identity {
  HWY_INLINE VF operator()(VF x) const { return x; }
};
struct ShiftedExp {
  float shift;
  HWY_INLINE VF operator()(VF x) const { return exp(hn::Sub(x, constant(shift))); }
};

template <class Fold>
void reduce_kernel(float* y, i64 stride, Arg x, i64 rows, i64 n) {
  for (i64 r = 0; r < rows; ++r) {
    const float* in = x.data + r * x.row_stride;
    for (i64 c = 0, g = 0; c < n; c += kColumnGranule, ++g) {
      const i64 width = n - c < kColumnGranule ? n - c : kColumnGranule;
      y[g * stride + r] = reduce_granule<Fold>(in + c, width, Identity());
    }
  }
}

/// The sum of e^(x - max). An infinite max is the result whatever the sum: 0 if all are -inf, 1 for
/// +inf.
HWY_INLINE float sum_relative_to(float max, const float* x, i64 n) {
  if (max == kMinusInfinity) return 0.0f;
  if (max == -kMinusInfinity) return 1.0f;
  return reduce_granule<Sum>(x, n, ShiftedExp{max});
}

void lse_kernel(float* y, i64 plane, i64 stride, Arg x, i64 rows, i64 n) {
  for (i64 r = 0; r < rows; ++r) {
    const float* in = x.data + r * x.row_stride;
    for (i64 c = 0, g = 0; c < n; c += kColumnGranule, ++g) {
      const i64 width = n - c < kColumnGranule ? n - c : kColumnGranule;
      const float max = reduce_granule<Max>(in + c, width, Identity());
      y[g * stride + r] = max;
      y[g * stride + r + plane] = sum_relative_to(max, in + c, width);
    }
  }
}

void col_sum_kernel(float* y, Arg x, i64 rows, i64 n, bool first) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 c = 0;
  for (; c + lanes <= n; c += lanes) {
    VF sum = first ? hn::Zero(d) : hn::LoadU(d, y + c);
    for (i64 r = 0; r < rows; ++r) sum = hn::Add(sum, hn::LoadU(d, x.data + r * x.row_stride + c));
    hn::StoreU(sum, d, y + c);
  }
  for (; c < n; ++c) {
    float sum = first ? 0.0f : y[c];
    for (i64 r = 0; r < rows; ++r) sum += x.data[r * x.row_stride + c];
    y[c] = sum;
  }
}

/// What brings a sum taken relative to `from` to one relative to `to` >= from, infinities included.
HWY_INLINE VF rescale(VF from, VF to) {
  return hn::IfThenElse(hn::Eq(from, to), constant(1.0f), exp(hn::Sub(from, to)));
}

void combine_lse_kernel(float* max, float* sum, const float* more_max, const float* more_sum,
                        i64 n) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 c = 0; c < n; c += lanes) {
    const VF a = hn::LoadU(d, max + c), b = hn::LoadU(d, more_max + c);
    const VF larger = maximum(a, b);
    const VF scaled = hn::Add(hn::Mul(hn::LoadU(d, sum + c), rescale(a, larger)),
                              hn::Mul(hn::LoadU(d, more_sum + c), rescale(b, larger)));
    hn::StoreU(larger, d, max + c);
    hn::StoreU(scaled, d, sum + c);
  }
}

/// The log of the sum, with or without the max added: an infinite max stands alone.
template <bool kAddMax>
void finish_kernel(float* max, const float* sum, i64 n) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const VF infinity = constant(-kMinusInfinity);
  for (i64 c = 0; c < n; c += lanes) {
    const VF m = hn::LoadU(d, max + c);
    const VF l = log(hn::LoadU(d, sum + c));
    const VF finite = hn::IfThenZeroElse(hn::Eq(hn::Abs(m), infinity), l);
    hn::StoreU(kAddMax ? hn::Add(m, finite) : finite, d, max + c);
  }
}

}  // namespace

void fill_reductions(Kernels& table) {
  table.row_sum = reduce_kernel<Sum>;
  table.row_max = reduce_kernel<Max>;
  table.lse = lse_kernel;
  table.col_sum = col_sum_kernel;
  table.combine_lse = combine_lse_kernel;
  table.finish_lse = finish_kernel<true>;
  table.finish_log_sum = finish_kernel<false>;
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(fill_reductions);
void add_reduction_kernels(Kernels& table) { HWY_DYNAMIC_DISPATCH(fill_reductions)(table); }
}  // namespace coda::cpu
#endif
