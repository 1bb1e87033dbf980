// LLaMA-style models: config.json -> Graph, and a model that owns its weights and runs compiled
// plans of that Graph on any backend. Weight names and shapes are Hugging Face's; q, k, v and gate,
// up stay the separate tensors that they are in checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/backend_tensor.h"
#include "coda/graph.h"
#include "nn/models/llama_config.h"
#include "plan/compile.h"

namespace coda {

/// Name and extents of a weight. Vectors (norm weights) have rows = 1.
struct LlamaWeight {
  std::string name;
  std::int64_t rows = 0, cols = 0;
  bool is_vector = false;
};

/// All weights in the order of a checkpoint; tied embeddings are there once, as embed_tokens.
std::vector<LlamaWeight> llama_weights(const LlamaConfig& config);

/// The model as math. Inputs: the weights (matrices in `weight_dtype`, vectors in f32), i32 cols
/// "tokens", "positions" and "labels", the list "cu_seqlens", and "rope_freq" (rope_frequencies).
struct LlamaGraph {
  Tensor logits;                ///< [M, vocab_size]
  Tensor loss;                  ///< sum of the losses of labels that are not -100
  std::vector<Tensor> weights;  ///< in the order of llama_weights
};
LlamaGraph build_llama(Graph& graph, const LlamaConfig& config, DType weight_dtype);

/// The layers without the final norm and the head, whose attention is made by `attend` from a
/// layer's number and its rotated q and k, and v. -> [M, hidden_size].
using LlamaAttention = std::function<Tensor(std::int64_t, Tensor, Tensor, Tensor)>;
Tensor build_llama_layers(Graph& graph, const LlamaConfig& config, DType weight_dtype,
                          const LlamaAttention& attend);
/// The final norm and the head on [M, hidden_size]. -> [M, vocab_size].
Tensor build_llama_head(Graph& graph, const LlamaConfig& config, DType weight_dtype, Tensor x);

/// Packed sequences, one row a token. positions count from 0 in each sequence (or from wherever it
/// starts); cu_seqlens: 0, then the end of each sequence. labels[i] is what should follow
/// tokens[i], -100 where nothing counts.
struct LlamaBatch {
  std::span<const std::int32_t> tokens, positions, cu_seqlens, labels;
};

struct LlamaOptions {
  DType dtype = DType::f32;  ///< of activations and of the weights that are computed with
  CompileOptions compile;    ///< passes and memory budget; dtypes are taken from above
  bool trainable = true;     ///< false: gradients are empty, and forward_backward is an error
  /// false: forward_backward sets the gradients, which it would add to otherwise, and they lie in
  /// memory that it needs no longer: they last until the next run of it.
  bool accumulates = true;
};

class LlamaModel {
 public:
  enum class Use : std::uint8_t { training, evaluation, logits };

  /// Weights and gradients start as zeros. The backend must outlive the model. Throws UsageError
  /// for a config whose sizes do not fit together, or a dtype other than f32, bf16, f16.
  LlamaModel(LlamaConfig config, LlamaOptions options, Backend& backend);

  const LlamaConfig& config() const { return config_; }
  const LlamaOptions& options() const { return options_; }

  /// fp32 master values and the sums of gradients, which stay where they are. On a backend with
  /// memory of its own, `value` is what values_changed sends there and fetch_values brings back,
  /// and `gradient` is empty until fetch_gradients; so it is in a model that does not accumulate.
  struct Parameter {
    LlamaWeight weight;
    HostTensor value;     ///< f32
    HostTensor gradient;  ///< f32
    HostTensor rounded;   ///< what is computed with, where that is not f32
    struct {
      BackendTensor value, gradient, rounded;
      BackendTensor low;  ///< bf16 models: 16 bits an element, `value` is in it and `rounded`
    } device = {};        ///< the same in the backend's memory, where that is not the host's
  };
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Throws UsageError for an unknown name.
  Parameter& parameter(std::string_view name);

  /// To be called after values were written and before the next run.
  void values_changed();
  void zero_gradients();
  /// Where a backend has memory of its own: its values or gradients into the host's tensors.
  void fetch_values();
  void fetch_gradients();
  /// f32 [rows, cols] in the backend's memory: the gradient of a parameter of this model. Prepares
  /// training where the plan owns it.
  TensorView gradient(const Parameter& parameter);
  /// What sessions are bound to for a weight.
  static TensorView computed_with(const Parameter& parameter);
  Backend& backend() const { return backend_; }

  /// Prepares for runs of up to max_tokens rows; the memory of each use is allocated at its first
  /// run. A run of more rows throws UsageError.
  void reserve(std::int64_t max_tokens);
  std::int64_t reserved() const { return max_tokens_; }
  /// Before training is compiled: its plan is to take so many bytes of memory of its own at most
  /// when it runs on what is reserved then. As few products run again as that takes, and if it
  /// takes more than all of them, the plan is larger.
  void limit_training(double bytes) { training_bytes_ = bytes; }
  /// Compiles a use and allocates its memory, which its first run would do otherwise.
  void prepare(Use use) { session(use); }

  /// Adds scale * d(sum of losses) to the gradients, or sets them to it; returns that sum,
  /// unscaled.
  double forward_backward(const LlamaBatch& batch, float scale);
  /// The sum of losses.
  double evaluate(const LlamaBatch& batch);
  /// Writes [M, vocab_size] row after row. labels are not read.
  void logits(const LlamaBatch& batch, std::span<float> out);

  /// Session::step_seconds of training; empty before the first run.
  std::span<const double> training_seconds(Phase phase) const;

  /// The compiled plan; compiles it if it has not been.
  const Plan& plan(Use use);

 private:
  struct Compiled {
    std::shared_ptr<const Plan> plan;
    std::unique_ptr<Session> session;
  };
  Compiled& compiled(Use use) { return compiled_[static_cast<std::size_t>(use)]; }
  void compile_plan(Use use);
  std::shared_ptr<const Plan> compile_held(Use use, double held) const;
  Session& session(Use use);
  /// Checks the batch, copies its integers and binds them.
  Session& prepare_run(Use use, const LlamaBatch& batch);

  LlamaConfig config_;
  LlamaOptions options_;
  Backend& backend_;
  std::vector<Parameter> parameters_;
  std::int64_t max_tokens_ = 0;
  double training_bytes_ = std::numeric_limits<double>::infinity();
  Compiled compiled_[3];
  double read_loss() const;
  BackendTensor rope_freq_, loss_, d_loss_;
  struct Integers {  ///< of a batch, in the backend's memory; bound while running
    BackendTensor tokens, positions, cu_seqlens, labels;
  } integers_;
  BackendTensor logits_;  ///< where the backend's memory is not the host's
};

}  // namespace coda
