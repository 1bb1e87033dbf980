#include "nn/models/llama_blocks.h"

#include "base/check.h"
#include "coda/nn.h"

namespace coda {
namespace {

void check_size(const char* name, std::int64_t value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  if (value < 1 || value > kMost) {
    throw_error<UsageError>("block: {}: expected a whole number from 1 to {}, got {}.", name, kMost,
                            value);
  }
}

}  // namespace

LlamaBlockSizes complete(const LlamaBlockSizes& sizes, bool has_heads) {
  LlamaBlockSizes s = sizes;
  check_size("d_model", s.d_model);
  check_size("vocab", s.vocab);
  if (!is_float(s.dtype) || s.dtype == DType::f64) {
    throw_error<UsageError>("block: dtype: expected f32, bf16 or f16, got {}.", name_of(s.dtype));
  }
  if (!has_heads) return s;
  check_size("head_dim", s.head_dim);
  if (s.d_model % s.head_dim != 0 || s.head_dim % 2 != 0) {
    throw_error<UsageError>(
        "block: head_dim: expected an even divisor of d_model = {}, got {}. Give another head_dim.",
        s.d_model, s.head_dim);
  }
  if (s.d_ff == 0) s.d_ff = (8 * s.d_model / 3 + 255) / 256 * 256;
  if (s.n_kv_heads == 0) s.n_kv_heads = s.d_model / s.head_dim;
  check_size("d_ff", s.d_ff);
  check_size("n_kv_heads", s.n_kv_heads);
  if (s.d_model / s.head_dim % s.n_kv_heads != 0) {
    throw_error<UsageError>("block: n_kv_heads: expected a divisor of the {} heads, got {}.",
                            s.d_model / s.head_dim, s.n_kv_heads);
  }
  return s;
}

CompileRequest llama_layer_block(Graph& g, const LlamaBlockSizes& sizes) {
  const LlamaBlockSizes s = complete(sizes);
  const std::int64_t kv = s.n_kv_heads * s.head_dim;
  const Tensor attention_out = g.tile("attention_out", s.d_model, s.dtype);
  const Tensor residual = g.tile("residual", s.d_model, s.dtype);
  const Tensor o_proj = g.weight("o_proj", s.d_model, s.d_model, s.dtype);
  const Tensor mlp_norm = g.row("mlp_norm", s.d_model);
  const Tensor gate_proj = g.weight("gate_proj", s.d_ff, s.d_model, s.dtype);
  const Tensor up_proj = g.weight("up_proj", s.d_ff, s.d_model, s.dtype);
  const Tensor down_proj = g.weight("down_proj", s.d_model, s.d_ff, s.dtype);
  const Tensor attention_norm = g.row("attention_norm", s.d_model);
  const Tensor q_proj = g.weight("q_proj", s.d_model, s.d_model, s.dtype);
  const Tensor k_proj = g.weight("k_proj", kv, s.d_model, s.dtype);
  const Tensor v_proj = g.weight("v_proj", kv, s.d_model, s.dtype);
  const Tensor positions = g.col("positions", DType::i32);
  const Tensor freq = g.row("rope_freq", s.head_dim);

  const Tensor x1 = g.named(linear(attention_out, o_proj) + residual, "x1");
  const Tensor h1 = rms_norm(x1, mlp_norm, s.eps);
  const Tensor hidden = g.named(swiglu(linear(h1, gate_proj), linear(h1, up_proj)), "hidden");
  const Tensor x2 = g.named(linear(hidden, down_proj) + x1, "x2");
  const Tensor h2 = rms_norm(x2, attention_norm, s.eps);
  const Tensor q = rope(linear(h2, q_proj), positions, freq);
  const Tensor k = rope(linear(h2, k_proj), positions, freq);
  const Tensor v = linear(h2, v_proj);

  CompileRequest request;
  request.outputs = {{"x2", x2, g.tile("d_x2", s.d_model, s.dtype), true},
                     {"q", q, g.tile("d_q", s.d_model, s.dtype), true},
                     {"k", k, g.tile("d_k", kv, s.dtype), true},
                     {"v", v, g.tile("d_v", kv, s.dtype), true}};
  request.wrt = {attention_out, residual,       o_proj, mlp_norm, gate_proj, up_proj,
                 down_proj,     attention_norm, q_proj, k_proj,   v_proj};
  return request;
}

CompileRequest llama_head_block(Graph& g, const LlamaBlockSizes& sizes) {
  const LlamaBlockSizes s = complete(sizes, false);
  const Tensor hidden = g.tile("hidden", s.d_model, s.dtype);
  const Tensor head = g.weight("head", s.vocab, s.d_model, s.dtype);
  const Tensor targets = g.col("targets", DType::i32);
  const Tensor logits = g.named(linear(hidden, head), "logits");
  CompileRequest request;
  request.outputs = {{"loss", cross_entropy(logits, targets), g.constant(1), true}};
  request.wrt = {hidden, head};
  return request;
}

}  // namespace coda
