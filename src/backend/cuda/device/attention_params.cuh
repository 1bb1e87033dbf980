// Kernel parameters of attention, included by host and device (see params.cuh).
#pragma once

namespace coda_device {

/// A matrix of rows of tokens: element (t, c) at pointer[t * stride + c].
struct AttentionRows {
  void* pointer;
  long long stride;  ///< elements
};

/// Operands of every attention kernel; a kernel reads those of its own direction. q, o, d_o, d_q
/// have n_heads blocks of head_dim columns; k, v, d_k, d_v have n_heads / group.
struct AttentionParams {
  AttentionRows q, k, v, o, d_o, d_q, d_k, d_v;
  float* lse;               ///< [tokens, n_heads]
  long long lse_stride;
  float* delta;             ///< [tokens, n_heads], dot(o, d_o)
  const void* cu_seqlens;   ///< sequences + 1 offsets
  int wide_offsets;         ///< offsets are 64-bit
  int sequences;
  int tokens;
  int n_heads;
  int group;                ///< query heads of one key-value head
  int slots;                ///< tiles of rows to look for: tokens / kAttentionTile + sequences
  int aligned;              ///< all pointers and rows lie at multiples of 16 bytes
  float scale;
};

constexpr int kAttentionTile = 64;  ///< rows of queries or keys in a tile

}  // namespace coda_device
