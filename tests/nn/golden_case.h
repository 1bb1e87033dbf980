// The reference models of tests/golden: a tiny Hugging Face model each, and what transformers
// computes for it in float64.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "nn/models/llama.h"
#include "train/file.h"
#include "train/safetensors.h"

namespace coda::test {

/// Packed sequences that own their integers.
struct Sequences {
  std::vector<std::int32_t> tokens, labels, positions, cu_seqlens{0};

  void add(const std::vector<std::int32_t>& sequence, const std::vector<std::int32_t>& label) {
    for (std::size_t t = 0; t < sequence.size(); ++t) {
      tokens.push_back(sequence[t]);
      labels.push_back(label[t]);
      positions.push_back(static_cast<std::int32_t>(t));
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  LlamaBatch batch() const { return {tokens, positions, cu_seqlens, labels}; }
  std::int64_t count() const {
    return std::count_if(labels.begin(), labels.end(), [](std::int32_t l) { return l != -100; });
  }
};

struct GoldenCase {
  LlamaConfig config;
  std::map<std::string, std::vector<float>> weights, gradients;
  std::vector<Sequences> single;  ///< one sequence each
  Sequences all;
  std::vector<float> logits;
  double loss = 0;  ///< mean over labels that count

  explicit GoldenCase(const std::string& name) {
    const std::string folder = std::string(CODA_SOURCE_DIR) + "/tests/golden/" + name + "/";
    config = parse_llama_config(read_file(folder + "config.json"), folder + "config.json");
    const SafetensorsFile model(folder + "model.safetensors"), file(folder + "case.safetensors");
    for (const StoredTensor& t : model.tensors()) weights[t.name] = read_f32(t, name);
    for (const StoredTensor& t : file.tensors()) {
      if (t.name.starts_with("grad.")) gradients[t.name.substr(5)] = read_f32(t, name);
    }
    logits = read_f32(file.at("logits"), name);
    loss = read_f64(file.at("loss"), name)[0];
    const StoredTensor& ids = file.at("input_ids");
    const std::vector<std::int64_t> tokens = read_i64(ids, name);
    const std::vector<std::int64_t> labels = read_i64(file.at("labels"), name);
    for (std::int64_t b = 0; b < ids.shape[0]; ++b) {
      std::vector<std::int32_t> sequence, label;
      for (std::int64_t t = 0; t < ids.shape[1]; ++t) {
        const auto at = static_cast<std::size_t>(b * ids.shape[1] + t);
        sequence.push_back(static_cast<std::int32_t>(tokens[at]));
        label.push_back(static_cast<std::int32_t>(labels[at]));
      }
      all.add(sequence, label);
      single.emplace_back().add(sequence, label);
    }
  }

  void load(LlamaModel& model) const {
    for (LlamaModel::Parameter& p : model.parameters()) {
      const std::vector<float>& values = weights.at(p.weight.name);
      std::copy(values.begin(), values.end(), p.value.as<float>().begin());
    }
    model.values_changed();
  }
};

/// Largest difference relative to the largest value expected; infinite if any is not finite.
template <class A, class B>
double relative_error(const A& got, const B& want) {
  double largest = 0, worst = 0;
  if (got.size() != want.size()) return HUGE_VAL;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return HUGE_VAL;
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  return largest == 0 ? worst : worst / largest;
}

inline std::vector<float> logits_of(LlamaModel& model, const LlamaBatch& batch) {
  std::vector<float> out(batch.tokens.size() * static_cast<std::size_t>(model.config().vocab_size),
                         std::nanf(""));
  model.logits(batch, out);
  return out;
}

/// Loss and gradients of one run from zeroed gradients, in the order of the parameters.
struct Step {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
};
inline Step step_of(LlamaModel& model, const LlamaBatch& batch, float scale) {
  model.zero_gradients();
  Step step;
  step.loss = model.forward_backward(batch, scale);
  for (const LlamaModel::Parameter& p : model.parameters()) {
    const auto gradient = p.gradient.as<const float>();
    step.gradients.emplace_back(gradient.begin(), gradient.end());
  }
  return step;
}

}  // namespace coda::test
