// Which losses are spikes: what came lately tells. Part of a run's state, so that a resumed run
// decides as the uninterrupted one does.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace coda {

class RecentLosses {
 public:
  static constexpr std::size_t kMost = 32;  ///< losses that are remembered
  static constexpr std::size_t kLeast = 8;  ///< fewer than these tell nothing

  /// At most the last kMost of them.
  explicit RecentLosses(std::span<const double> losses = {});

  /// Spikes are added as well: a loss that stays high is the new level after kMost / 2 steps.
  void add(double loss);
  std::span<const double> all() const { return losses_; }

  /// Nothing while there are too few.
  std::optional<double> median() const;

 private:
  std::vector<double> losses_;  ///< oldest first
};

}  // namespace coda
