// Loads, stores and their conversion. These touch memory of the caller: exact widths.
#include <cstring>

#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_memory.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

using u16 = std::uint16_t;
using U16 = hn::Rebind<u16, F32>;

struct AsF32 {
  using Element = float;
  static HWY_INLINE VF load(const float* p) { return hn::LoadU(F32(), p); }
  static HWY_INLINE void store(VF x, float* p) { hn::StoreU(x, F32(), p); }
};
struct AsBf16 {
  using Element = u16;
  static HWY_INLINE VF load(const u16* p) {
    const U32 du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(U16(), p));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
  }
  static HWY_INLINE void store(VF x, u16* p) {
    const auto bits = hn::ShiftRight<16>(hn::BitCast(U32(), round_to_bf16(x)));
    hn::StoreU(hn::TruncateTo(U16(), bits), U16(), p);
  }
};
/// Of values that are bf16 already.
struct AsRoundedBf16 {
  using Element = u16;
  static HWY_INLINE void store(VF x, u16* p) {
    const auto bits = hn::ShiftRight<16>(hn::BitCast(U32(), x));
    hn::StoreU(hn::TruncateTo(U16(), bits), U16(), p);
  }
};
struct AsF16 {
  using Element = u16;
  static HWY_INLINE VF load(const u16* p) {
    return f32_of_f16_bits(hn::PromoteTo(U32(), hn::LoadU(U16(), p)));
  }
  static HWY_INLINE void store(VF x, u16* p) {
    hn::StoreU(hn::TruncateTo(U16(), f16_bits(x)), U16(), p);
  }
};
struct Accumulating {
  using Element = float;
  static HWY_INLINE void store(VF x, float* p) {
    hn::StoreU(hn::Add(hn::LoadU(F32(), p), x), F32(), p);
  }
};

template <class As>
void load_kernel(Strip y, const void* x, i64 stride, i64 rows, i64 n) {
  using Element = typename As::Element;
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 r = 0; r < rows; ++r) {
    const Element* in = static_cast<const Element*>(x) + r * stride;
    float* out = y.data + r * y.row_stride;
    i64 c = 0;
    for (; c + lanes <= n; c += lanes) hn::Store(As::load(in + c), d, out + c);
    if (c < n) {
      Element rest[16] = {};
      std::memcpy(rest, in + c, static_cast<std::size_t>(n - c) * sizeof(Element));
      hn::Store(As::load(rest), d, out + c);
    }
  }
}

template <class As>
void store_kernel(void* y, i64 stride, Arg x, i64 rows, i64 n) {
  using Element = typename As::Element;
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 r = 0; r < rows; ++r) {
    Element* out = static_cast<Element*>(y) + r * stride;
    const float* in = x.data + r * x.row_stride;
    i64 c = 0;
    for (; c + lanes <= n; c += lanes) As::store(hn::LoadU(d, in + c), out + c);
    if (c < n) {
      const std::size_t bytes = static_cast<std::size_t>(n - c) * sizeof(Element);
      Element rest[16] = {};
      std::memcpy(rest, out + c, bytes);
      As::store(hn::LoadU(d, in + c), rest);
      std::memcpy(out + c, rest, bytes);
    }
  }
}

}  // namespace

void fill_memory(Kernels& table) {
  table.load[index_of(DType::f32)] = load_kernel<AsF32>;
  table.load[index_of(DType::bf16)] = load_kernel<AsBf16>;
  table.load[index_of(DType::f16)] = load_kernel<AsF16>;
  table.store[index_of(DType::f32)] = store_kernel<AsF32>;
  table.store[index_of(DType::bf16)] = store_kernel<AsBf16>;
  table.store[index_of(DType::f16)] = store_kernel<AsF16>;
  table.store_rounded[index_of(DType::bf16)] = store_kernel<AsRoundedBf16>;
  table.accumulate = store_kernel<Accumulating>;
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(fill_memory);
void add_memory_kernels(Kernels& table) { HWY_DYNAMIC_DISPATCH(fill_memory)(table); }
}  // namespace coda::cpu
#endif
