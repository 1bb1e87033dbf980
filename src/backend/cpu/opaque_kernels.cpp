#include "backend/cpu/opaque_kernels.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/cached_attention.h"
#include "backend/cpu/embedding.h"
#include "base/check.h"

namespace coda::cpu {

const OpaqueKernel& kernel_of(Opaque opaque) {
  switch (opaque) {
    case Opaque::attention:
      return kAttention;
    case Opaque::attention_backward:
      return kAttentionBackward;
    case Opaque::embedding:
      return kEmbedding;
    case Opaque::embedding_backward:
      return kEmbeddingBackward;
    case Opaque::cached_attention:
      return kCachedAttention;
    case Opaque::none:
      break;
  }
  throw_error<BackendError>(
      "cpu: {}: expected a node with a CPU kernel, got none. Use the reference backend.",
      static_cast<int>(opaque));
}

}  // namespace coda::cpu
