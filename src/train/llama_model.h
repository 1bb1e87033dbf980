// The trainer's Model on the compiled LLaMA of nn.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "nn/models/llama_config.h"
#include "train/model.h"

namespace coda {

/// A model with zero weights, computing in `dtype`: load_weights or initialize fills it. Batches
/// may have up to max_tokens tokens. recompute: the forward pass keeps less for the backward pass,
/// which computes it again, to the same bits. The backend must outlive it. Throws UsageError.
std::unique_ptr<Model> make_llama_model(const LlamaConfig& config, Backend& backend, DType dtype,
                                        std::int64_t max_tokens, bool recompute = false);

}  // namespace coda
