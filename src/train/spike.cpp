#include "train/spike.h"

#include "base/median.h"

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
  return coda::median(losses_);
}

}  // namespace coda
