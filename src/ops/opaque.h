// Registry of nodes that are not math here: attention and embedding. Each row lists operands and
// results; kernels live in the backends. Backward is another row.
//   attention           q, k, v, cu_seqlens -> o [M, n_heads * head_dim], lse [M, n_heads] (f32)
//   attention_backward  q, k, v, cu_seqlens, o, lse, d_o -> d_q, d_k, d_v
//   embedding           table [vocab, d], ids -> x [M, d]
//   embedding_backward  ids, d_x -> d_table [vocab, d] (f32)
//   cached_attention    q, k, v, cache_k, cache_v, cu_seqlens, past -> o; updates cache_k, cache_v
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "coda/op.h"

namespace coda {

/// What a backward row takes as an operand: a forward input, a forward output, or the cotangent of
/// forward output 0.
struct OpaqueSource {
  enum class From : std::uint8_t { input, output, cotangent } from;
  int index;
};

struct OpaqueRow {
  Opaque opaque;
  std::string_view name;
  std::span<const std::string_view> inputs;
  std::span<const std::string_view> outputs;
  Opaque backward;                                ///< none: not differentiable
  std::span<const OpaqueSource> backward_inputs;  ///< operands of the backward row, in order
  std::span<const int> gradient_of;  ///< of the backward row: forward input each output belongs to
  /// Inputs that a run writes, in place: the caller who binds memory to them asks for that.
  std::span<const int> updates = {};
  bool accumulates = false;  ///< kernels can add the results to what their memory holds
};

const OpaqueRow& row_of(Opaque opaque);

}  // namespace coda
