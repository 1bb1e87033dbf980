#include "train/continuation.h"

#include "base/check.h"
#include "train/checkpoint.h"
#include "train/memory.h"

namespace coda {
namespace {

/// What load_weights fills: the values of a model that is not trained.
class Values final : public Model {
 public:
  explicit Values(LlamaModel& model) : model_(model) {
    for (LlamaModel::Parameter& p : model.parameters()) {
      std::vector<std::int64_t> shape{p.weight.cols};
      if (!p.weight.is_vector) shape.insert(shape.begin(), p.weight.rows);
      parameters_.push_back({p.weight.name, std::move(shape), p.value.as<float>(), {}});
    }
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void values_changed() override { model_.values_changed(); }
  std::int64_t vocab_size() const override { return model_.config().vocab_size; }
  double forward_backward(const Batch&, float) override { not_here(); }
  double evaluate(const Batch&) override { not_here(); }
  std::vector<float> logits(const Batch&) override { not_here(); }

 private:
  [[noreturn]] static void not_here() {
    throw InternalError("continuation: a model that only holds values was run");
  }

  LlamaModel& model_;
  std::vector<Parameter> parameters_;
};

/// The model with its weights, once it is known that they and the cache fit.
LlamaModel loaded(const LlamaConfig& config, const std::filesystem::path& folder, Backend& backend,
                  DType dtype, std::int64_t capacity) {
  check_memory("model", parameter_count(config), dtype == DType::f32 ? 4 : 6);
  check_memory("cache of keys and values",
               2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim,
               capacity * static_cast<std::int64_t>(size_of(dtype)));
  LlamaModel model(config, {dtype, {}, false}, backend);
  Values values(model);
  load_weights(values, folder);
  return model;
}

}  // namespace

Continuation::Continuation(const LlamaConfig& config, const std::filesystem::path& folder,
                           Backend& backend, DType dtype, std::int64_t capacity)
    : model_(loaded(config, folder, backend, dtype, capacity)), decoder_(model_, capacity) {}

void Continuation::append(std::span<const std::int32_t> tokens, std::span<float> logits) {
  decoder_.append(tokens, logits);
}

}  // namespace coda
