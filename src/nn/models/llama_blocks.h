// The parts of a LLaMA between its opaque nodes, with random-access inputs in place of the
// neighbours: what `coda explain` and benchmarks compile. The layer is that of the paper: from one
// attention's result to the next attention's queries, keys and values.
#pragma once

#include <cstdint>

#include "coda/graph.h"
#include "plan/compile.h"

namespace coda {

struct LlamaBlockSizes {
  std::int64_t d_model = 2048;
  std::int64_t d_ff = 0;  ///< 0: int(8/3 d_model), rounded up to a multiple of 256, as in the paper
  std::int64_t head_dim = 128;
  std::int64_t n_kv_heads = 0;  ///< 0: as many as heads
  std::int64_t vocab = 32768;
  double eps = 1e-6;
  DType dtype = DType::bf16;  ///< of tile inputs, their cotangents and weights
};

/// The sizes with defaults filled in; without heads, those of the head (d_model, vocab, dtype)
/// only. Throws UsageError for sizes that do not fit together.
LlamaBlockSizes complete(const LlamaBlockSizes& sizes, bool has_heads = true);

/// x1 = attention_out o_proj^T + residual; x2 = swiglu(gate, up of rms_norm(x1)) down^T + x1;
/// q, k = rope(...), v of rms_norm(x2). Outputs x2, q, k, v with cotangents d_x2, d_q, d_k, d_v;
/// gradients of both tile inputs and all weights.
CompileRequest llama_layer_block(Graph& graph, const LlamaBlockSizes& sizes);

/// The mean cross-entropy of hidden head^T; gradients of both.
CompileRequest llama_head_block(Graph& graph, const LlamaBlockSizes& sizes);

}  // namespace coda
