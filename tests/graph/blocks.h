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

/// A value and what its gradients are wanted for.
struct Block {
  Tensor value;
  std::vector<Tensor> wrt;
};

/// Mean cross-entropy of norm(y W^T + x) Wl^T; all ignored: a loss of NaN, gradients of zero.
inline Block head(Graph& g, std::int64_t d, std::int64_t vocab) {
  const Tensor y = g.tile("y", d), x = g.tile("x", d), n = g.row("n", d);
  const Tensor w = g.weight("w", d, d), wl = g.weight("wl", vocab, d);
  const Tensor targets = g.col("t", DType::i32);
  const Tensor hidden = matmul_nt(y, w) + x;
  const Tensor logits = matmul_nt(rms_norm(hidden, n), wl);
  const Tensor ok = valid(targets), count = sum(ok);
  const Tensor rows = ok * (lse(logits) - pick(logits, targets));
  const Tensor mean = sum(rows * (g.constant(1) / maximum(count, 1.0)));
  return {mean + g.constant(0) / count, {y, x, n, w, wl}};
}

/// x + attention-like branch + gated branch of one norm, with biases and a norm after the second.
inline Block parallel_block(Graph& g, std::int64_t d, std::int64_t f) {
  const Tensor o = g.tile("o", d), x0 = g.tile("x0", d);
  const Tensor w = g.weight("w", d, d), wo = g.weight("wo", d, d);
  const Tensor w1 = g.weight("w1", f, d), w2 = g.weight("w2", d, f), wq = g.weight("wq", d, d);
  const Tensor b1 = g.row("b1", f), bo = g.row("bo", d), n = g.row("n", d), m = g.row("m", d);
  const Tensor x = matmul_nt(x0, w) + x0;
  const Tensor h = rms_norm(x, n);
  const Tensor q = matmul_nt(h, wq);
  const Tensor mlp = rms_norm(matmul_nt(silu(matmul_nt(h, w1) + b1), w2), m);
  const Tensor y = x + (matmul_nt(o * sigmoid(q), wo) + bo) + mlp;
  return {y, {o, x0, w, wo, w1, w2, wq, b1, bo, n, m}};
}

/// Heads of q normalised one by one, then turned.
inline Block qk_norm(Graph& g, std::int64_t heads, std::int64_t head) {
  const std::int64_t d = heads * head;
  const Tensor x0 = g.tile("x0", d), w0 = g.weight("w0", d, d), wq = g.weight("wq", d, d);
  const Tensor n = g.row("n", d), nq = g.row("nq", head);
  const Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", head);
  const Tensor x = matmul_nt(x0, w0) + x0;
  const Tensor q = matmul_nt(rms_norm(x, n), wq);
  const Tensor mean = segment_sum(q * q, head) / static_cast<double>(head);
  const Tensor normed = q * segment_broadcast(rsqrt(mean + 1e-6), head) * repeat(nq, heads);
  return {rotate(normed, pos, freq, Pairs::halves(head)), {x0, w0, wq, n, nq}};
}

}  // namespace coda::testing
