// Continues a sequence token by token: keys and values of what was read stay in a cache, so that a
// token costs one pass over the weights and one over the cache. The plans are compiled and prepared
// once; a prompt and a single token are runs of the same plan with more and fewer rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend_tensor.h"
#include "nn/models/llama.h"

namespace coda {

class LlamaDecoder {
 public:
  /// Computes with the model's weights, in its dtype, on its backend; the model must outlive the
  /// decoder, and its values may change between calls (values_changed). `capacity`: tokens of the
  /// sequence. Throws UsageError unless it is in [1, max_position_embeddings], and what the backend
  /// throws if it has no kernel for cached attention.
  LlamaDecoder(LlamaModel& model, std::int64_t capacity);

  /// Reads tokens behind those read so far and writes the logits [vocab_size] of what follows the
  /// last. Throws UsageError, before anything changes, for no tokens, more than the capacity leaves
  /// room for, ids outside the vocabulary.
  void append(std::span<const std::int32_t> tokens, std::span<float> logits);

  /// Forgets all but the first `length` tokens. Throws UsageError if fewer were read.
  void rewind(std::int64_t length);

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  void compile_layers();
  void compile_head();
  void bind_weights(const Plan& plan, Session& session);
  void run_layers(std::span<const std::int32_t> tokens);

  LlamaModel& model_;
  std::int64_t capacity_ = 0, length_ = 0;
  std::int64_t most_rows_ = 0;  ///< of one run; longer prompts take several
  std::shared_ptr<const Plan> layers_plan_, head_plan_;
  std::unique_ptr<Session> layers_, head_;
  std::vector<BackendTensor> cache_k_, cache_v_;  ///< a layer: [n_kv_heads * capacity, head_dim]
  BackendTensor rope_freq_, logits_;
  BackendTensor x_;  ///< [most_rows, hidden_size], before the final norm
  BackendTensor tokens_, positions_, cu_seqlens_, past_;  ///< integers; bound while running
};

}  // namespace coda
