// What the CPU kernels of opaque nodes (attention, embedding; ops/opaque.h) look like. The session
// checks extents, dtypes and ranges (cu_seqlens ascending from 0 to M, ids inside the vocabulary)
// and hands over memory; a kernel allocates nothing and writes its outputs only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/thread_pool.h"
#include "ops/opaque.h"
#include "tensor/tensor.h"

namespace coda::cpu {

/// One run of an opaque step on M tokens. Operands are in the order of the registry row; tiles and
/// cols have M rows, may be strided, and are f32, bf16 or f16 (ids, lists: i32 or i64).
struct OpaqueCall {
  const Attrs& attrs;
  std::int64_t tokens;
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  std::span<std::byte> workspace;  ///< 64-byte aligned, as large as `workspace_bytes` asked for
  ThreadPool& pool;
  bool accumulates = false;  ///< Step::accumulates
};

struct OpaqueKernel {
  /// Bytes of workspace for up to max_tokens rows; called once, when a session is prepared. Null:
  /// none needed.
  std::size_t (*workspace_bytes)(const Attrs& attrs, std::int64_t max_tokens, int threads);
  /// Results must not depend on the number of threads.
  void (*run)(const OpaqueCall& call);
};

/// The kernel of a registry row; throws BackendError for one without a kernel here.
const OpaqueKernel& kernel_of(Opaque opaque);

}  // namespace coda::cpu
