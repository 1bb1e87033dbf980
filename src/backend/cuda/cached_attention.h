// Attention to a cache on the GPU (the row cached_attention of ops/opaque.h): keys and values of
// earlier runs stay on the device, those of a run go behind them. How many rows the cache has is
// read on the device, so a recorded run can be replayed for every next token. Any head_dim, bf16,
// f16 and f32, on the ordinary arithmetic units in fp32. Keys are cut into parts by what a query
// sees and by the rows of the run, never by timing or by the GPU, and added in ascending order:
// bits repeat.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device/cached_attention_params.cuh"
#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

/// What of a step is compiled into its kernels.
struct CachedAttentionVariant {
  DType dtype = DType::bf16;  ///< of q, k, v, the caches and o
  std::int64_t head_dim = 0;
  /// All rows lie at multiples of 16 bytes and of 8 elements.
  bool aligned = false;
  bool window = false, softcap = false;  ///< there is one; which is a parameter
};

/// In the order of launches: parts, sums.
std::vector<KernelSource> cached_attention_sources(const CachedAttentionVariant& variant);

struct CachedAttentionLaunches {
  coda_device::CachedAttentionParams params{};
  unsigned parts_grid = 0, parts_grid_y = 0, sums_grid = 0;  ///< 0: nothing to do
};

/// Threads of a block of either kernel (device/cached_attention.cuh).
inline constexpr unsigned kCachedAttentionThreads = 128;

/// Host work only. views: of the registry row's operands, in order. `workspace`: of
/// cached_attention_workspace_bytes. Throws UsageError for more sequences than the cache has room
/// for, and for lists of other lengths.
CachedAttentionLaunches cached_attention_launches(const Attrs& attrs,
                                                  std::span<const TensorView> views,
                                                  std::int64_t tokens, void* workspace,
                                                  unsigned* error_flag);

/// Can pieces of 16 bytes be read of all operands but the lists?
bool is_aligned_for_cache(const Attrs& attrs, std::span<const TensorView> views);

/// `cache_rows`: of cache_k.
std::size_t cached_attention_bytes(const Attrs& attrs, std::int64_t cache_rows,
                                   std::int64_t max_tokens);

}  // namespace coda::cuda
