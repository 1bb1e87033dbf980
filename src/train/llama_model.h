// The trainer's Model on the compiled LLaMA of nn.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "nn/models/llama_config.h"
#include "train/model.h"

namespace coda {

struct LlamaModelOptions {
  /// The forward pass keeps less for the backward pass, which computes it again, to the same bits.
  bool recompute = false;
  /// Products too, which take time: a layer keeps its input and attention's result. Not always the
  /// same bits on a GPU, where a product that runs again may be cut along K in another way.
  bool recompute_products = false;
  /// false: for steps of one micro-batch, whose gradients need no memory of their own. The same
  /// bits, but for the sign of zeros.
  bool accumulates = true;
  /// Bytes that weights, moments, gradients and runs are to take at most; 0: any. Products run
  /// again until they do, as few as that takes. UsageError if all are not enough.
  double memory = 0;
};

/// Into how many pieces of rows a step of so many tokens cuts its logits (CompileOptions::pieces):
/// so that one takes a GiB at most, if 24 are enough for that.
std::int32_t pieces_of_logits(const LlamaConfig& config, DType dtype, std::int64_t tokens);

/// A model with zero weights, computing in `dtype`: load_weights or initialize fills it. Batches
/// may have up to max_tokens tokens. The backend must outlive it. Throws UsageError.
std::unique_ptr<Model> make_llama_model(const LlamaConfig& config, Backend& backend, DType dtype,
                                        std::int64_t max_tokens,
                                        const LlamaModelOptions& options = {});

}  // namespace coda
