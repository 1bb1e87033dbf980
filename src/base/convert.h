// Scalar conversion between fp32 and the 16-bit types, rounding to nearest even. These define the
// rounding; backends convert in bulk with vector instructions and must agree bit for bit.
#pragma once

#include <bit>
#include <cstdint>

namespace coda {

/// bf16 keeps the upper half of an fp32. NaN stays NaN (quiet).
inline std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f32_from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// IEEE binary16, with subnormals; beyond 65504 rounds to infinity.
std::uint16_t f16_from_f32(float value);
float f32_from_f16(std::uint16_t value);

}  // namespace coda
