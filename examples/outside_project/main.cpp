// A character model with one layer of attention, defined as math and trained on a sentence. Nothing
// here says how the gradients are computed or what is fused.
#include <coda/coda.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

namespace {

constexpr std::string_view kText =
    "she sells sea shells by the sea shore; the shells she sells are sea shells for sure. ";
constexpr std::int64_t kVocab = 128, kModel = 32, kHeads = 2, kHeadDim = 16, kHidden = 64;

/// The mean cross-entropy of each character's successor.
coda::Tensor loss_of(coda::Graph& g) {
  const coda::Tensor embedding_table = g.weight("embedding", kVocab, kModel);
  coda::Tensor x = coda::embedding(embedding_table, g.col("tokens", coda::DType::i32));
  const coda::Tensor positions = g.col("positions", coda::DType::i32);
  const coda::Tensor freq = g.row("rope_freq", kHeadDim);
  const auto projection = [&](const char* name, coda::Tensor h) {
    return coda::linear(h, g.weight(name, kModel, kModel));
  };

  const coda::Tensor h = coda::rms_norm(x, g.row("attention_norm", kModel), 1e-6);
  const coda::Tensor q = coda::rope(projection("q", h), positions, freq);
  const coda::Tensor k = coda::rope(projection("k", h), positions, freq);
  const coda::Tensor o =
      coda::attention(q, k, projection("v", h), g.list("cu_seqlens"), kHeads, kHeads, kHeadDim,
                      1 / std::sqrt(static_cast<double>(kHeadDim)));
  x = x + projection("o", o);
  const coda::Tensor m = coda::rms_norm(x, g.row("mlp_norm", kModel), 1e-6);
  const coda::Tensor hidden = coda::swiglu(coda::linear(m, g.weight("gate", kHidden, kModel)),
                                           coda::linear(m, g.weight("up", kHidden, kModel)));
  x = x + coda::linear(hidden, g.weight("down", kModel, kHidden));
  const coda::Tensor logits = coda::linear(coda::rms_norm(x, g.row("norm", kModel), 1e-6),
                                           g.weight("head", kVocab, kModel));
  return coda::cross_entropy(logits, g.col("targets", coda::DType::i32));
}

int run() {
  std::printf("coda %.*s\n", static_cast<int>(coda::version().size()), coda::version().data());
  coda::Graph graph;
  const coda::Tensor loss = loss_of(graph);
  std::vector<coda::Tensor> parameters;
  for (const char* name : {"embedding", "attention_norm", "q", "k", "v", "o", "mlp_norm", "gate",
                           "up", "down", "norm", "head"}) {
    parameters.push_back(graph.at(graph.find_input(name)));
  }

  const auto backend = coda::make_cpu_backend();
  const auto rows = static_cast<std::int64_t>(kText.size()) - 1;
  coda::TrainerOptions options;
  options.learning_rate = 1e-2;
  coda::Trainer trainer(graph, loss, parameters, *backend, rows, options);

  std::vector<std::int32_t> tokens, targets, positions;
  for (std::int32_t i = 0; i < rows; ++i) {
    tokens.push_back(kText[static_cast<std::size_t>(i)]);
    targets.push_back(kText[static_cast<std::size_t>(i) + 1]);
    positions.push_back(i);
  }
  std::vector<std::int32_t> cu_seqlens{0, static_cast<std::int32_t>(rows)};
  std::vector<float> freq = coda::rope_frequencies(kHeadDim, 10000);
  const auto column = [](std::vector<std::int32_t>& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    return coda::TensorView{values.data(), coda::DType::i32, n, 1, 1};
  };
  trainer.bind("tokens", column(tokens));
  trainer.bind("targets", column(targets));
  trainer.bind("positions", column(positions));
  trainer.bind("cu_seqlens", column(cu_seqlens));
  trainer.bind("rope_freq", {freq.data(), coda::DType::f32, 1, kHeadDim, kHeadDim});

  const double before = trainer.evaluate(rows);
  for (int step = 1; step <= 100; ++step) {
    const double value = trainer.step(rows);
    if (step % 20 == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
  const double after = trainer.evaluate(rows);
  std::printf("loss %.4f -> %.4f\n", before, after);
  return after < 0.2 * before ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tiny_model: %s\n", error.what());
    return 2;
  }
}
