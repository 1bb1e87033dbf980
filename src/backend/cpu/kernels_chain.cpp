// Chains of elementwise ops that end in a store, one pass each: what costs on a strip is passing
// over it, more than the arithmetic. These touch memory of the caller: exact widths.
#include <cstring>

#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_chain.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_memory-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

/// Vectors that are worked on together: at most kPad floats, which may be read and kept.
constexpr int kVectors = 2;
using Vectors = VF[kVectors];

/// Types that chains end in. Rounded values have bits below the type's that count for nothing when
/// they are stored; clear() removes them.
struct ToF32 : AsF32 {
  static HWY_INLINE VF round(VF x) { return x; }
  static HWY_INLINE VF clear(VF x) { return x; }
};
struct ToBf16 : AsRoundedBf16 {
  static HWY_INLINE VF round(VF x) { return hn::BitCast(F32(), bf16_bits_of_result(x)); }
  static HWY_INLINE VF clear(VF x) {
    return hn::And(x, hn::BitCast(F32(), hn::Set(U32(), 0xffff0000u)));
  }
};

HWY_INLINE i64 lanes() { return static_cast<i64>(hn::Lanes(F32())); }

HWY_INLINE void load(Vectors& x, const float* p) {
  for (int i = 0; i < kVectors; ++i) x[i] = hn::LoadU(F32(), p + i * lanes());
}
HWY_INLINE void multiply(Vectors& x, const Vectors& by) {
  for (int i = 0; i < kVectors; ++i) x[i] = hn::Mul(x[i], by[i]);
}
template <class As>
HWY_INLINE void scale_and_round(Vectors& x, VF scale) {
  for (int i = 0; i < kVectors; ++i) x[i] = As::clear(As::round(hn::Mul(x[i], scale)));
}

/// The first `left` elements of x, all if there are more.
template <class As>
HWY_INLINE void store(const Vectors& x, typename As::Element* y, i64 left) {
  if (left >= kVectors * lanes()) {
    for (int i = 0; i < kVectors; ++i) As::store(x[i], y + i * lanes());
    return;
  }
  typename As::Element rest[kVectors * 16];
  for (int i = 0; i < kVectors; ++i) As::store(x[i], rest + i * lanes());
  if (left > 0) std::memcpy(y, rest, static_cast<std::size_t>(left) * sizeof(*y));
}

/// n elements of a row: make(c, x) sets the vectors at column c.
template <class As, class F>
HWY_INLINE void make_row(typename As::Element* y, float* kept, i64 n, F make) {
  for (i64 c = 0; c < n; c += kVectors * lanes()) {
    Vectors x;
    make(c, x);
    for (int i = 0; i < kVectors; ++i) x[i] = As::round(x[i]);
    if (kept)
      for (int i = 0; i < kVectors; ++i) hn::Store(As::clear(x[i]), F32(), kept + c + i * lanes());
    store<As>(x, y + c, n - c);
  }
}

template <class As, Chain chain>
void chain_kernel(void* y, i64 stride, Strip keep, Arg a, Arg b, Arg c, i64 rows, i64 n) {
  const auto combine = [](Vectors& x, const Vectors& by) HWY_ATTR {
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (chain == Chain::add) x[i] = hn::Add(x[i], by[i]);
      if constexpr (chain == Chain::sub) x[i] = hn::Sub(x[i], by[i]);
      if constexpr (chain == Chain::mul) x[i] = hn::Mul(x[i], by[i]);
    }
  };
  for (i64 r = 0; r < rows; ++r) {
    auto* out = static_cast<typename As::Element*>(y) + r * stride;
    float* kept = keep.data ? keep.data + r * keep.row_stride : nullptr;
    const float* pa = a.data + r * a.row_stride;
    const float* pb = b.data + r * b.row_stride;
    const float* pc = c.data + r * c.row_stride;
    if (chain == Chain::mul_sigmoid || chain == Chain::mul_mul_sigmoid) {
      make_row<As>(out, kept, n, [&](i64 col, Vectors& x) HWY_ATTR {
        Vectors factor;
        load(x, pb + col);
        sigmoid(x);
        load(factor, pa + col);
        multiply(x, factor);
        if (chain != Chain::mul_mul_sigmoid) return;
        load(factor, pc + col);
        multiply(x, factor);
      });
    } else if (b.uniform) {
      const VF right = hn::Set(F32(), *pb);
      make_row<As>(out, kept, n, [&](i64 col, Vectors& x) HWY_ATTR {
        load(x, pa + col);
        combine(x, {right, right});
      });
    } else {
      make_row<As>(out, kept, n, [&](i64 col, Vectors& x) HWY_ATTR {
        Vectors by;
        load(x, pa + col);
        load(by, pb + col);
        combine(x, by);
      });
    }
  }
}

template <class As, bool interleaved>
HWY_INLINE void gated_row(const GatedProduct& p, i64 r, i64 n) {
  using Element = typename As::Element;
  auto* gate_out = static_cast<Element*>(p.gate_out) + r * p.gate_stride;
  auto* up_out = static_cast<Element*>(p.up_out) + r * p.up_stride;
  auto* y = static_cast<Element*>(p.y) + r * p.stride;
  const float* a = p.a.data + r * p.a.row_stride;
  const float* b = p.b.data + r * p.b.row_stride;
  const VF scale = hn::Set(F32(), p.scale.data[r * p.scale.row_stride]);
  const i64 step = kVectors * lanes();
  for (i64 c = 0; c < n; c += step) {
    Vectors gate, up, x;
    if (interleaved) {
      Vectors low, high;  // pairs as they lie in memory
      load(low, a + 2 * c);
      load(high, a + 2 * c + step);
      scale_and_round<As>(low, scale);
      scale_and_round<As>(high, scale);
      store<As>(low, gate_out + 2 * c, 2 * (n - c));
      store<As>(high, gate_out + 2 * c + step, 2 * (n - c) - step);
      for (int i = 0; i < kVectors; ++i) {
        const VF& first = i == 0 ? low[0] : high[0];
        const VF& second = i == 0 ? low[1] : high[1];
#if HWY_TARGET == HWY_SCALAR
        gate[i] = first, up[i] = second;
#else
        gate[i] = hn::ConcatEven(F32(), second, first);
        up[i] = hn::ConcatOdd(F32(), second, first);
#endif
      }
    } else {
      load(gate, a + c);
      load(up, b + c);
      scale_and_round<As>(gate, scale);
      scale_and_round<As>(up, scale);
      store<As>(gate, gate_out + c, n - c);
      store<As>(up, up_out + c, n - c);
    }
    for (int i = 0; i < kVectors; ++i) x[i] = gate[i];
    sigmoid(x);
    for (int i = 0; i < kVectors; ++i) x[i] = As::round(hn::Mul(hn::Mul(gate[i], x[i]), up[i]));
    store<As>(x, y + c, n - c);
  }
}

template <class As>
void gated_kernel(const GatedProduct& product, i64 rows, i64 n) {
  for (i64 r = 0; r < rows; ++r) {
    if (product.interleaved)
      gated_row<As, true>(product, r, n);
    else
      gated_row<As, false>(product, r, n);
  }
}

template <class As>
void fill(Kernels& table, DType dtype) {
  table.gated[index_of(dtype)] = gated_kernel<As>;
  auto& chains = table.chain[index_of(dtype)];
  const auto set = [&](Chain chain, ChainKernel kernel) {
    chains[static_cast<std::size_t>(chain)] = kernel;
  };
  set(Chain::add, chain_kernel<As, Chain::add>);
  set(Chain::sub, chain_kernel<As, Chain::sub>);
  set(Chain::mul, chain_kernel<As, Chain::mul>);
  set(Chain::mul_sigmoid, chain_kernel<As, Chain::mul_sigmoid>);
  set(Chain::mul_mul_sigmoid, chain_kernel<As, Chain::mul_mul_sigmoid>);
}

}  // namespace

void fill_chains(Kernels& table) {
  fill<ToF32>(table, DType::f32);
  fill<ToBf16>(table, DType::bf16);
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(fill_chains);
void add_chain_kernels(Kernels& table) { HWY_DYNAMIC_DISPATCH(fill_chains)(table); }
}  // namespace coda::cpu
#endif
