// A LLaMA read from a Hugging Face folder, to continue sequences with: weights without gradients,
// and the decoder with its cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "coda/backend.h"
#include "nn/models/llama_decoder.h"

namespace coda {

class Continuation {
 public:
  /// Reads the weights of `folder`; computes in `dtype` on sequences of up to `capacity` tokens.
  /// Throws UsageError for a folder that does not fit the config, or more than the machine's
  /// memory.
  Continuation(const LlamaConfig& config, const std::filesystem::path& folder, Backend& backend,
               DType dtype, std::int64_t capacity);

  /// Reads tokens behind those read so far and writes the logits [vocab_size] of what follows the
  /// last.
  void append(std::span<const std::int32_t> tokens, std::span<float> logits);

 private:
  LlamaModel model_;
  LlamaDecoder decoder_;
};

}  // namespace coda
