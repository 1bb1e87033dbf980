#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace coda {

std::int32_t sample(std::span<const float> logits, const SampleOptions& options,
                    const CounterRandom& random, std::uint64_t index) {
  for (const float logit : logits) {
    if (std::isnan(logit)) throw_error<Error>("generate: expected logits, got NaN.");
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const bool greedy = options.temperature <= 0.0;
  std::size_t kept = order.size();
  if (greedy) kept = 1;
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    more_likely);
  if (greedy) return order[0];
  std::vector<double> weights(kept);
  double total = 0.0;
  const double top = logits[static_cast<std::size_t>(order[0])];
  for (std::size_t i = 0; i < kept; ++i) {
    const double logit = logits[static_cast<std::size_t>(order[i])];
    weights[i] = logit == top ? 1.0 : std::exp((logit - top) / options.temperature);
    total += weights[i];
  }
  double within = 0.0;  // the nucleus: as few as reach top_p, at least one
  std::size_t nucleus = 0;
  while (nucleus < kept && (nucleus == 0 || within < options.top_p * total)) {
    within += weights[nucleus++];
  }
  double point = random.uniform(index) * within;
  for (std::size_t i = 0; i < nucleus; ++i) {
    point -= weights[i];
    if (point < 0.0) return order[i];
  }
  return order[nucleus - 1];
}

}  // namespace coda
