#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace coda {

namespace {

/// Ids of the k most likely in descending order; equal logits rank by id.
std::vector<std::int32_t> most_likely(std::span<const float> logits, std::size_t k) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  k = std::min(k, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = logits[static_cast<std::size_t>(a)];
                      const float y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  order.resize(k);
  return order;
}

/// The fewest most likely whose weights reach `share` of all weights, at least one. Sorts a few
/// first, since a nucleus is small beside the vocabulary.
std::vector<std::int32_t> nucleus(std::span<const float> logits, std::span<const double> weights,
                                  double share) {
  double total = 0.0;
  for (const double weight : weights) total += weight;
  constexpr std::size_t kFirst = 64;
  for (std::size_t k = kFirst;; k *= 8) {
    std::vector<std::int32_t> order = most_likely(logits, k);
    double within = 0.0;
    std::size_t kept = 0;
    while (kept < order.size() && (kept == 0 || within < share * total))
      within += weights[static_cast<std::size_t>(order[kept++])];
    if (within < share * total && order.size() < logits.size()) continue;
    order.resize(kept);
    return order;
  }
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const SampleOptions& options,
                    const CounterRandom& random, std::uint64_t index) {
  std::int32_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) throw_error<Error>("generate: expected logits, got NaN.");
    if (logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  }
  if (options.temperature <= 0.0) return best;

  const double top = logits[static_cast<std::size_t>(best)];
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double logit = logits[i];
    weights[i] = logit == top ? 1.0 : std::exp((logit - top) / options.temperature);
  }
  std::vector<std::int32_t> kept;
  if (options.top_k > 0) {
    kept = most_likely(logits, static_cast<std::size_t>(options.top_k));
    std::vector<double> of_kept(weights.size(), 0.0);  // the others weigh nothing
    for (const std::int32_t id : kept)
      of_kept[static_cast<std::size_t>(id)] = weights[static_cast<std::size_t>(id)];
    weights = std::move(of_kept);
  }
  if (options.top_p < 1.0) {
    kept = nucleus(logits, weights, options.top_p);
  } else if (kept.empty()) {
    kept.resize(logits.size());
    std::iota(kept.begin(), kept.end(), 0);
  }

  double total = 0.0;
  for (const std::int32_t id : kept) total += weights[static_cast<std::size_t>(id)];
  double point = random.uniform(index) * total;
  std::int32_t last = best;  // where rounding leaves a rest of the total
  for (const std::int32_t id : kept) {
    const double weight = weights[static_cast<std::size_t>(id)];
    point -= weight;
    if (point < 0.0) return id;
    if (weight > 0.0) last = id;
  }
  return last;
}

}  // namespace coda
