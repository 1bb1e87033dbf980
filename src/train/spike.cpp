#include "train/spike.h"

#include <algorithm>

namespace coda {

RecentLosses::RecentLosses(std::span<const double> losses) {
  for (const double loss : losses) add(loss);
}

void RecentLosses::add(double loss) {
  losses_.push_back(loss);
  if (losses_.size() > kMost) losses_.erase(losses_.begin());
}

std::optional<double> RecentLosses::median() const {
  if (losses_.size() < kLeast) return std::nullopt;
  std::vector<double> sorted = losses_;
  std::sort(sorted.begin(), sorted.end());
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

}  // namespace coda
