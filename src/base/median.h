// The median of measurements and losses.
#pragma once

#include <algorithm>
#include <vector>

namespace coda {

/// The value in the middle, or the mean of the two that are; `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace coda
