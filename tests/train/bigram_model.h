// A model in a few lines: the logits of the next token are a row of a table, plus a bias. Lets the
// trainer be tested without a compiler or a backend.
#pragma once

#include <cmath>
#include <vector>

#include "train/model.h"

namespace coda {

class BigramModel : public Model {
 public:
  explicit BigramModel(std::int64_t vocab)
      : vocab_(static_cast<std::size_t>(vocab)),
        values_(vocab_ * vocab_ + vocab_),
        gradients_(values_.size()) {
    const std::span<float> v(values_), g(gradients_);
    const std::size_t cut = vocab_ * vocab_;
    parameters_ = {{"table.weight", {vocab, vocab}, v.first(cut), g.first(cut)},
                   {"bias", {vocab}, v.subspan(cut), g.subspan(cut)}};
  }
  BigramModel(const BigramModel&) = delete;
  BigramModel& operator=(const BigramModel&) = delete;

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void values_changed() override { ++refreshed; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(vocab_); }

  double forward_backward(const Batch& batch, float scale) override {
    double loss = 0.0;
    const std::vector<float> all = logits(batch);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      if (batch.labels[i] == kIgnoredLabel) continue;
      const float* row = all.data() + i * vocab_;
      const auto label = static_cast<std::size_t>(batch.labels[i]);
      double sum = 0.0;
      for (std::size_t v = 0; v < vocab_; ++v) sum += std::exp(row[v]);
      loss += std::log(sum) - row[label];
      float* table = gradients_.data() + static_cast<std::size_t>(batch.tokens[i]) * vocab_;
      float* bias = gradients_.data() + vocab_ * vocab_;
      for (std::size_t v = 0; v < vocab_; ++v) {
        const auto d = static_cast<float>(std::exp(row[v]) / sum - (v == label ? 1.0 : 0.0));
        table[v] += scale * d;
        bias[v] += scale * d;
      }
    }
    return loss;
  }

  double evaluate(const Batch& batch) override {
    const std::vector<float> kept = gradients_;
    const double loss = forward_backward(batch, 0.0f);
    std::copy(kept.begin(), kept.end(), gradients_.begin());
    return loss;
  }

  std::vector<float> logits(const Batch& batch) override {
    std::vector<float> out;
    for (const std::int32_t token : batch.tokens) {
      for (std::size_t v = 0; v < vocab_; ++v) {
        out.push_back(values_[static_cast<std::size_t>(token) * vocab_ + v] +
                      values_[vocab_ * vocab_ + v]);
      }
    }
    return out;
  }

  int refreshed = 0;

 private:
  std::size_t vocab_;
  std::vector<float> values_, gradients_;
  std::vector<Parameter> parameters_;
};

}  // namespace coda
