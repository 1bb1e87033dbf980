// Causal grouped-query attention over packed sequences on the CPU: fp32 math on f32, bf16 or f16
// memory, in blocks of queries and keys with an online softmax, so that no [T, T] matrix exists
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022).
//
// For each sequence, query t, query head h and its key-value head g = h / (n_heads / n_kv_heads):
//   s[j] = scale * q[t, h] . k[j, g], j <= t;  p = softmax(s);  o[t, h] = sum_j p[j] v[j, g]
//   lse[t, h] = log sum_j exp(s[j])
// Backward, with dp[j] = d_o[t, h] . v[j, g] and delta = d_o[t, h] . o[t, h]:
//   ds[j] = p[j] (dp[j] - delta);  d_q[t, h] = scale sum_j ds[j] k[j, g]
//   d_k[j, g] = scale sum_{t, h} ds[j] q[t, h];  d_v[j, g] = sum_{t, h} p[j] d_o[t, h]
// With softcap c, c tanh(s / c) takes the place of s, and ds is multiplied by 1 / cosh^2(s / c);
// with a window W, j > t - W.
// Every sum has one order, whatever the threads are: results are the same bit for bit.
#pragma once

#include "backend/cpu/opaque_kernels.h"

namespace coda::cpu {

/// Shared out over blocks of queries and key-value heads. Workspace: one block a thread.
extern const OpaqueKernel kAttention;

/// Shared out over sequences and key-value heads. Workspace: the gradients of one key-value head's
/// keys and values in fp32, a thread.
extern const OpaqueKernel kAttentionBackward;

}  // namespace coda::cpu
