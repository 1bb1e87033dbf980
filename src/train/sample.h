// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "train/random.h"

namespace coda {

struct SampleOptions {
  double temperature = 1.0;  ///< 0: always the most likely token
  std::int64_t top_k = 0;    ///< only the k most likely; 0: all
  double top_p = 1.0;        ///< only the fewest most likely that reach this probability together
};

/// Draw number `index` of the stream. Equal logits rank by id. Throws Error if the logits are not
/// numbers.
std::int32_t sample(std::span<const float> logits, const SampleOptions& options,
                    const CounterRandom& random, std::uint64_t index);

}  // namespace coda
