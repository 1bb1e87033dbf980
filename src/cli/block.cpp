#include "cli/block.h"

#include <cmath>
#include <limits>

#include "backend/arena.h"
#include "base/check.h"
#include "coda/nn.h"
#include "train/memory.h"
#include "train/random.h"

namespace coda {
namespace {

/// What an input holds: a pure function of its name and the index.
double input_value(const Buffer& buffer, std::int64_t index, std::int64_t tokens,
                   const LlamaBlockSizes& sizes, const std::vector<float>& freq) {
  const CounterRandom random(0, stream_of(buffer.name));
  const auto i = static_cast<std::uint64_t>(index);
  if (buffer.name == "rope_freq") return freq[i];
  if (buffer.name == "positions") return static_cast<double>(index);
  if (buffer.name == "cu_seqlens") return static_cast<double>(index * tokens);
  if (buffer.name == "targets") {
    return static_cast<double>(random.below(i, static_cast<std::uint64_t>(sizes.vocab)));
  }
  if (buffer.kind == Kind::weight) {
    return random.normal(i) / std::sqrt(static_cast<double>(buffer.cols));
  }
  if (buffer.kind == Kind::row) return 1.0 + 0.1 * random.normal(i);
  return random.normal(i);
}

/// Causal attention over one sequence.
CompileRequest attention_block(Graph& graph, const LlamaBlockSizes& sizes,
                               const AttentionOptions& options) {
  const LlamaBlockSizes s = complete(sizes);
  const std::int64_t heads = s.d_model / s.head_dim, kv_heads = s.n_kv_heads;
  const Tensor q = graph.tile("q", s.d_model, s.dtype);
  const Tensor k = graph.tile("k", kv_heads * s.head_dim, s.dtype);
  const Tensor v = graph.tile("v", kv_heads * s.head_dim, s.dtype);
  const Tensor o = attention(q, k, v, graph.list("cu_seqlens"), heads, kv_heads, s.head_dim,
                             1.0 / std::sqrt(static_cast<double>(s.head_dim)), options);
  CompileRequest request;
  request.outputs = {{"o", o, graph.tile("d_o", s.d_model, s.dtype), true}};
  request.wrt = {q, k, v};
  return request;
}

HostTensor widened(const HostTensor& tensor) {
  HostTensor wide(DType::f64, tensor.rows(), tensor.cols());
  for (std::int64_t i = 0; i < tensor.size(); ++i) wide.set(i, tensor.get(i));
  return wide;
}

}  // namespace

void BlockOptions::add_options(CLI::App& app) {
  const auto option = [&](const char* group, const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  app.add_option("block", block,
                 "llama-layer (from one attention to the next), llama-head (cross-entropy) or "
                 "attention (causal, one sequence)")
      ->required();
  option("Sizes", "--tokens", tokens, "Rows");
  option("Sizes", "--d-model", sizes.d_model, "Width");
  option("Sizes", "--d-ff", sizes.d_ff, "Width of the MLP, 0: 8/3 of --d-model");
  option("Sizes", "--head-dim", sizes.head_dim, "Columns of an attention head");
  option("Sizes", "--kv-heads", sizes.n_kv_heads, "Key-value heads, 0: as many as heads");
  option("Sizes", "--vocab", sizes.vocab, "Vocabulary of the head");
  option("Attention", "--window", attention.window, "Keys that a query sees, 0: all up to its own");
  option("Attention", "--softcap", attention.softcap, "Bound of scores by tanh, 0: none");
  option("Compiler", "--dtype", dtype, "Memory type: f32, bf16 or f16");
  option("Compiler", "--held-price", held_price,
         "Price of a byte held for backward, in bytes moved; 1.5 recomputes what is cheap");
  option("Compiler", "--pieces", pieces,
         "Pieces of rows of the head's logits, one in memory at a time; above 1, weight gradients "
         "are f32");
}

std::shared_ptr<const Plan> BlockOptions::compile_plan(bool fuse) const {
  if (tokens < 1 || tokens > (std::int64_t{1} << 31) - 1) {
    throw_error<UsageError>("--tokens: expected a whole number from 1 to 2^31 - 1, got {}.",
                            tokens);
  }
  if (!(held_price >= 0.0)) {
    throw_error<UsageError>("--held-price: expected a number of 0 or more, got {}.", held_price);
  }
  if (pieces < 1 || pieces > 24) {
    throw_error<UsageError>("--pieces: expected a whole number from 1 to 24, got {}.", pieces);
  }
  LlamaBlockSizes with_dtype = sizes;
  with_dtype.dtype = parse_dtype(dtype);
  Graph graph;
  CompileRequest request;
  if (block == "llama-layer") {
    request = llama_layer_block(graph, with_dtype);
  } else if (block == "llama-head") {
    request = llama_head_block(graph, with_dtype);
  } else if (block == "attention") {
    request = attention_block(graph, with_dtype, attention);
  } else {
    throw_error<UsageError>("block: expected llama-layer, llama-head or attention, got \"{}\".",
                            block);
  }
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = with_dtype.dtype;
  options.fuse = fuse;
  options.held_price = held_price;
  options.pieces = pieces;
  if (pieces > 1) options.weight_grad_dtype = DType::f32;  // sums of pieces
  options.budget_tokens = tokens;
  return compile(graph, request, options);
}

namespace {

Extents extents_in(const Buffer& buffer, std::int64_t tokens) {
  return buffer.name == "cu_seqlens" ? Extents{2, 1} : extents_of(buffer, tokens);
}

bool is_users(const Buffer& buffer) {
  return buffer.role == Role::input || buffer.role == Role::output;
}

/// Memory that is asked for in vain is refused before the machine is brought down.
void check_fits(const Plan& plan, std::int64_t tokens) {
  auto bytes = static_cast<double>(layout_arena(plan, tokens).bytes);
  for (const Buffer& buffer : plan.buffers) {
    const Extents extents = extents_in(buffer, tokens);
    if (is_users(buffer)) {
      bytes += static_cast<double>(extents.rows) * static_cast<double>(extents.cols) *
               static_cast<double>(size_of(buffer.dtype));
    }
  }
  if (const double have = usable_memory(); have > 0 && bytes > have) {
    throw_error<UsageError>(
        "block: expected operands and results that fit into {:.1f} GB of memory, got {:.1f} GB. "
        "Lower --d-model, --d-ff or --tokens.",
        have * 1e-9, bytes * 1e-9);
  }
}

}  // namespace

BlockMemory::BlockMemory(const Plan& plan, std::int64_t tokens, const LlamaBlockSizes& sizes,
                         bool widen) {
  check_fits(plan, tokens);
  const std::vector<float> freq = rope_frequencies(sizes.head_dim, 10000.0);
  for (const Buffer& buffer : plan.buffers) {
    if (!is_users(buffer)) continue;
    const Extents extents = extents_in(buffer, tokens);
    HostTensor tensor(buffer.dtype, extents.rows, extents.cols);
    const bool input = buffer.role == Role::input;
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      tensor.set(i, input ? input_value(buffer, i, tokens, sizes, freq)
                          : std::numeric_limits<double>::quiet_NaN());
    }
    if (widen && is_float(buffer.dtype)) tensor = widened(tensor);
    (input ? inputs_ : outputs_).emplace(buffer.name, std::move(tensor));
  }
}

void BlockMemory::bind(Session& session, Backend& backend) {
  for (auto* tensors : {&inputs_, &outputs_}) {
    for (auto& [name, tensor] : *tensors) {
      TensorView view = tensor.view();
      if (!backend.on_host()) {
        BackendTensor& there = device_[name];
        there = BackendTensor(backend, view.dtype, view.rows, view.cols);
        there.upload(view.data);
        view = there.view();
      }
      session.bind(name, view);
    }
  }
}

void BlockMemory::fetch() {
  for (auto& [name, tensor] : outputs_) {
    if (const auto it = device_.find(name); it != device_.end()) {
      it->second.download(tensor.view().data);
    }
  }
}

}  // namespace coda
