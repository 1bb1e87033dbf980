// What a step costs, and what share of the hardware's peak it reaches.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "nn/models/llama_config.h"

namespace coda {

/// FLOPs of training on one token of sequences of `seq`: 6 a weight of every matrix that multiplies
/// (2 forward, 4 backward; the embedding's lookup is none), and 12 a layer, head dimension and pair
/// of positions of which causal attention needs half.
double training_flops_per_token(const LlamaConfig& config, std::int64_t seq);

/// FLOPs a second that a GPU of this name reaches at most in dense products of this type, by its
/// maker's data sheet. Nothing for others, nor for CPUs, whose clock depends on what runs.
std::optional<double> known_peak(std::string_view device, DType dtype);

/// Memory of this process that is in RAM now, in bytes; 0 where the system does not say.
std::int64_t resident_memory();

}  // namespace coda
