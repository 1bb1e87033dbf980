// A contiguous tensor in a backend's memory, with copies to and from the host.
#pragma once

#include "backend/backend.h"

namespace coda {

class BackendTensor {
 public:
  BackendTensor() = default;
  /// Zeros. The backend must outlive the tensor's use.
  BackendTensor(Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols)
      : backend_(&backend), view_{nullptr, dtype, rows, cols, cols} {
    memory_ = backend.allocate(view_.bytes());
    view_.data = memory_.get();
  }

  const TensorView& view() const { return view_; }
  std::size_t bytes() const { return view_.bytes(); }
  explicit operator bool() const { return backend_ != nullptr; }

  /// All elements; `from`, `to` hold bytes().
  void upload(const void* from) { backend_->upload(view_.data, from, bytes()); }
  void download(void* to) const { backend_->download(to, view_.data, bytes()); }
  void fill_zero() { backend_->fill_zero(view_.data, bytes()); }

 private:
  Backend* backend_ = nullptr;
  std::shared_ptr<void> memory_;
  TensorView view_;
};

}  // namespace coda
