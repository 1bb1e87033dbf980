// Loads, stores and their conversion. These touch memory of the caller: exact widths.
#include <cstring>

#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_memory.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_memory-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

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
