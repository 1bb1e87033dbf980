// The blocks that plan tests compile, as math on a Graph: a LLaMA layer between two attention
// calls, the head, a parallel block with two heads. Operators are plain functions over ops.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "plan/compile.h"

namespace coda::blocks {

/// x * weight / sqrt(mean(x^2) + eps)
inline Tensor rms_norm(Tensor x, Tensor weight, double eps = 1e-6) {
  const auto n = static_cast<double>(x.type().cols);
  return x * rsqrt(row_sum(x * x) * (1 / n) + eps) * weight;
}

inline Tensor silu(Tensor x) { return x * sigmoid(x); }

/// x * (1 + erf(x / sqrt 2)) / 2
inline Tensor gelu(Tensor x) { return x * 0.5 * (erf(x * 0.70710678118654752) + 1); }

/// (x - mean) / sqrt(variance + eps) * weight + bias
inline Tensor layer_norm(Tensor x, Tensor weight, Tensor bias, double eps = 1e-5) {
  const auto n = static_cast<double>(x.type().cols);
  Tensor centred = x - row_sum(x) * (1 / n);
  return centred * rsqrt(row_sum(centred * centred) * (1 / n) + eps) * weight + bias;
}

/// Mean of lse(z) - z[target] over the rows whose target is not ignored.
inline Tensor cross_entropy(Tensor z, Tensor targets) {
  Graph& g = z.graph();
  Tensor counted = valid(targets);
  Tensor count = sum(counted);
  Tensor scale = g.constant(1) / maximum(count, 1.0);
  return sum(counted * (lse(z) - pick(z, targets)) * scale) + g.constant(0) / count;
}

struct Sizes {
  std::int64_t d = 64;
  std::int64_t f = 96;
  std::int64_t head = 16;
  std::int64_t kv = 64;  ///< width of k and of v
  std::int64_t vocab = 128;
  bool joint_gate_up = false;  ///< gate and up interleaved in one weight
  DType tile = DType::f32;     ///< memory type of tile inputs and weights
};

/// The part of a LLaMA layer between two attention calls: y0 is attention's result, x0 the
/// residual; x2 the new residual, q, k, v go into the next attention.
inline CompileRequest llama_layer(Graph& g, const Sizes& s) {
  Tensor y0 = g.tile("y0", s.d, s.tile), x0 = g.tile("x0", s.d, s.tile);
  Tensor w0 = g.weight("w0", s.d, s.d, s.tile), w2 = g.weight("w2", s.d, s.f, s.tile);
  Tensor n0 = g.row("n0", s.d), n1 = g.row("n1", s.d);
  Tensor wq = g.weight("wq", s.d, s.d, s.tile), wk = g.weight("wk", s.kv, s.d, s.tile),
         wv = g.weight("wv", s.kv, s.d, s.tile);
  Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", s.head);
  Tensor x1 = g.named(matmul_nt(y0, w0) + x0, "x1");
  Tensor h1 = rms_norm(x1, n0);
  std::vector<Tensor> wrt{y0, x0, w0, n0};
  Tensor gate, up;
  if (s.joint_gate_up) {
    Tensor w1 = g.weight("w1", 2 * s.f, s.d, s.tile);
    Tensor z1 = g.named(matmul_nt(h1, w1), "z1");
    gate = first_of_pair(z1, Pairs::interleaved());
    up = second_of_pair(z1, Pairs::interleaved());
    wrt.push_back(w1);
  } else {
    Tensor wg = g.weight("wg", s.f, s.d, s.tile), wu = g.weight("wu", s.f, s.d, s.tile);
    gate = g.named(matmul_nt(h1, wg), "gate");
    up = g.named(matmul_nt(h1, wu), "up");
    wrt.push_back(wg);
    wrt.push_back(wu);
  }
  Tensor y1 = g.named(silu(gate) * up, "y1");
  Tensor x2 = g.named(matmul_nt(y1, w2) + x1, "x2");
  Tensor h2 = rms_norm(x2, n1);
  const Pairs pairs = Pairs::halves(s.head);
  Tensor q = g.named(rotate(matmul_nt(h2, wq), pos, freq, pairs), "q");
  Tensor k = g.named(rotate(matmul_nt(h2, wk), pos, freq, pairs), "k");
  Tensor v = g.named(matmul_nt(h2, wv), "v");
  for (Tensor t : {w2, n1, wq, wk, wv}) wrt.push_back(t);
  CompileRequest request;
  request.outputs = {{"x2", x2, g.tile("d_x2", s.d, s.tile)},
                     {"q", q, g.tile("d_q", s.d, s.tile)},
                     {"k", k, g.tile("d_k", s.kv, s.tile)},
                     {"v", v, g.tile("d_v", s.kv, s.tile)}};
  request.wrt = wrt;
  return request;
}

/// The down projection, the last norm, and mean cross-entropy of h Wl^T.
inline CompileRequest head(Graph& g, const Sizes& s) {
  Tensor y1 = g.tile("y1", s.f, s.tile), x1 = g.tile("x1", s.d, s.tile);
  Tensor w2 = g.weight("w2", s.d, s.f, s.tile), wl = g.weight("wl", s.vocab, s.d, s.tile);
  Tensor n = g.row("n", s.d), targets = g.col("targets", DType::i32);
  Tensor x2 = g.named(matmul_nt(y1, w2) + x1, "x2");
  Tensor z = g.named(matmul_nt(rms_norm(x2, n), wl), "logits");
  CompileRequest request;
  request.outputs = {{"loss", cross_entropy(z, targets), g.constant(1)}};
  request.wrt = {y1, x1, w2, n, wl};
  return request;
}

/// A residual, the last norm and the sum of the losses, which needs no count of all rows; `tied`:
/// the head's weight is also the table that the rows come from.
inline CompileRequest summed_head(Graph& g, const Sizes& s, bool tied) {
  Tensor wl = g.weight("wl", s.vocab, s.d, s.tile), w = g.weight("w", s.d, s.d, s.tile);
  Tensor n = g.row("n", s.d), targets = g.col("targets", DType::i32);
  Tensor x = tied ? embedding(wl, g.col("ids", DType::i32)) : g.tile("x", s.d, s.tile);
  Tensor z = g.named(matmul_nt(rms_norm(x + matmul_nt(x, w), n), wl), "logits");
  CompileRequest request;
  request.outputs = {{"loss", sum(valid(targets) * (lse(z) - pick(z, targets))), g.scalar("d")}};
  request.wrt = {wl, n, w};
  if (!tied) request.wrt.push_back(x);
  return request;
}

/// Attention's output projection and an MLP in parallel from one norm, with biases; the MLP's
/// result is normalised before it is added; two heads (a bounded value and logits) read one x.
inline CompileRequest parallel_block(Graph& g, const Sizes& s) {
  Tensor o = g.tile("o", s.d, s.tile), x = g.tile("x", s.d, s.tile);
  Tensor wo = g.weight("wo", s.d, s.d, s.tile), w1 = g.weight("w1", s.f, s.d, s.tile),
         w2 = g.weight("w2", s.d, s.f, s.tile), wa = g.weight("wa", s.d, s.d, s.tile),
         wb = g.weight("wb", s.kv, s.d, s.tile);
  Tensor bo = g.row("bo", s.d), b1 = g.row("b1", s.f), b2 = g.row("b2", s.d), n0 = g.row("n0", s.d),
         n1 = g.row("n1", s.d), n2 = g.row("n2", s.d);
  Tensor h = rms_norm(x, n0);
  Tensor m = g.named(matmul_nt(gelu(matmul_nt(h, w1) + b1), w2) + b2, "m");
  Tensor y = g.named(x + (matmul_nt(o, wo) + bo) + rms_norm(m, n1), "y");
  Tensor hy = rms_norm(y, n2);
  Tensor value = g.named(tanh(matmul_nt(hy, wa)), "value");
  Tensor logits = g.named(matmul_nt(hy, wb), "logits");
  CompileRequest request;
  request.outputs = {{"y", y, g.tile("d_y", s.d, s.tile)},
                     {"value", value, g.tile("d_value", s.d, s.tile)},
                     {"logits", logits, g.tile("d_logits", s.kv, s.tile)}};
  request.wrt = {o, x, wo, w1, w2, wa, wb, bo, b1, b2, n0, n1, n2};
  return request;
}

/// RMSNorm of every head by itself (QK-norm).
inline Tensor head_norm(Tensor x, Tensor weight, double eps = 1e-6) {
  const std::int64_t width = weight.type().cols;
  Tensor squares = segment_sum(x * x, width) * (1 / static_cast<double>(width));
  return x * segment_broadcast(rsqrt(squares + eps), width) * repeat(weight, x.type().cols / width);
}

inline Tensor softcap(Tensor x, double cap) { return tanh(x * (1 / cap)) * cap; }

/// As llama_layer, with q and k normalised per head before the rotation (Qwen3).
inline CompileRequest qk_norm_layer(Graph& g, const Sizes& s) {
  CompileRequest request = llama_layer(g, s);
  const NodeId pos = g.find_input("pos"), freq = g.find_input("freq");
  for (std::size_t i = 1; i <= 2; ++i) {
    const char* name = i == 1 ? "nq" : "nk";
    Tensor rotated = request.outputs[i].value;
    Tensor x = g.at(g.node(rotated.id()).in[0]);  // what is rotated
    Tensor w = g.row(name, s.head);
    request.outputs[i].value =
        rotate(head_norm(x, w), g.at(pos), g.at(freq), Pairs::halves(s.head));
    request.wrt.push_back(w);
  }
  return request;
}

/// Gemma 2: norms before and after each block, gelu-gated MLP.
inline CompileRequest gemma_layer(Graph& g, const Sizes& s) {
  Tensor y0 = g.tile("y0", s.d, s.tile), x0 = g.tile("x0", s.d, s.tile);
  Tensor w0 = g.weight("w0", s.d, s.d, s.tile), w2 = g.weight("w2", s.d, s.f, s.tile),
         wg = g.weight("wg", s.f, s.d, s.tile), wu = g.weight("wu", s.f, s.d, s.tile),
         wq = g.weight("wq", s.d, s.d, s.tile), wk = g.weight("wk", s.kv, s.d, s.tile),
         wv = g.weight("wv", s.kv, s.d, s.tile);
  Tensor n0 = g.row("n0", s.d), n1 = g.row("n1", s.d), n2 = g.row("n2", s.d), n3 = g.row("n3", s.d);
  Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", s.head);
  const Pairs pairs = Pairs::halves(s.head);
  Tensor x1 = g.named(x0 + rms_norm(matmul_nt(y0, w0), n0), "x1");
  Tensor h = rms_norm(x1, n1);
  Tensor y1 = gelu(matmul_nt(h, wg)) * matmul_nt(h, wu);
  Tensor x2 = g.named(x1 + rms_norm(matmul_nt(y1, w2), n2), "x2");
  Tensor h2 = rms_norm(x2, n3);
  CompileRequest request;
  request.outputs = {
      {"x2", x2, g.tile("d_x2", s.d, s.tile)},
      {"q", rotate(matmul_nt(h2, wq), pos, freq, pairs), g.tile("d_q", s.d, s.tile)},
      {"k", rotate(matmul_nt(h2, wk), pos, freq, pairs), g.tile("d_k", s.kv, s.tile)},
      {"v", matmul_nt(h2, wv), g.tile("d_v", s.kv, s.tile)}};
  request.wrt = {y0, x0, w0, w2, wg, wu, wq, wk, wv, n0, n1, n2, n3};
  return request;
}

/// GPT-2: LayerNorm, biases, gelu, no gate, one q k v projection.
inline CompileRequest gpt2_layer(Graph& g, const Sizes& s) {
  Tensor y0 = g.tile("y0", s.d, s.tile), x0 = g.tile("x0", s.d, s.tile);
  Tensor w0 = g.weight("w0", s.d, s.d, s.tile), w1 = g.weight("w1", s.f, s.d, s.tile),
         w2 = g.weight("w2", s.d, s.f, s.tile), w3 = g.weight("w3", 3 * s.d, s.d, s.tile);
  Tensor b0 = g.row("b0", s.d), b1 = g.row("b1", s.f), b2 = g.row("b2", s.d),
         b3 = g.row("b3", 3 * s.d), n0 = g.row("n0", s.d), m0 = g.row("m0", s.d),
         n1 = g.row("n1", s.d), m1 = g.row("m1", s.d);
  Tensor x1 = g.named(x0 + (matmul_nt(y0, w0) + b0), "x1");
  Tensor y1 = gelu(matmul_nt(layer_norm(x1, n0, m0), w1) + b1);
  Tensor x2 = g.named(x1 + (matmul_nt(y1, w2) + b2), "x2");
  Tensor qkv = matmul_nt(layer_norm(x2, n1, m1), w3) + b3;
  CompileRequest request;
  request.outputs = {{"x2", x2, g.tile("d_x2", s.d, s.tile)},
                     {"q", cols(qkv, 0, s.d), g.tile("d_q", s.d, s.tile)},
                     {"k", cols(qkv, s.d, 2 * s.d), g.tile("d_k", s.d, s.tile)},
                     {"v", cols(qkv, 2 * s.d, 3 * s.d), g.tile("d_v", s.d, s.tile)}};
  request.wrt = {y0, x0, w0, w1, w2, w3, b0, b1, b2, b3, n0, m0, n1, m1};
  return request;
}

/// As head, with softcapped logits.
inline CompileRequest softcap_head(Graph& g, const Sizes& s) {
  CompileRequest request = head(g, s);
  for (NodeId v = 0; v < g.size(); ++v)
    if (g.node(v).name == "logits")
      request.outputs[0].value = cross_entropy(softcap(g.at(v), 30), g.col("targets", DType::i32));
  return request;
}

/// A whole decoder: embedding, `layers` layers with attention, last norm, head, mean loss.
inline CompileRequest model(Graph& g, const Sizes& s, int layers, bool tied = false) {
  const std::int64_t heads = s.d / s.head, kv_heads = s.kv / s.head;
  const Pairs pairs = Pairs::halves(s.head);
  Tensor ids = g.col("ids", DType::i32), targets = g.col("targets", DType::i32);
  Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", s.head);
  Tensor cu_seqlens = g.list("cu_seqlens");
  Tensor table = g.weight("table", s.vocab, s.d, s.tile);
  CompileRequest request;
  request.wrt = {table};
  const auto weight = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    Tensor w = g.weight(name, rows, cols, s.tile);
    request.wrt.push_back(w);
    return w;
  };
  const auto norm = [&](const std::string& name) {
    Tensor w = g.row(name, s.d);
    request.wrt.push_back(w);
    return w;
  };
  Tensor x = embedding(table, ids);
  for (int layer = 0; layer < layers; ++layer) {
    const std::string l = "l" + std::to_string(layer) + ".";
    Tensor h = rms_norm(x, norm(l + "norm1"));
    Tensor q = rotate(matmul_nt(h, weight(l + "wq", s.d, s.d)), pos, freq, pairs);
    Tensor k = rotate(matmul_nt(h, weight(l + "wk", s.kv, s.d)), pos, freq, pairs);
    Tensor v = matmul_nt(h, weight(l + "wv", s.kv, s.d));
    Tensor o = attention(q, k, v, cu_seqlens, heads, kv_heads, s.head,
                         1 / std::sqrt(static_cast<double>(s.head)));
    x = x + matmul_nt(o, weight(l + "wo", s.d, s.d));
    Tensor h2 = rms_norm(x, norm(l + "norm2"));
    Tensor y =
        silu(matmul_nt(h2, weight(l + "wg", s.f, s.d))) * matmul_nt(h2, weight(l + "wu", s.f, s.d));
    x = x + matmul_nt(y, weight(l + "wd", s.d, s.f));
  }
  Tensor h = rms_norm(x, norm("norm"));
  Tensor z = matmul_nt(h, tied ? table : weight("lm_head", s.vocab, s.d));
  request.outputs = {{"loss", cross_entropy(z, targets), g.constant(1)}};
  return request;
}

}  // namespace coda::blocks
