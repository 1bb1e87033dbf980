// Kernel parameters of attention to a cache, included by host and device (see params.cuh).
#pragma once

namespace coda_device {

/// A matrix: element (r, c) at pointer[r * stride + c].
struct CacheRows {
  void* pointer;
  long long stride;  ///< elements
};

struct CachedAttentionParams {
  CacheRows q, k, v, o;        ///< [tokens, heads * head_dim]
  CacheRows cache_k, cache_v;  ///< [sequences * kv_heads * capacity, head_dim]
  const void* cu_seqlens;      ///< sequences + 1 offsets
  const void* past;            ///< of each sequence: rows in the cache
  int wide_offsets, wide_past; ///< they are 64-bit
  int sequences;
  int tokens;
  int kv_heads;
  int group;                   ///< query heads of one key-value head
  int splits;                  ///< parts of the keys, at most
  long long capacity;
  float scale;
  long long window;            ///< keys that a query sees at most; read if kWindow
  float softcap;               ///< read if kSoftcap
  float* part_o;               ///< [slots, kv_heads, splits, kCacheQueries, head_dim], sums
  float* part_rows;            ///< [slots, kv_heads, splits, kCacheQueries, 2], largest and total
  unsigned* error_flag;
};

constexpr int kCacheQueries = 4;   ///< rows of a block: they share the keys they read
constexpr int kCacheStep = 64;     ///< keys of a CTA's step; parts of the keys are multiples
constexpr int kMostParts = 64;     ///< of the keys
constexpr int kCacheColumns = 128; ///< of the result, that a CTA makes at most

}  // namespace coda_device
