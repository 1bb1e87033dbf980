#include "nn/models/llama_decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "coda/nn.h"

namespace coda {
namespace {

/// Enough rows for matrix products at full speed; more would only take memory.
constexpr std::int64_t kMostRows = 256;

std::string cache_name(const char* which, std::int64_t layer) {
  return fmt::format("cache_{}_{}", which, layer);
}

}  // namespace

LlamaDecoder::LlamaDecoder(LlamaModel& model, std::int64_t capacity)
    : model_(model), capacity_(capacity), most_rows_(std::min(capacity, kMostRows)) {
  const LlamaConfig& c = model.config();
  if (capacity < 1 || capacity > c.max_position_embeddings) {
    throw_error<UsageError>(
        "decoder: capacity: expected between 1 and {} tokens (max_position_embeddings), got {}.",
        c.max_position_embeddings, capacity);
  }
  compile_layers();
  compile_head();
  Backend& backend = model.backend();
  layers_ = backend.prepare(layers_plan_, most_rows_);
  head_ = backend.prepare(head_plan_, 1);
  bind_weights(*layers_plan_, *layers_);
  bind_weights(*head_plan_, *head_);

  const DType dtype = model.options().dtype;
  x_ = BackendTensor(backend, dtype, most_rows_, c.hidden_size);
  logits_ = BackendTensor(backend, DType::f32, 1, c.vocab_size);
  tokens_ = BackendTensor(backend, DType::i32, most_rows_, 1);
  positions_ = BackendTensor(backend, DType::i32, most_rows_, 1);
  cu_seqlens_ = BackendTensor(backend, DType::i32, 2, 1);
  past_ = BackendTensor(backend, DType::i32, 1, 1);
  rope_freq_ = BackendTensor(backend, DType::f32, 1, c.head_dim);
  rope_freq_.upload(rope_frequencies(c.head_dim, c.rope_theta, c.rope_scaling).data());
  layers_->bind("rope_freq", rope_freq_.view());
  head_->bind("logits", logits_.view());
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    for (const auto& [name, caches] : {std::pair{"k", &cache_k_}, {"v", &cache_v_}}) {
      caches->emplace_back(backend, dtype, c.num_key_value_heads * capacity, c.head_dim);
      layers_->bind(cache_name(name, i), caches->back().view());
    }
  }
}

void LlamaDecoder::compile_layers() {
  const LlamaConfig& c = model_.config();
  const DType dtype = model_.options().dtype;
  Graph graph;
  const Tensor cu_seqlens = graph.list("cu_seqlens"), past = graph.list("past");
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const std::int64_t rows = c.num_key_value_heads * capacity_;
  const auto attend = [&](std::int64_t layer, Tensor q, Tensor k, Tensor v) {
    const Tensor cache_k = graph.weight(cache_name("k", layer), rows, c.head_dim, dtype);
    const Tensor cache_v = graph.weight(cache_name("v", layer), rows, c.head_dim, dtype);
    return cached_attention(q, k, v, cache_k, cache_v, cu_seqlens, past, c.num_attention_heads,
                            c.num_key_value_heads, c.head_dim, capacity_, scale,
                            {.window = c.sliding_window});
  };
  CompileRequest request;
  request.outputs.push_back({"x", build_llama_layers(graph, c, dtype, attend), {}, true});
  CompileOptions options = model_.options().compile;
  options.dtype = options.output_dtype = dtype;
  layers_plan_ = compile(graph, request, options);
}

void LlamaDecoder::compile_head() {
  const LlamaConfig& c = model_.config();
  const DType dtype = model_.options().dtype;
  Graph graph;
  const Tensor x = graph.tile("x", c.hidden_size, dtype);
  CompileRequest request;
  request.outputs.push_back({"logits", build_llama_head(graph, c, dtype, x), {}, true});
  CompileOptions options = model_.options().compile;
  options.dtype = dtype;
  options.output_dtype = DType::f32;
  head_plan_ = compile(graph, request, options);
}

void LlamaDecoder::bind_weights(const Plan& plan, Session& session) {
  for (const LlamaModel::Parameter& p : model_.parameters()) {
    if (plan.find_buffer(p.weight.name) >= 0)
      session.bind(p.weight.name, LlamaModel::computed_with(p));
  }
}

void LlamaDecoder::run_layers(std::span<const std::int32_t> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const auto bind = [&](const char* name, const BackendTensor& own,
                        std::span<const std::int32_t> values) {
    model_.backend().upload(own.view().data, values.data(), values.size_bytes());
    TensorView view = own.view();
    view.rows = static_cast<std::int64_t>(values.size());
    layers_->bind(name, view);
  };
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(length_));
  const std::int32_t cu_seqlens[] = {0, static_cast<std::int32_t>(n)};
  const std::int32_t past[] = {static_cast<std::int32_t>(length_)};
  bind("tokens", tokens_, tokens);
  bind("positions", positions_, positions);
  bind("cu_seqlens", cu_seqlens_, cu_seqlens);
  bind("past", past_, past);
  TensorView x = x_.view();
  x.rows = n;
  layers_->bind("x", x);
  layers_->run(Phase::forward, n);
  length_ += n;
}

void LlamaDecoder::rewind(std::int64_t length) {
  if (length < 0 || length > length_) {
    throw_error<UsageError>("decoder: rewind: expected between 0 and {} tokens, got {}.", length_,
                            length);
  }
  length_ = length;
}

void LlamaDecoder::append(std::span<const std::int32_t> tokens, std::span<float> logits) {
  const LlamaConfig& c = model_.config();
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count < 1 || count > capacity_ - length_) {
    throw_error<UsageError>(
        "decoder: expected between 1 and {} tokens ({} of {} are read), got {}. Make the decoder "
        "with a larger capacity.",
        capacity_ - length_, length_, capacity_, count);
  }
  if (static_cast<std::int64_t>(logits.size()) != c.vocab_size) {
    throw_error<UsageError>("decoder: logits: expected room for {} numbers, got {}.", c.vocab_size,
                            logits.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < c.vocab_size) continue;
    throw_error<UsageError>(
        "decoder: token {}: expected an id in [0, {}), got {}. Use the tokenizer that belongs to "
        "the model.",
        i, c.vocab_size, tokens[i]);
  }
  std::int64_t rows = 0;  // of the last run
  for (std::int64_t done = 0; done < count; done += rows) {
    rows = std::min(most_rows_, count - done);
    run_layers(tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows)));
  }
  TensorView last = x_.view();
  last.data = static_cast<std::byte*>(last.data) +
              static_cast<std::size_t>((rows - 1) * c.hidden_size) * size_of(last.dtype);
  last.rows = 1;
  head_->bind("x", last);
  head_->run(Phase::forward, 1);
  logits_.download(logits.data());
}

}  // namespace coda
