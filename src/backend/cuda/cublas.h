// cuBLAS, opened at run time: the yardstick of benchmarks and accuracy tests. Nothing that coda
// runs depends on it.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/gemm.h"

namespace coda::cuda {

class Cublas {
 public:
  /// Throws BackendError with why_not() if the library cannot be opened.
  explicit Cublas(const Stream& stream);
  ~Cublas();

  /// Why it cannot be opened; empty if it can. CODA_CUBLAS names the library or its folder.
  static const std::string& why_not();

  /// C = A B^T or C += A B^T, fp32 accumulation, as torch calls it. One block of B and of C.
  void gemm(const GemmShape& shape, const GemmOperands& operands);

  std::string version() const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  DeviceBuffer workspace_;
};

}  // namespace coda::cuda
