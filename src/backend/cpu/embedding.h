// Rows of an embedding table picked by token ids, and the sum of their gradients. The backward
// pass is shared out over columns, each summed in ascending order of tokens in fp32: deterministic
// for any number of threads, with no sorting and no atomics.
#pragma once

#include "backend/cpu/opaque_kernels.h"

namespace coda::cpu {

extern const OpaqueKernel kEmbedding;
extern const OpaqueKernel kEmbeddingBackward;

}  // namespace coda::cpu
