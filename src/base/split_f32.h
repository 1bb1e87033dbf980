// An fp32 in two halves of 16 bits: the upper one is the number rounded to bf16, both together are
// the number. A weight that is computed with in bf16 then needs 4 bytes, not 6.
#pragma once

#include <bit>
#include <cstdint>

namespace coda {

struct SplitF32 {
  std::uint16_t rounded = 0;  ///< bf16 to nearest; a tie goes away from zero, else it would not fit
  std::int16_t low = 0;       ///< what `rounded`, as the upper half of an fp32, lacks
};

/// NaN stays NaN (quiet), without its lower half. device/adamw.cuh has the same.
inline SplitF32 split_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u), 0};
  return {static_cast<std::uint16_t>((bits + 0x8000u) >> 16), static_cast<std::int16_t>(bits)};
}

inline float join_f32(SplitF32 halves) {
  const auto low = static_cast<std::uint32_t>(static_cast<std::int32_t>(halves.low));
  return std::bit_cast<float>((static_cast<std::uint32_t>(halves.rounded) << 16) + low);
}

}  // namespace coda
