#include "backend/cpu/opaque_kernels.h"

#include "base/check.h"

namespace coda::cpu {

const OpaqueKernel& kernel_of(Opaque opaque) {
  throw_error<BackendError>(
      "cpu: {}: expected a node with a CPU kernel, got none. Use the "
      "reference backend.",
      static_cast<int>(opaque));
}

}  // namespace coda::cpu
