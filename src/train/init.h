// Values of a model that nobody has trained: matrices normal(0, 0.02), vectors (norm weights) 1, as
// transformers initialises LLaMA. Element i of a tensor depends on (seed, tensor name, i) only.
#pragma once

#include <cstdint>

#include "train/model.h"

namespace coda {

void initialize(Model& model, std::uint64_t seed);

}  // namespace coda
