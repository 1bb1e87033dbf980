#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "cli/command.h"
#include "train/checkpoint.h"
#include "train/llama_model.h"
#include "train/run_folder.h"
#include "train/safetensors.h"

namespace coda {
namespace {

struct VerifyCommand {
  std::string model, file, dtype = "f32";
  std::optional<double> tolerance;
  DeviceOptions device;
  Printer output;

  int run() const;

 private:
  bool compare(const std::string& name, std::span<const double> got,
               const std::vector<std::int64_t>& shape, const StoredTensor& expected,
               double bound) const;
};

/// input_ids and labels [B, T] as one batch. Throws UsageError for ids outside the vocabulary.
Batch read_batch(const SafetensorsFile& file, std::int64_t vocab_size) {
  const std::string path = file.path().string();
  const StoredTensor& ids = file.at("input_ids");
  const StoredTensor& labels = file.at("labels");
  if (ids.shape.size() != 2 || labels.shape != ids.shape || ids.size() < 1) {
    throw_error<UsageError>("{}: input_ids, labels: expected two tensors [B, T], got {} and {}.",
                            path, describe(ids), describe(labels));
  }
  Batch batch{ids.shape[1], {}, {}};
  const auto add = [&](const StoredTensor& tensor, std::vector<std::int32_t>& out,
                       bool may_ignore) {
    for (const std::int64_t id : read_i64(tensor, path)) {
      if ((id < 0 || id >= vocab_size) && !(may_ignore && id == kIgnoredLabel)) {
        throw_error<UsageError>("{}: {}: expected ids from 0 to {}, got {}.", path, tensor.name,
                                vocab_size - 1, id);
      }
      out.push_back(static_cast<std::int32_t>(id));
    }
  };
  add(ids, batch.tokens, false);
  add(labels, batch.labels, true);
  if (batch.valid_labels() == 0) {
    throw_error<UsageError>("{}: labels: expected some that count, got only -100.", path);
  }
  return batch;
}

/// |got - expected| / |expected|, as norms; NaN if anything is.
double relative_error(std::span<const double> got, std::span<const double> expected) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

/// What a tensor may be off by without --tol. bf16: between the embedding and a gradient in the
/// first layer about 16 tensors a layer, and 4 more, are rounded one after the other, each by at
/// most 2^-9 of every element. Such errors add up in quadrature; twice that leaves room for what
/// softmax and the norms amplify. f32: the stored case is no closer to the truth than about 1e-6.
double usual_tolerance(DType dtype, std::int64_t layers) {
  if (dtype == DType::f32) return 2e-5;
  return 2 * 0x1p-9 * std::sqrt(16.0 * static_cast<double>(layers) + 4.0);
}

bool VerifyCommand::compare(const std::string& name, std::span<const double> got,
                            const std::vector<std::int64_t>& shape, const StoredTensor& expected,
                            double bound) const {
  const bool scalar = shape == std::vector<std::int64_t>{1} && expected.shape.empty();
  if (expected.shape != shape && !scalar) {
    throw_error<UsageError>(
        "{}: tensor \"{}\": expected shape [{}], got {}. Store the one that belongs to {}.", file,
        name, fmt::join(shape, ", "), describe(expected), model);
  }
  const std::vector<double> values = read_f64(expected, file);
  const double error = relative_error(got, values);
  const bool ok = error <= bound;  // false for NaN
  output.object({{"name", name}, {"relative_error", error}, {"ok", ok}});
  output.result("{:<60} {:.3e} {}\n", name, error, ok ? "ok" : "FAIL");
  return ok;
}

int VerifyCommand::run() const {
  if (tolerance && !(*tolerance >= 0.0)) {
    throw_error<UsageError>("--tol: expected a number of 0 or more, got {}.", *tolerance);
  }
  const LlamaConfig config = load_config(model);
  const DType computed = parse_dtype(dtype);
  const double bound = tolerance.value_or(usual_tolerance(computed, config.num_hidden_layers));
  const SafetensorsFile expected(file);
  const Batch batch = read_batch(expected, config.vocab_size);
  const auto backend = device.make();
  const auto llama =
      make_llama_model(config, *backend, computed, static_cast<std::int64_t>(batch.tokens.size()));
  load_weights(*llama, model);
  const std::vector<float> logits = llama->logits(batch);
  const auto labels = static_cast<double>(batch.valid_labels());
  const double loss = llama->forward_backward(batch, static_cast<float>(1.0 / labels)) / labels;

  llama->fetch_gradients();
  std::int64_t compared = 0, failed = 0;
  const auto check = [&](const std::string& name, std::span<const double> got,
                         const std::vector<std::int64_t>& shape) {
    const StoredTensor* tensor = expected.find(name);
    if (tensor == nullptr) return;
    ++compared;
    failed += compare(name, got, shape, *tensor, bound) ? 0 : 1;
  };
  check("logits", std::vector<double>(logits.begin(), logits.end()),
        {static_cast<std::int64_t>(batch.tokens.size()) / batch.seq, batch.seq, config.vocab_size});
  check("loss", std::span(&loss, 1), {1});
  std::int64_t gradients = 0;
  for (const Parameter& p : llama->parameters()) {
    gradients += expected.find("grad." + p.name) != nullptr ? 1 : 0;
    check("grad." + p.name, std::vector<double>(p.gradient.begin(), p.gradient.end()), p.shape);
  }
  for (const StoredTensor& tensor : expected.tensors())
    gradients -= tensor.name.starts_with("grad.");
  if (gradients != 0 || compared == 0) {
    throw_error<UsageError>(
        "{}: expected logits, loss or gradients of the model's weights, got {}.", file,
        compared == 0 ? "none of them" : "gradients of other tensors");
  }
  output.object({{"compared", compared}, {"failed", failed}, {"tolerance", bound}});
  output.result("{} of {} within {:g}\n", compared - failed, compared, bound);
  return failed == 0 ? 0 : 1;
}

}  // namespace

Command add_verify(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("verify", "Compare logits, loss and gradients with stored ones");
  auto c = std::make_shared<VerifyCommand>();
  sub->add_option("--model", c->model, "Hugging Face folder")->required()->group("Input");
  sub->add_option("--case", c->file,
                  "Safetensors file: input_ids and labels [B, T], and any of logits, loss, "
                  "grad.NAME. labels[b, t] is the token that position t has to predict (for "
                  "transformers' labels that means: one to the left); -100 does not count")
      ->required()
      ->group("Input");
  sub->add_option("--tol", c->tolerance,
                  "Largest relative error, in norm, of each tensor; default: 2e-5 for f32, 2^-8 "
                  "sqrt(16 layers + 4) for bf16")
      ->group("Input");
  sub->add_option("--dtype", c->dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group("Computation")
      ->capture_default_str();
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer(
      "Exit code 1 if a tensor is further off than --tol.\n"
      "Example:\n  coda verify --model tests/golden/llama-gqa --case "
      "tests/golden/llama-gqa/case.safetensors");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
