// Blocks of models as math, for the tests of the compiler's rewrites.
#pragma once

#include "coda/graph.h"

namespace coda::testing {

inline Tensor rms_norm(Tensor x, Tensor weight) {
  const double n = static_cast<double>(x.type().cols);
  return x * rsqrt(row_sum(x * x) / n + 1e-6) * weight;
}

inline Tensor silu(Tensor x) { return x * sigmoid(x); }

struct LlamaLayer {
  std::vector<Tensor> outputs;     // x2, q, k, v
  std::vector<Tensor> cotangents;  // of x1, x2, q, k, v as inputs
  std::vector<Tensor> wrt;
  std::vector<Seed> seeds() const {
    std::vector<Seed> result;
    for (std::size_t i = 0; i < outputs.size(); ++i) result.push_back({outputs[i], cotangents[i]});
    return result;
  }
};

/// x1 = y0 W0^T + x0; y1 = swiglu(norm(x1)); x2 = y1 W2^T + x1; q, k, v = norm(x2) W^T, q and k
/// rotated.
inline LlamaLayer llama_layer(Graph& g, std::int64_t d, std::int64_t f, std::int64_t head,
                              std::int64_t kv) {
  const Tensor y0 = g.tile("y0", d), x0 = g.tile("x0", d);
  const Tensor w0 = g.weight("w0", d, d), wg = g.weight("wg", f, d), wu = g.weight("wu", f, d);
  const Tensor w2 = g.weight("w2", d, f), wq = g.weight("wq", d, d);
  const Tensor wk = g.weight("wk", kv, d), wv = g.weight("wv", kv, d);
  const Tensor n0 = g.row("n0", d), n1 = g.row("n1", d);
  const Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", head);
  const Tensor x1 = g.named(matmul_nt(y0, w0) + x0, "x1");
  const Tensor h0 = rms_norm(x1, n0);  // each product in a statement of its own: C++ leaves the
                                       // order of operands open, and ids follow it
  const Tensor gate = matmul_nt(h0, wg), up = matmul_nt(h0, wu);
  const Tensor y1 = g.named(silu(gate) * up, "y1");
  const Tensor x2 = g.named(matmul_nt(y1, w2) + x1, "x2");
  const Tensor h1 = rms_norm(x2, n1);
  const Tensor q = g.named(rotate(matmul_nt(h1, wq), pos, freq, Pairs::halves(head)), "q");
  const Tensor k = g.named(rotate(matmul_nt(h1, wk), pos, freq, Pairs::halves(head)), "k");
  const Tensor v = g.named(matmul_nt(h1, wv), "v");
  LlamaLayer layer;
  layer.outputs = {x2, q, k, v};
  layer.cotangents = {g.tile("d_x2", d), g.tile("d_q", d), g.tile("d_k", kv), g.tile("d_v", kv)};
  layer.wrt = {y0, x0, w0, wg, wu, w2, wq, wk, wv, n0, n1};
  return layer;
}

}  // namespace coda::testing
