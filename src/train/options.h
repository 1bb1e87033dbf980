// All options of a training run, kept in RUN/options.json so that --resume needs nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

struct TrainOptions {
  std::vector<std::string> data;
  std::string text_field = "text";  ///< of .jsonl files
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
  std::optional<double> min_lr;        ///< none: a tenth of lr
  std::optional<std::int64_t> warmup;  ///< none: a tenth of steps, at most 50
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double clip = 1.0;
  std::string on_nan = "stop";      ///< or skip: a step whose loss or gradient is not finite
  std::string on_spike = "ignore";  ///< or stop, skip: a step whose loss is a spike
  double spike = 1.0;               ///< nats above the median of recent losses that make a spike
  std::string dtype = "f32";
  bool recompute = false;           ///< hold less between forward and backward, compute it again
  bool recompute_products = false;  ///< products too
  std::optional<double> memory;     ///< GiB that all may take, by products that run again
  std::uint64_t seed = 0;
  std::int64_t eval_every = 100;
  std::int64_t save_every = 200;
  std::int64_t keep = 0;             ///< saves to keep under checkpoints/ besides the newest
  std::int64_t eval_tokens = 32768;  ///< at most so many held-out tokens are evaluated
  std::string data_hash;  ///< of the token stream: a run resumes on the data it began with
};

/// Calls visit(key, member) for every option, in the order of options.json. The key with dashes is
/// the option of the command line.
template <class Options, class Visit>
void for_each_option(Options& o, Visit visit) {
  visit("data", o.data);
  visit("text_field", o.text_field);
  visit("model", o.model);
  visit("tokenizer", o.tokenizer);
  visit("vocab", o.vocab);
  visit("d_model", o.d_model);
  visit("layers", o.layers);
  visit("heads", o.heads);
  visit("kv_heads", o.kv_heads);
  visit("d_ff", o.d_ff);
  visit("tie_embeddings", o.tie_embeddings);
  visit("seq", o.seq);
  visit("batch", o.batch);
  visit("accumulate", o.accumulate);
  visit("steps", o.steps);
  visit("lr", o.lr);
  visit("min_lr", o.min_lr);
  visit("warmup", o.warmup);
  visit("weight_decay", o.weight_decay);
  visit("beta1", o.beta1);
  visit("beta2", o.beta2);
  visit("clip", o.clip);
  visit("on_nan", o.on_nan);
  visit("on_spike", o.on_spike);
  visit("spike", o.spike);
  visit("dtype", o.dtype);
  visit("recompute", o.recompute);
  visit("recompute_products", o.recompute_products);
  visit("memory", o.memory);
  visit("seed", o.seed);
  visit("eval_every", o.eval_every);
  visit("save_every", o.save_every);
  visit("keep", o.keep);
  visit("eval_tokens", o.eval_tokens);
  visit("data_hash", o.data_hash);
}

/// The learning rate at the end of the schedule, and the steps to its peak.
double min_lr_of(const TrainOptions& options);
std::int64_t warmup_of(const TrainOptions& options);

/// Throws UsageError naming the option as the command line writes it.
void check(const TrainOptions& options);

/// What is derived from other options is null, so that it follows them.
std::string to_json(const TrainOptions& options);
/// Throws UsageError that opens with `where`.
TrainOptions parse_train_options(std::string_view text, const std::string& where);

}  // namespace coda
