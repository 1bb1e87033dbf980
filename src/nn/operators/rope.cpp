#include <cmath>
#include <numbers>

#include "base/check.h"
#include "coda/nn.h"

namespace coda {
namespace {

/// Hugging Face transformers, modeling_rope_utils, "llama3"; frequency in radians per position.
double rescaled(double frequency, const Llama3Rope& rope) {
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  const double turns = context * frequency / (2 * std::numbers::pi);  // in the original context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double kept =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - kept) * frequency / rope.factor + kept * frequency;
}

}  // namespace

Tensor rope(Tensor x, Tensor pos, Tensor freq, PairLayout layout) {
  if (layout == PairLayout::interleaved) return rotate(x, pos, freq, Pairs::interleaved());
  return rotate(x, pos, freq, Pairs::halves(freq ? freq.type().cols : 0));
}

std::vector<float> rope_frequencies(std::int64_t head_dim, double theta,
                                    const std::optional<Llama3Rope>& scaling) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    throw_error<UsageError>(
        "rope_frequencies: expected an even, positive head_dim, got {}. Rotation takes columns in "
        "pairs.",
        head_dim);
  }
  if (!(theta > 0) || !std::isfinite(theta)) {
    throw_error<UsageError>(
        "rope_frequencies: expected a positive theta, got {}. 10000 is LLaMA's.", theta);
  }
  const auto pairs = static_cast<std::size_t>(head_dim / 2);
  std::vector<float> parts(2 * pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    double frequency = std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling) frequency = rescaled(frequency, *scaling);
    const double turns = frequency / (2 * std::numbers::pi);
    parts[i] = static_cast<float>(turns);
    parts[pairs + i] = static_cast<float>(turns - static_cast<double>(parts[i]));
  }
  return parts;
}

}  // namespace coda
