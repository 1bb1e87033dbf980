// Trains what a Graph computes: owns fp32 parameters, their gradients and AdamW's state, and runs
// the compiled forward and backward. For models of your own; `coda train` is made of larger parts.
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

struct TrainerOptions {
  DType dtype = DType::f32;  ///< of activations that are kept in memory
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< of weights; row vectors do not decay
  double clip = 1.0;          ///< gradients are scaled down to this norm of all together; 0: never
  std::uint64_t seed = 0;     ///< of the first values
};

class Trainer {
 public:
  /// loss: a scalar of the graph. parameters: f32 inputs of kind weight or row; the graph's other
  /// inputs are bound before a run. Weights [n, k] start as normal(0, 1 / sqrt(k)), rows as ones.
  /// The backend must outlive the trainer, the graph need not. Throws UsageError.
  Trainer(Graph& graph, Tensor loss, const std::vector<Tensor>& parameters, Backend& backend,
          std::int64_t max_tokens, const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Memory for an input that is no parameter; it is read at every run.
  void bind(std::string_view name, const TensorView& view);

  /// Forward, backward and one update on M = tokens rows; returns the loss before the update.
  /// Nothing is updated if the loss or a gradient is not finite; the loss then is not either.
  double step(std::int64_t tokens);
  /// The loss alone.
  double evaluate(std::int64_t tokens);

  void set_learning_rate(double learning_rate);
  std::int64_t steps() const;  ///< updates so far

  /// A parameter's values, row after row; may be written between runs. Throws UsageError for an
  /// unknown name.
  std::span<float> values(std::string_view name);
  std::span<const float> gradient(std::string_view name) const;  ///< of the last step

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coda
