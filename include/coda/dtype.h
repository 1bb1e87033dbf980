// Memory types of tensors. Programs compute in fp32 (the reference backend also in fp64); a memory
// type appears only where a value is loaded or stored, and the one rounding happens there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coda {

/// f64 is for the reference backend and for tests; no program on a fast backend stores it.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64 };

/// Bytes of one element.
std::size_t size_of(DType dtype);

/// "f32", "bf16", "f16", "f64", "i32" or "i64".
std::string_view name_of(DType dtype);

/// Inverse of name_of. Throws UsageError that lists the names.
DType parse_dtype(std::string_view name);

/// True for f32, bf16, f16, f64.
bool is_float(DType dtype);

}  // namespace coda
