// Typed buffers, no arithmetic. A view is what backends are bound to; a HostTensor owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coda/dtype.h"

namespace coda {

/// A strided matrix in memory. Col vector: cols = 1, stride = 1. Row vector and scalar: rows = 1.
/// Element (r, c) is at data + (r * stride + c) * size_of(dtype). data may be null when empty.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  ///< elements from a row to the next

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * size_of(dtype); }
};

/// Owns contiguous, 64-byte aligned, zero-initialised host memory. Movable.
class HostTensor {
 public:
  HostTensor() = default;
  /// Throws UsageError if an extent is negative or the product too large.
  HostTensor(DType dtype, std::int64_t rows, std::int64_t cols);

  TensorView view() const { return {data_.get(), dtype_, rows_, cols_, cols_}; }
  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t size() const { return rows_ * cols_; }
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data_.get()), static_cast<std::size_t>(size())};
  }

  double get(std::int64_t index) const;        ///< element as double, any dtype; for tests and I/O
  void set(std::int64_t index, double value);  ///< rounds to the dtype

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace coda
