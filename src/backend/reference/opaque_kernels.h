// Scalar kernels of the opaque nodes, in double: their definition. Views may have any float dtype;
// ids and cu_seqlens are i32 or i64. Inputs have been checked (ranges, extents); nothing here
// throws for values.
#pragma once

#include <span>

#include "coda/op.h"
#include "tensor/tensor.h"

namespace coda::reference {

/// Grouped-query causal attention over packed sequences. attrs: index n_heads, index2 n_kv_heads,
/// period head_dim, value scale, lo window and softcap (0: none). q, o: [M, n_heads * head_dim];
/// k, v: [M, n_kv_heads * head_dim]; cu_seqlens: B + 1 integers; lse: [M, n_heads], the log-sum-exp
/// of each row's scores.
void attention_forward(const Attrs& attrs, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& cu_seqlens, const TensorView& o,
                       const TensorView& lse);

void attention_backward(const Attrs& attrs, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& cu_seqlens, const TensorView& o,
                        const TensorView& lse, const TensorView& d_o, const TensorView& d_q,
                        const TensorView& d_k, const TensorView& d_v);

/// attention_forward behind the rows of a cache, to which k and v are written first (layout:
/// cached_attention in coda/graph.h). attrs: also hi, the capacity.
void cached_attention(const Attrs& attrs, const TensorView& q, const TensorView& k,
                      const TensorView& v, const TensorView& cache_k, const TensorView& cache_v,
                      const TensorView& cu_seqlens, const TensorView& past, const TensorView& o);

/// x[r] = table[ids[r]].
void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x);

/// d_table = 0, or what it was if it accumulates, plus the sum of d_x[r] over all r with ids[r], in
/// ascending r; sums are taken in double.
void embedding_backward(const TensorView& ids, const TensorView& d_x, const TensorView& d_table,
                        bool accumulates);

/// Calls the kernel of a registry row (ops/opaque.h) with its operands in the row's order.
/// accumulates: as Step::accumulates.
void run_opaque(Opaque opaque, const Attrs& attrs, std::span<const TensorView> inputs,
                std::span<const TensorView> outputs, bool accumulates = false);

}  // namespace coda::reference
