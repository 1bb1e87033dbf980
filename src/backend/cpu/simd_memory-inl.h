// How vectors of fp32 are loaded from and stored to each type. Included once for every instruction
// set.
#if defined(CODA_CPU_SIMD_MEMORY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CODA_CPU_SIMD_MEMORY_INL_H
#undef CODA_CPU_SIMD_MEMORY_INL_H
#else
#define CODA_CPU_SIMD_MEMORY_INL_H
#endif

#include "backend/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {

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

/// Of values that are bf16 already, whatever their low 16 bits.
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

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each instruction set
