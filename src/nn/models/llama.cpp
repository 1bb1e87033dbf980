#include "nn/models/llama.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/convert.h"
#include "base/split_f32.h"
#include "coda/nn.h"
#include "nn/fit_plan.h"

namespace coda {
namespace {

std::string layer_name(std::int64_t layer, std::string_view rest) {
  return fmt::format("model.layers.{}.{}.weight", layer, rest);
}

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

DType memory_type(const LlamaWeight& weight, DType dtype) {
  return weight.is_vector ? DType::f32 : dtype;
}

/// The weights of a graph by name, made as inputs.
class Weights {
 public:
  Weights(Graph& graph, const LlamaConfig& config, DType dtype) {
    for (const LlamaWeight& w : llama_weights(config)) {
      tensors_.push_back(w.is_vector ? graph.row(w.name, w.cols)
                                     : graph.weight(w.name, w.rows, w.cols, dtype));
    }
  }
  const std::vector<Tensor>& all() const { return tensors_; }
  /// They are used in the order in which they are listed.
  Tensor next() { return tensors_[used_++]; }

 private:
  std::vector<Tensor> tensors_;
  std::size_t used_ = 0;
};

}  // namespace

std::vector<LlamaWeight> llama_weights(const LlamaConfig& c) {
  const std::int64_t d = c.hidden_size, f = c.intermediate_size;
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  std::vector<LlamaWeight> weights;
  const auto matrix = [&](std::string name, std::int64_t rows, std::int64_t cols) {
    weights.push_back({std::move(name), rows, cols, false});
  };
  const auto vector = [&](std::string name) { weights.push_back({std::move(name), 1, d, true}); };
  matrix(std::string(kEmbedding), c.vocab_size, d);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    vector(layer_name(i, "input_layernorm"));
    matrix(layer_name(i, "self_attn.q_proj"), q, d);
    matrix(layer_name(i, "self_attn.k_proj"), kv, d);
    matrix(layer_name(i, "self_attn.v_proj"), kv, d);
    matrix(layer_name(i, "self_attn.o_proj"), d, q);
    vector(layer_name(i, "post_attention_layernorm"));
    matrix(layer_name(i, "mlp.gate_proj"), f, d);
    matrix(layer_name(i, "mlp.up_proj"), f, d);
    matrix(layer_name(i, "mlp.down_proj"), d, f);
  }
  vector("model.norm.weight");
  if (!c.tie_word_embeddings) matrix("lm_head.weight", c.vocab_size, d);
  return weights;
}

Tensor build_llama_layers(Graph& graph, const LlamaConfig& c, DType weight_dtype,
                          const LlamaAttention& attend) {
  Weights weights(graph, c, weight_dtype);
  const Tensor tokens = graph.col("tokens", DType::i32);
  const Tensor positions = graph.col("positions", DType::i32);
  const Tensor freq = graph.row("rope_freq", c.head_dim);
  Tensor x = embedding(weights.next(), tokens);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const Tensor h = rms_norm(x, weights.next(), c.rms_norm_eps);
    const Tensor q = rope(linear(h, weights.next()), positions, freq);
    const Tensor k = rope(linear(h, weights.next()), positions, freq);
    const Tensor v = linear(h, weights.next());
    x = x + linear(attend(i, q, k, v), weights.next());
    const Tensor m = rms_norm(x, weights.next(), c.rms_norm_eps);
    const Tensor gate = linear(m, weights.next());
    const Tensor up = linear(m, weights.next());
    x = x + linear(swiglu(gate, up), weights.next());
  }
  return x;
}

Tensor build_llama_head(Graph& graph, const LlamaConfig& c, DType weight_dtype, Tensor x) {
  const std::vector<Tensor> weights = Weights(graph, c, weight_dtype).all();
  const Tensor norm = weights[weights.size() - (c.tie_word_embeddings ? 1 : 2)];
  const Tensor head = c.tie_word_embeddings ? weights.front() : weights.back();
  return linear(rms_norm(x, norm, c.rms_norm_eps), head);
}

LlamaGraph build_llama(Graph& graph, const LlamaConfig& c, DType weight_dtype) {
  const std::vector<Tensor> weights = Weights(graph, c, weight_dtype).all();
  const Tensor cu_seqlens = graph.list("cu_seqlens");
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const auto attend = [&](std::int64_t, Tensor q, Tensor k, Tensor v) {
    return attention(q, k, v, cu_seqlens, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
                     scale, {.window = c.sliding_window});
  };
  const Tensor x = build_llama_layers(graph, c, weight_dtype, attend);
  const Tensor logits = build_llama_head(graph, c, weight_dtype, x);
  const Tensor labels = graph.col("labels", DType::i32);
  return {logits, cross_entropy(logits, labels, Reduction::sum), weights};
}

LlamaModel::LlamaModel(LlamaConfig config, LlamaOptions options, Backend& backend)
    : config_(std::move(config)),
      options_(std::move(options)),
      backend_(backend),
      loss_(backend, DType::f32, 1, 1),
      d_loss_(backend, DType::f32, 1, 1) {
  check(config_, "model");
  const DType dtype = options_.dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    throw_error<UsageError>("model: dtype: expected f32, bf16 or f16, got {}.", name_of(dtype));
  }
  for (LlamaWeight& w : llama_weights(config_)) {
    const bool on_host = backend.on_host();
    const bool holds_gradients = options_.trainable && options_.accumulates;
    Parameter p{w, HostTensor(DType::f32, w.rows, w.cols), {}, {}, {}};
    if (on_host && holds_gradients) p.gradient = HostTensor(DType::f32, w.rows, w.cols);
    const bool rounds = memory_type(w, dtype) != DType::f32;
    if (rounds) p.rounded = HostTensor(dtype, on_host ? w.rows : 0, on_host ? w.cols : 0);
    if (!on_host) {
      const bool splits = rounds && dtype == DType::bf16;
      if (splits) p.device.low = BackendTensor(backend, dtype, w.rows, w.cols);
      if (!splits) p.device.value = BackendTensor(backend, DType::f32, w.rows, w.cols);
      if (holds_gradients) p.device.gradient = BackendTensor(backend, DType::f32, w.rows, w.cols);
      if (rounds) p.device.rounded = BackendTensor(backend, dtype, w.rows, w.cols);
    }
    parameters_.push_back(std::move(p));
  }
  const std::vector<float> freq =
      rope_frequencies(config_.head_dim, config_.rope_theta, config_.rope_scaling);
  rope_freq_ = BackendTensor(backend_, DType::f32, 1, config_.head_dim);
  rope_freq_.upload(freq.data());
}

LlamaModel::Parameter& LlamaModel::parameter(std::string_view name) {
  for (Parameter& p : parameters_) {
    if (p.weight.name == name) return p;
  }
  throw_error<UsageError>("model: expected the name of a weight, such as {}, got \"{}\".",
                          kEmbedding, name);
}

namespace {

void round_into(std::span<const float> from, DType dtype, std::span<std::uint16_t> to) {
  if (dtype == DType::bf16) {
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = bf16_from_f32(from[i]);
  } else {
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = f16_from_f32(from[i]);
  }
}

}  // namespace

void LlamaModel::values_changed() {
  for (Parameter& p : parameters_) {
    const auto values = p.value.as<const float>();
    if (p.rounded.size() > 0) {
      constexpr std::size_t kChunk = 1 << 16;
      const auto rounded = p.rounded.as<std::uint16_t>();
      const auto chunks = static_cast<std::int64_t>((values.size() + kChunk - 1) / kChunk);
      backend_.parallel_for(chunks, [&](std::int64_t index) {
        const std::size_t begin = static_cast<std::size_t>(index) * kChunk;
        const std::size_t count = std::min(kChunk, values.size() - begin);
        round_into(values.subspan(begin, count), options_.dtype, rounded.subspan(begin, count));
      });
    }
    if (p.device.value) p.device.value.upload(values.data());
    if (p.device.low) {
      std::vector<std::uint16_t> rounded(values.size());
      std::vector<std::int16_t> low(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const SplitF32 halves = split_f32(values[i]);
        rounded[i] = halves.rounded;
        low[i] = halves.low;
      }
      p.device.rounded.upload(rounded.data());
      p.device.low.upload(low.data());
    } else if (p.device.rounded) {
      std::vector<std::uint16_t> rounded(values.size());
      round_into(values, options_.dtype, rounded);
      p.device.rounded.upload(rounded.data());
    }
  }
}

void LlamaModel::zero_gradients() {
  if (!options_.trainable) return;
  for (const Parameter& p : parameters_) {
    const TensorView view = gradient(p);
    backend_.fill_zero(view.data, view.bytes());
  }
}

void LlamaModel::fetch_values() {
  for (Parameter& p : parameters_) {
    if (p.device.value) p.device.value.download(p.value.view().data);
    if (!p.device.low) continue;
    const auto values = p.value.as<float>();
    std::vector<std::uint16_t> rounded(values.size());
    std::vector<std::int16_t> low(values.size());
    p.device.rounded.download(rounded.data());
    p.device.low.download(low.data());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = join_f32({rounded[i], low[i]});
  }
}

void LlamaModel::fetch_gradients() {
  for (Parameter& p : parameters_) {
    if (backend_.on_host() && options_.accumulates) continue;
    const TensorView view = gradient(p);
    p.gradient = HostTensor(DType::f32, p.weight.rows, p.weight.cols);
    backend_.download(p.gradient.view().data, view.data, view.bytes());
  }
}

TensorView LlamaModel::gradient(const Parameter& p) {
  if (!options_.accumulates) return session(Use::training).buffer("d_" + p.weight.name);
  return p.device.gradient ? p.device.gradient.view() : p.gradient.view();
}

TensorView LlamaModel::computed_with(const Parameter& p) {
  if (p.device.rounded) return p.device.rounded.view();
  if (p.device.value) return p.device.value.view();
  return p.rounded.size() > 0 ? p.rounded.view() : p.value.view();
}

void LlamaModel::reserve(std::int64_t max_tokens) {
  if (max_tokens < 0 || max_tokens > std::numeric_limits<std::int32_t>::max()) {
    throw_error<UsageError>("model: reserve: expected between 0 and 2^31 - 1 tokens, got {}.",
                            max_tokens);
  }
  for (Compiled& c : compiled_) c.session.reset();
  max_tokens_ = max_tokens;
}

void LlamaModel::compile_plan(Use use) {
  const auto compile = [&](double held) { return compile_held(use, held); };
  compiled(use).plan =
      use == Use::training ? fit_plan(compile, max_tokens_, training_bytes_) : compile(0);
}

/// held: what the plan may hold for backward at most, in bytes; 0: no matter.
std::shared_ptr<const Plan> LlamaModel::compile_held(Use use, double held) const {
  Graph graph;
  const LlamaGraph model = build_llama(graph, config_, options_.dtype);
  CompileRequest request;
  if (use == Use::logits) {
    request.outputs.push_back({"logits", model.logits, {}, true});
  } else if (use == Use::evaluation) {
    request.outputs.push_back({"loss", model.loss, {}, true});
  } else {
    request.outputs.push_back({"loss", model.loss, graph.scalar("d_loss"), true});
    request.wrt = model.weights;
  }
  CompileOptions options = options_.compile;
  options.dtype = options_.dtype;
  options.output_dtype = DType::f32;
  options.weight_grad_dtype = DType::f32;
  options.accumulate_weight_grads = options_.accumulates;
  options.own_weight_grads = !options_.accumulates;
  if (held > 0) {
    options.memory_budget = held;
    options.budget_tokens = max_tokens_;
    options.recompute_products = true;
  }
  return compile(graph, request, options);
}

const Plan& LlamaModel::plan(Use use) {
  if (!compiled(use).plan) compile_plan(use);
  return *compiled(use).plan;
}

std::span<const double> LlamaModel::training_seconds(Phase phase) const {
  const auto& session = compiled_[static_cast<std::size_t>(Use::training)].session;
  return session ? session->step_seconds(phase) : std::span<const double>();
}

Session& LlamaModel::session(Use use) {
  Compiled& c = compiled(use);
  if (c.session) return *c.session;
  plan(use);
  c.session = backend_.prepare(c.plan, max_tokens_);
  const auto bind = [&](const std::string& name, const TensorView& view) {
    if (c.plan->find_buffer(name) >= 0) c.session->bind(name, view);
  };
  bind("rope_freq", rope_freq_.view());
  bind("loss", loss_.view());
  bind("d_loss", d_loss_.view());
  for (Parameter& p : parameters_) {
    bind(p.weight.name, computed_with(p));
    if (use == Use::training && options_.accumulates) bind("d_" + p.weight.name, gradient(p));
  }
  return *c.session;
}

Session& LlamaModel::prepare_run(Use use, const LlamaBatch& batch) {
  const std::size_t tokens = batch.tokens.size();
  const auto check_count = [&](std::string_view what, std::size_t got) {
    if (got == tokens) return;
    throw_error<UsageError>("model: {}: expected one for each of the {} tokens, got {}.", what,
                            tokens, got);
  };
  check_count("positions", batch.positions.size());
  if (use != Use::logits) check_count("labels", batch.labels.size());
  if (static_cast<std::int64_t>(tokens) > max_tokens_) {
    throw_error<UsageError>(
        "model: expected at most {} tokens, as reserved, got {}. Call reserve with the largest "
        "number of tokens that a run will have.",
        max_tokens_, tokens);
  }
  Session& s = session(use);
  const auto bind = [&](const char* name, BackendTensor& own,
                        std::span<const std::int32_t> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    // Memory that stays where it is lets a device run what it has bound.
    if (!own || own.view().rows < count) {
      own = BackendTensor(backend_, DType::i32, std::max(count, max_tokens_), 1);
    }
    backend_.upload(own.view().data, values.data(), values.size_bytes());
    if (compiled(use).plan->find_buffer(name) < 0) return;
    s.bind(name, {own.view().data, DType::i32, count, 1, 1});
  };
  bind("tokens", integers_.tokens, batch.tokens);
  bind("positions", integers_.positions, batch.positions);
  bind("cu_seqlens", integers_.cu_seqlens, batch.cu_seqlens);
  if (use != Use::logits) bind("labels", integers_.labels, batch.labels);
  return s;
}

double LlamaModel::read_loss() const {
  float loss = 0;
  loss_.download(&loss);
  return loss;
}

double LlamaModel::forward_backward(const LlamaBatch& batch, float scale) {
  if (!options_.trainable) {
    throw_error<UsageError>(
        "model: forward_backward: expected a trainable model, got one without gradients. Make it "
        "with trainable = true.");
  }
  Session& s = prepare_run(Use::training, batch);
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  d_loss_.upload(&scale);
  s.run(Phase::forward, tokens);
  s.run(Phase::backward, tokens);
  return read_loss();
}

double LlamaModel::evaluate(const LlamaBatch& batch) {
  Session& s = prepare_run(Use::evaluation, batch);
  s.run(Phase::forward, static_cast<std::int64_t>(batch.tokens.size()));
  return read_loss();
}

void LlamaModel::logits(const LlamaBatch& batch, std::span<float> out) {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t vocab = config_.vocab_size;
  if (static_cast<std::int64_t>(out.size()) != tokens * vocab) {
    throw_error<UsageError>("model: logits: expected room for {} x {} numbers, got {}.", tokens,
                            vocab, out.size());
  }
  Session& s = prepare_run(Use::logits, batch);
  if (backend_.on_host()) {
    s.bind("logits", {out.data(), DType::f32, tokens, vocab, vocab});
    s.run(Phase::forward, tokens);
    return;
  }
  if (!logits_ || logits_.view().rows < tokens) {
    logits_ = BackendTensor(backend_, DType::f32, max_tokens_, vocab);
  }
  s.bind("logits", {logits_.view().data, DType::f32, tokens, vocab, vocab});
  s.run(Phase::forward, tokens);
  backend_.download(out.data(), logits_.view().data, out.size_bytes());
}

}  // namespace coda
