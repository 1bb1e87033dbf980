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
  float* inverse;           ///< [tokens, n_heads], 1 / sum of p: on the ordinary units
  const void* cu_seqlens;   ///< sequences + 1 offsets
  int wide_offsets;         ///< offsets are 64-bit
  int sequences;
  int tokens;
  int n_heads;
  int group;                ///< query heads of one key-value head
  int slots;                ///< tiles of rows to look for: tokens / kBlockRows + sequences
  int aligned;              ///< all pointers and rows lie at multiples of 16 bytes
  float scale;
  int window;               ///< keys that a query sees at most; read if kWindow
  float softcap;            ///< read if kSoftcap
};

/// Of attention_offsets.cuh: what cuDNN reads beside the matrices.
struct AttentionOffsetsParams {
  const void* cu_seqlens;   ///< sequences + 1 offsets
  int* lengths;             ///< [places]
  long long* offsets;       ///< [matrices, places + 1], elements
  long long strides[9];     ///< of each matrix, elements from a row to the next
  int wide_offsets;         ///< cu_seqlens are 64-bit
  int sequences;
  int places;               ///< at least sequences
  int tokens;
  int matrices;
};

constexpr int kAttentionTile = 64;  ///< rows of queries or keys in a tile

}  // namespace coda_device
