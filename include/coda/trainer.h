// Trains what a Graph computes: owns fp32 parameters, their gradients and AdamW's state, and runs
// the compiled forward and backward. For models of your own; `coda train` is made of larger parts.
// One thread at a time. A trainer that was moved from throws UsageError.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "coda/backend.h"
#include "coda/compile.h"
#include "coda/graph.h"
#include "coda/tensor.h"

namespace coda {

/// Numbers are finite and not negative.
struct TrainerOptions {
  DType dtype = DType::f32;  ///< f32, bf16, f16: of activations that are kept in memory
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;  ///< below 1
  double eps = 1e-8;                 ///< above 0
  double weight_decay = 0.1;         ///< of weights, decoupled; row vectors do not decay
  double clip = 1.0;       ///< gradients are scaled down to this norm of all together; 0: never
  std::uint64_t seed = 0;  ///< of the first values
};

class Trainer {
 public:
  /// loss: a scalar of the graph. parameters: f32 inputs of kind weight or row; the graph's other
  /// inputs are bound before a run. Weights [n, k] start as normal(0, 1 / sqrt(k)), rows as ones;
  /// a value is a function of the seed, the input's name and the index. Steps of up to max_tokens
  /// rows. The backend must outlive the trainer, the graph need not. Throws UsageError for options
  /// out of range, a backend off the host, a loss that is no scalar of the graph, another parameter
  /// or one given twice, and what compile() and Backend::prepare refuse.
  Trainer(Graph& graph, Tensor loss, const std::vector<Tensor>& parameters, Backend& backend,
          std::int64_t max_tokens, const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Memory for an input that is no parameter, as Session::bind takes it; it is read at every run
  /// and must outlive the last. Throws UsageError.
  void bind(std::string_view name, const TensorView& view);

  /// Forward, backward and one update on M = tokens rows; returns the loss before the update.
  /// Nothing is updated if the loss or a gradient is not finite; the loss then is not either. The
  /// same values and inputs give the same bits for any number of threads. Throws UsageError as
  /// Session::run does, before anything is written.
  double step(std::int64_t tokens);
  /// The loss alone.
  double evaluate(std::int64_t tokens);

  /// From the next step on. Throws UsageError as the constructor does.
  void set_learning_rate(double learning_rate);
  std::int64_t steps() const;  ///< updates so far

  /// A parameter's values, row after row; may be written between runs, and stay where they are as
  /// long as the trainer. Throws UsageError for an unknown name.
  std::span<float> values(std::string_view name);
  /// Of the last step, before clipping; zeros before the first.
  std::span<const float> gradient(std::string_view name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coda
