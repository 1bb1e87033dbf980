// Typed buffers, no arithmetic. A view is what backends are bound to; a HostTensor owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coda/dtype.h"

namespace coda {

/// A strided matrix in memory that somebody else owns, who keeps it while the view is in use. Col
/// vector: cols = 1, stride = 1. Row vector and scalar: rows = 1. List: a col or a row. Element
/// (r, c) is at data + (r * stride + c) * size_of(dtype), in bytes. data may be null when empty.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  ///< elements from a row to the next

  /// T: what dtype stores, uint16_t for bf16 and f16. Nothing is checked.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// Of the elements, without what lies between rows.
  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * size_of(dtype); }
};

/// Owns contiguous, 64-byte aligned, zero-initialised host memory of any dtype. Movable: memory
/// stays where it is, so that views stay good, and what was moved from holds nothing.
class HostTensor {
 public:
  HostTensor() = default;
  /// Throws UsageError if an extent is negative or the product too large, BackendError if there is
  /// no such memory.
  HostTensor(DType dtype, std::int64_t rows, std::int64_t cols);

  /// Good as long as the memory: writing through it is allowed, also of a const tensor.
  TensorView view() const { return {data_.get(), dtype_, rows_, cols_, cols_}; }
  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t size() const { return rows_ * cols_; }
  /// All elements, row after row; none of a tensor that was moved from. T is what dtype stores
  /// (uint16_t for bf16 and f16): one of another size throws UsageError.
  template <class T>
  std::span<T> as() const {
    if (data_ == nullptr) return {};
    check_element(sizeof(T));
    return {static_cast<T*>(data_.get()), static_cast<std::size_t>(size())};
  }

  /// Element (r, c) at index r * cols + c, of any dtype; slow, for tests and I/O. set rounds to the
  /// dtype. Throw UsageError for an index outside [0, size()).
  double get(std::int64_t index) const;
  void set(std::int64_t index, double value);

 private:
  void check_element(std::size_t bytes) const;

  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace coda
