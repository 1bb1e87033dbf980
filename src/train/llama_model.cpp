#include "train/llama_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/arena.h"
#include "base/check.h"
#include "nn/models/llama.h"
#include "train/memory.h"

namespace coda {
namespace {

/// Of a held byte, in bytes moved (coda/compile.h): enough for all that is cheap to make again, and
/// for products that sum over up to 5000 columns.
constexpr double kRecomputePrice = 1.5, kProductsPrice = 30;

class TrainedLlama : public Model {
 public:
  TrainedLlama(const LlamaConfig& config, Backend& backend, const LlamaOptions& options,
               std::int64_t max_tokens, double memory)
      : model_(config, options, backend) {
    model_.reserve(max_tokens);
    if (memory > 0) limit(memory);
    for (LlamaModel::Parameter& p : model_.parameters()) {
      std::vector<std::int64_t> shape{p.weight.cols};
      if (!p.weight.is_vector) shape.insert(shape.begin(), p.weight.rows);
      std::span<float> gradient;
      if (device() == nullptr) {
        gradient = {model_.gradient(p).as<float>(), static_cast<std::size_t>(p.value.size())};
      }
      parameters_.push_back({p.weight.name, std::move(shape), p.value.as<float>(), gradient});
    }
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void values_changed() override { model_.values_changed(); }
  void weights_updated() override {
    if (device() == nullptr) model_.values_changed();
  }
  std::int64_t step_bytes() override {
    if (device() != nullptr) return 0;
    return static_cast<std::int64_t>(plan_bytes(LlamaModel::Use::training) +
                                     plan_bytes(LlamaModel::Use::evaluation));
  }
  void prepare() override { model_.prepare(LlamaModel::Use::training); }
  void zero_gradients() override { model_.zero_gradients(); }
  void fetch_values() const override { model_.fetch_values(); }
  bool accumulates() const override { return model_.options().accumulates; }
  void fetch_gradients() override {
    if (device() == nullptr) return;
    model_.fetch_gradients();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].gradient = model_.parameters()[i].gradient.as<float>();
    }
  }
  Backend* device() const override {
    return model_.backend().on_host() ? nullptr : &model_.backend();
  }
  Backend* host() const override {
    return model_.backend().on_host() ? &model_.backend() : nullptr;
  }
  std::vector<AdamWTensor> device_tensors() const override {
    std::vector<AdamWTensor> tensors;
    for (const LlamaModel::Parameter& p : std::as_const(model_).parameters()) {
      AdamWTensor t;
      t.value = p.device.value.view().as<float>();
      t.low = p.device.low.view().as<std::int16_t>();
      t.gradient = model_.gradient(p).as<float>();
      t.rounded = p.device.rounded.view().data;
      t.rounded_dtype = p.device.rounded.view().dtype;
      t.count = p.weight.rows * p.weight.cols;
      t.decays = !p.weight.is_vector;
      tensors.push_back(t);
    }
    return tensors;
  }
  std::int64_t vocab_size() const override { return model_.config().vocab_size; }

  double forward_backward(const Batch& batch, float scale) override {
    return model_.forward_backward(packed(batch), scale);
  }
  double evaluate(const Batch& batch) override { return model_.evaluate(packed(batch)); }
  std::vector<float> logits(const Batch& batch) override {
    std::vector<float> out(batch.tokens.size() * static_cast<std::size_t>(vocab_size()));
    model_.logits(packed(batch), out);
    return out;
  }

 private:
  double plan_bytes(LlamaModel::Use use) {
    return static_cast<double>(layout_arena(model_.plan(use), model_.reserved()).bytes);
  }

  /// Makes a plan of what `memory` leaves beside weights, moments and evaluations.
  void limit(double memory) {
    double others = plan_bytes(LlamaModel::Use::evaluation);
    for (const LlamaModel::Parameter& p : model_.parameters()) {
      others += 2 * sizeof(float) * static_cast<double>(p.value.size());  // moments
      for (const BackendTensor* t :
           {&p.device.value, &p.device.gradient, &p.device.rounded, &p.device.low}) {
        if (*t) others += static_cast<double>(t->view().bytes());
      }
      if (device() != nullptr) continue;
      for (const HostTensor* t : {&p.value, &p.gradient, &p.rounded}) {
        others += static_cast<double>(t->view().bytes());
      }
    }
    model_.limit_training(memory - others);
    const double all = others + plan_bytes(LlamaModel::Use::training);
    if (all <= memory) return;
    throw_error<UsageError>(
        "--memory: expected at least {:.3f} GiB, which weights, moments, gradients and a batch of "
        "{} "
        "tokens take when all is computed again that can be, got {:.4g}. Give more, or lower "
        "--batch or --seq.",
        all / (1 << 30) + 0.0005, model_.reserved(), memory / (1 << 30));
  }

  /// Sequences, and the documents in them, as the packed ones that the model takes; views batch and
  /// this object.
  LlamaBatch packed(const Batch& batch) {
    positions_.clear();
    cu_seqlens_.clear();
    std::size_t document = 0;
    const auto tokens = static_cast<std::int32_t>(batch.tokens.size());
    for (std::int32_t i = 0, begin = 0; i < tokens; ++i) {
      const bool begins = document < batch.documents.size() && batch.documents[document] == i;
      document += begins ? 1 : 0;
      if (begins || i % batch.seq == 0) {
        begin = i;
        cu_seqlens_.push_back(i);
      }
      positions_.push_back(i - begin);
    }
    cu_seqlens_.push_back(tokens);
    return {batch.tokens, positions_, cu_seqlens_, batch.labels};
  }

  mutable LlamaModel model_;  ///< fetching and preparing change no value
  std::vector<Parameter> parameters_;
  std::vector<std::int32_t> positions_, cu_seqlens_;
};

}  // namespace

std::int32_t pieces_of_logits(const LlamaConfig& config, DType dtype, std::int64_t tokens) {
  constexpr double kMostBytes = 1 << 30, kMostPieces = 24;
  const double bytes = static_cast<double>(tokens) * static_cast<double>(config.vocab_size) *
                       static_cast<double>(size_of(dtype));
  return static_cast<std::int32_t>(std::clamp(std::ceil(bytes / kMostBytes), 1.0, kMostPieces));
}

std::unique_ptr<Model> make_llama_model(const LlamaConfig& config, Backend& backend, DType dtype,
                                        std::int64_t max_tokens, const LlamaModelOptions& wanted) {
  check_memory("model", parameter_count(config), 8);  // a value and a gradient
  LlamaOptions options{dtype, {}};
  if (wanted.recompute || !backend.on_host()) options.compile.held_price = kRecomputePrice;
  if (wanted.recompute_products) {
    options.compile.held_price = kProductsPrice;
    options.compile.recompute_products = true;
  }
  options.accumulates = wanted.accumulates;
  options.compile.pieces = pieces_of_logits(config, dtype, max_tokens);
  return std::make_unique<TrainedLlama>(config, backend, options, max_tokens, wanted.memory);
}

}  // namespace coda
