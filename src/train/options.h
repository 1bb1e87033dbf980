// All options of a training run, kept in RUN/options.json so that --resume needs nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

struct TrainOptions {
  std::vector<std::string> data;
  std::string model;  ///< folder whose weights training begins from; empty: a new model
  std::string tokenizer = "bpe";
  std::int64_t vocab = 2048;
  std::int64_t d_model = 256;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t d_ff = 0;      ///< 0: 8/3 d_model, rounded up to a multiple of 64
  bool tie_embeddings = false;
  std::int64_t seq = 128;
  std::int64_t batch = 8;
  std::int64_t accumulate = 1;
  std::int64_t steps = 600;
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup = 50;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double clip = 1.0;
  std::string dtype = "f32";
  std::uint64_t seed = 0;
  std::int64_t eval_every = 100;
  std::int64_t save_every = 200;
  std::int64_t eval_tokens = 32768;  ///< at most so many held-out tokens are evaluated
  std::string data_hash;  ///< of the token stream: a run resumes on the data it began with
};

/// Throws UsageError naming the option as the command line writes it.
void check(const TrainOptions& options);

std::string to_json(const TrainOptions& options);
/// Throws UsageError that opens with `where`.
TrainOptions parse_train_options(std::string_view text, const std::string& where);

}  // namespace coda
