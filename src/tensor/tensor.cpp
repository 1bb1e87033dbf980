#include "tensor/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/convert.h"

namespace coda {
namespace {

/// Aligned to lines of the cache; null if there is none. What spans several huge pages asks for
/// them, where the system gives them to those that ask: columns of long rows touch a page a row.
void* allocate(std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes >= 2 * kHugePage) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kHugePage, bytes) != 0) return nullptr;
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // advice: without it everything works as well
    return memory;
  }
#endif
  return std::aligned_alloc(64, bytes);
}

}  // namespace

void HostTensor::Free::operator()(void* p) const { std::free(p); }

HostTensor::HostTensor(DType dtype, std::int64_t rows, std::int64_t cols)
    : dtype_(dtype), rows_(rows), cols_(cols) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() / 16;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > kMax / cols)) {
    throw_error<UsageError>(
        "tensor: expected extents >= 0 that fit memory, got [{}, {}]. Give smaller ones.", rows,
        cols);
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  const std::size_t padded = (bytes + 127) / 64 * 64;  // a vector load may read past the end
  void* memory = allocate(padded);
  if (memory == nullptr) throw_error<BackendError>("tensor: out of memory for {} bytes", padded);
  std::memset(memory, 0, padded);
  data_.reset(memory);
}

namespace {

std::size_t checked(const char* where, std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size) {
    throw_error<UsageError>(
        "HostTensor::{}: expected an index in [0, {}), got {}. Element (r, c) is at r * cols + c.",
        where, size, index);
  }
  return static_cast<std::size_t>(index);
}

}  // namespace

void HostTensor::check_element(std::size_t bytes) const {
  if (bytes == size_of(dtype_)) return;
  throw_error<UsageError>(
      "HostTensor::as: expected a type of {} bytes, as {} is stored in, got one of {}. bf16 and "
      "f16 "
      "are stored as std::uint16_t.",
      size_of(dtype_), name_of(dtype_), bytes);
}

double HostTensor::get(std::int64_t index) const {
  const std::size_t i = checked("get", index, data_ ? size() : 0);
  switch (dtype_) {
    case DType::f32:
      return as<float>()[i];
    case DType::bf16:
      return f32_from_bf16(as<std::uint16_t>()[i]);
    case DType::f16:
      return f32_from_f16(as<std::uint16_t>()[i]);
    case DType::f64:
      return as<double>()[i];
    case DType::i32:
      return as<std::int32_t>()[i];
    case DType::i64:
      return static_cast<double>(as<std::int64_t>()[i]);
  }
  throw InternalError("HostTensor::get: unknown dtype");
}

void HostTensor::set(std::int64_t index, double value) {
  const std::size_t i = checked("set", index, data_ ? size() : 0);
  switch (dtype_) {
    case DType::f32:
      as<float>()[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(value));
      return;
    case DType::f16:
      as<std::uint16_t>()[i] = f16_from_f32(static_cast<float>(value));
      return;
    case DType::f64:
      as<double>()[i] = value;
      return;
    case DType::i32:
      as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
      return;
  }
}

}  // namespace coda
