// What the trainer needs of a model: its weights, and the loss with gradients of a batch. Knows
// nothing of graphs or backends, so that the trainer can be tested on a few lines of arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace coda {

class Backend;
struct AdamWTensor;

/// Label of a token that does not count.
inline constexpr std::int32_t kIgnoredLabel = -100;

/// Sequences of equal length, one after another. labels[i] is what should follow tokens[i]; empty
/// where only logits are asked for.
struct Batch {
  std::int64_t seq = 0;  ///< tokens of one sequence
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
  /// Indices of tokens that begin another text within a sequence, ascending: they and what follows
  /// attend to nothing before, and positions begin anew.
  std::vector<std::int32_t> documents = {};

  std::int64_t valid_labels() const {
    std::int64_t count = 0;
    for (const std::int32_t label : labels) count += label != kIgnoredLabel ? 1 : 0;
    return count;
  }
};

/// One weight tensor: fp32 values that the optimiser changes, and the fp32 sum of gradients. Both
/// are the model's and stay where they are. A model on a device keeps its own there: these
/// are then what values_changed sends and what fetch_values and fetch_gradients bring back.
struct Parameter {
  std::string name;  ///< as in a Hugging Face checkpoint
  std::vector<std::int64_t> shape;
  std::span<float> value;
  std::span<float> gradient;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const std::vector<Parameter>& parameters() const = 0;
  /// To be called after values were written: the model refreshes what it computes with (bf16
  /// copies, packed weights).
  virtual void values_changed() = 0;
  /// To be called after an AdamW of this model updated it.
  virtual void weights_updated() { values_changed(); }

  virtual void zero_gradients();
  /// Does forward_backward add to the gradients? Otherwise it sets them, and they last until it
  /// runs again.
  virtual bool accumulates() const { return true; }
  virtual void fetch_values() const {}
  virtual void fetch_gradients() {}
  /// Where a model keeps its weights on a device: that, and its tensors without moments.
  virtual Backend* device() const { return nullptr; }
  virtual std::vector<AdamWTensor> device_tensors() const;
  /// Whose threads work on weights that lie on the host; null: the caller's alone.
  virtual Backend* host() const { return nullptr; }

  /// Bytes of the host that steps and evaluations take besides the weights and what AdamW keeps;
  /// nothing of it is allocated yet.
  virtual std::int64_t step_bytes() { return 0; }
  /// Makes ready what forward_backward needs, which the first call would do otherwise.
  virtual void prepare() {}
  /// Adds scale * d(sum of the valid labels' losses) to the gradients, or sets them to it; returns
  /// that sum, unscaled.
  virtual double forward_backward(const Batch& batch, float scale) = 0;
  /// The sum of the valid labels' losses.
  virtual double evaluate(const Batch& batch) = 0;
  /// [tokens, vocab_size], row after row.
  virtual std::vector<float> logits(const Batch& batch) = 0;

  virtual std::int64_t vocab_size() const = 0;
};

}  // namespace coda
