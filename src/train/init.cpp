#include "train/init.h"

#include <algorithm>

#include "train/random.h"

namespace coda {

void initialize(Model& model, std::uint64_t seed) {
  constexpr double kDeviation = 0.02;
  for (const Parameter& p : model.parameters()) {
    if (p.shape.size() < 2) {
      std::fill(p.value.begin(), p.value.end(), 1.0f);
      continue;
    }
    const CounterRandom random(seed, stream_of(p.name));
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      p.value[i] = static_cast<float>(kDeviation * random.normal(i));
    }
  }
  model.values_changed();
}

}  // namespace coda
