#include "coda/dtype.h"

#include <array>

#include "base/check.h"

namespace coda {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Entry, 6> kEntries{{
    {DType::f32, "f32", 4},
    {DType::bf16, "bf16", 2},
    {DType::f16, "f16", 2},
    {DType::f64, "f64", 8},
    {DType::i32, "i32", 4},
    {DType::i64, "i64", 8},
}};

const Entry& entry(DType dtype) { return kEntries.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }

std::string_view name_of(DType dtype) { return entry(dtype).name; }

DType parse_dtype(std::string_view name) {
  for (const Entry& e : kEntries) {
    if (e.name == name) return e.dtype;
  }
  throw_error<UsageError>(
      "dtype: expected f32, bf16, f16, f64, i32 or i64, got \"{}\". Use one of these.", name);
}

bool is_float(DType dtype) { return dtype != DType::i32 && dtype != DType::i64; }

}  // namespace coda
