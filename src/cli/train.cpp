#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "train/init.h"
#include "train/llama_model.h"
#include "train/loop.h"
#include "train/memory.h"
#include "train/run_folder.h"

namespace coda {
namespace {

using nlohmann::ordered_json;

volatile std::sig_atomic_t g_stop = 0;

/// The first Ctrl-C or SIGTERM asks the loop to stop after its step; the second one kills.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_stop = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

/// So that a run can be resumed from any folder.
void keep_absolute_paths(TrainOptions& options) {
  const auto make_absolute = [](std::string& path) {
    path = std::filesystem::absolute(path).lexically_normal().string();
  };
  for (std::string& path : options.data) make_absolute(path);
  if (!options.model.empty()) make_absolute(options.model);
}

struct TrainCommand {
  CLI::App* app = nullptr;
  TrainOptions options;
  DeviceOptions device;
  Printer output;
  std::string out, resume;
  std::int64_t stop_after = 0;

  void add_options(CLI::App& sub);
  int run();

 private:
  void check_resume_alone() const;
  void report(Model& model, const TokenSplit& tokens, std::optional<double> known) const;
};

void TrainCommand::add_options(CLI::App& sub) {
  app = &sub;
  TrainOptions& o = options;
  const auto option = [&](const char* group, const char* name, auto& value, const char* text) {
    return sub.add_option(name, value, text)->group(group)->capture_default_str();
  };
  const char* data = "Data and run";
  sub.add_option("--data", o.data, "Text files or folders (UTF-8); the end is held out")
      ->group(data);
  sub.add_option("--out", out, "New folder for the run: a Hugging Face model and what resumes it")
      ->group(data);
  sub.add_option("--resume", resume, "Continue the run in this folder with its own options")
      ->group(data);
  option(data, "--steps", o.steps, "Length of the schedule");
  sub.add_option("--stop-after", stop_after,
                 "Stop at this step of a longer schedule; 0: at its end")
      ->group(data);
  option(data, "--eval-every", o.eval_every, "Steps between evaluations, 0: at the end only");
  option(data, "--save-every", o.save_every, "Steps between checkpoints, 0: at the end only");
  option(data, "--eval-tokens", o.eval_tokens, "Held-out tokens to evaluate at most");
  option(data, "--seed", o.seed, "Of initial weights and of the order of the data");
  sub.get_option("--seed")->check(whole_number());

  const char* tokens = "Tokenizer";
  option(tokens, "--tokenizer", o.tokenizer, "bpe (SentencePiece, trained on the data) or bytes");
  option(tokens, "--vocab", o.vocab, "Pieces of a bpe tokenizer");

  const char* model = "Model";
  option(model, "--d-model", o.d_model, "Width");
  option(model, "--layers", o.layers, "Layers");
  option(model, "--heads", o.heads, "Attention heads");
  option(model, "--kv-heads", o.kv_heads, "Key-value heads, 0: as many as heads");
  option(model, "--d-ff", o.d_ff, "Width of the MLP, 0: 8/3 of --d-model");
  sub.add_flag("--tie-embeddings", o.tie_embeddings, "One table for embedding and head")
      ->group(model);
  sub.add_option("--model", o.model, "Begin from this Hugging Face folder instead of a new model")
      ->group(model);
  option(model, "--dtype", o.dtype, "f32 or bf16; bf16 keeps fp32 master weights");

  const char* steps = "Optimisation";
  option(steps, "--seq", o.seq, "Tokens of a sequence");
  option(steps, "--batch", o.batch, "Sequences of a micro-batch");
  option(steps, "--accumulate", o.accumulate, "Micro-batches of a step");
  option(steps, "--lr", o.lr, "Peak learning rate");
  sub.add_option("--min-lr", o.min_lr, "Learning rate at the end; default: a tenth of --lr")
      ->group(steps);
  sub.add_option("--warmup", o.warmup, "Steps to the peak; default: a tenth, at most 50")
      ->group(steps);
  option(steps, "--weight-decay", o.weight_decay, "Of matrices, decoupled");
  option(steps, "--beta1", o.beta1, "AdamW, mean of gradients");
  option(steps, "--beta2", o.beta2, "AdamW, mean of their squares");
  option(steps, "--clip", o.clip, "Largest global norm of the gradient, 0: no clipping");
  device.add_options(sub);
  output.add_option(sub);
}

/// A resumed run keeps its options: one that is given as well would be silently ignored.
void TrainCommand::check_resume_alone() const {
  for (const CLI::Option* option : app->get_options()) {
    const std::string name = option->get_name();
    const bool allowed = name == "--resume" || name == "--stop-after" || name == "--threads" ||
                         name == "--device" || name == "--json";
    if (option->count() > 0 && !allowed) {
      throw_error<UsageError>(
          "{}: expected nothing but --stop-after, --threads, --device and --json beside --resume, "
          "got it as well. A run keeps the options it began with.",
          name);
    }
  }
}

/// The end of a schedule: the held-out loss (`known` if the loop has just computed it), and what a
/// model without context would reach.
void TrainCommand::report(Model& model, const TokenSplit& tokens,
                          std::optional<double> known) const {
  const auto held_out = evaluated_tokens(tokens, options);
  const double loss = known ? *known : mean_loss(model, held_out, options.seq, options.batch);
  const double unigram = unigram_loss(tokens.training, held_out, model.vocab_size());
  output.object({{"done", true},
                 {"step", options.steps},
                 {"eval_loss", loss},
                 {"perplexity", std::exp(loss)},
                 {"unigram_loss", unigram},
                 {"out", out}});
  output.result(
      "held-out loss {:.4f} (perplexity {:.2f}); a unigram model reaches {:.4f}. Saved in {}\n",
      loss, std::exp(loss), unigram, out);
}

int TrainCommand::run() {
  const bool resuming = !resume.empty();
  if (resuming) {
    check_resume_alone();
    options = load_options(resume);
    out = resume;
  } else {
    if (app->count("--min-lr") == 0) options.min_lr = options.lr / 10;
    if (app->count("--warmup") == 0)
      options.warmup = std::min<std::int64_t>(50, options.steps / 10);
    check(options);
    if (out.empty()) throw_error<UsageError>("--out: expected a folder for the run, got none.");
    check_new_run(out);
  }
  if (stop_after < 0) throw_error<UsageError>("--stop-after: expected a step, got {}.", stop_after);
  const auto backend = device.make();

  const std::vector<std::string> texts = read_texts(options.data);
  if (!resuming) keep_absolute_paths(options);
  const bool from_model = !options.model.empty();
  const std::filesystem::path source = resuming ? out : options.model;
  const bool load = resuming || from_model;
  // Bytes fit any model with enough ids, also one whose own tokenizer coda cannot read.
  const Tokenizer tokenizer = options.tokenizer == "bytes" ? Tokenizer::bytes()
                              : load                       ? Tokenizer::load(source)
                                                           : Tokenizer::train(texts, options.vocab);
  if (!load && !tokenizer.is_bytes() && tokenizer.vocab_size() < options.vocab) {
    output.note("The text gives {} pieces, fewer than --vocab {}.\n", tokenizer.vocab_size(),
                options.vocab);
  }
  LlamaConfig config = load ? load_config(source) : new_config(options, tokenizer);
  config.dtype = parse_dtype(options.dtype);
  check_vocabulary(tokenizer, config, source);
  if (options.seq > config.max_position_embeddings) {
    throw_error<UsageError>("--seq: expected at most max_position_embeddings = {} of {}, got {}.",
                            config.max_position_embeddings, source.string(), options.seq);
  }
  const std::vector<std::int32_t> stream = tokenize(texts, tokenizer);
  const TokenSplit tokens = split_tokens(stream, options.seq);
  const std::string hash = fmt::format("{:016x}", fingerprint(stream));
  if (resuming && hash != options.data_hash) {
    throw_error<UsageError>(
        "--resume: {}: expected the data that the run began with (hash {}), got other data (hash "
        "{}) in {}. Restore the files, or begin a new run with --model {}.",
        out, options.data_hash, hash, fmt::join(options.data, " "), out);
  }
  options.data_hash = hash;

  check_memory("train", parameter_count(config), 16);  // value, gradient, two moments
  const auto model = make_llama_model(config, *backend, config.dtype, options.batch * options.seq);
  AdamW optimizer(*model, {options.beta1, options.beta2, 1e-8, options.weight_decay});
  const Checkpoint checkpoint(out, config.dtype);
  std::int64_t done = 0;
  if (resuming && has_checkpoint(out)) {
    done = checkpoint.load(*model, optimizer);
  } else if (from_model) {
    load_weights(*model, options.model);
  } else {
    initialize(*model, options.seed);
  }
  if (!resuming) create_run(out, config, tokenizer, options);
  if (done == 0) checkpoint.cut_metrics(0);  // of a run that ended before its first checkpoint

  output.note(
      "{} weights, vocabulary {}; {} training and {} held-out tokens; {} of {} steps done\n",
      parameter_count(config), config.vocab_size, tokens.training.size(), tokens.held_out.size(),
      done, options.steps);
  const std::int64_t last = stop_after > 0 ? std::min(stop_after, options.steps) : options.steps;
  Progress progress(done, last, output.json());
  LoopEvents events;
  events.on_step = [&](const StepMetrics& r) {
    output.object({{"step", r.step},
                   {"loss", r.loss},
                   {"lr", r.lr},
                   {"gradient_norm", r.gradient_norm},
                   {"tokens_per_second", r.tokens_per_second}});
    progress.update(r.step, fmt::format("loss {:.4f}  lr {:.2e}  {:.0f} tokens/s", r.loss, r.lr,
                                        r.tokens_per_second));
  };
  std::optional<double> last_eval;
  events.on_eval = [&](const EvalMetrics& r) {
    last_eval = r.loss;
    output.object({{"step", r.step}, {"eval_loss", r.loss}});
    progress.finish_line();
    output.note("step {}  held-out loss {:.4f}\n", r.step, r.loss);
  };
  events.should_stop = [] { return g_stop != 0; };
  stop_on_signals();
  done = train_loop(*model, optimizer, tokens, options, checkpoint, done, last, events);
  progress.finish_line();
  if (done >= options.steps) {
    report(*model, tokens, last_eval);
  } else {
    const std::string command =
        fmt::format("coda train --resume {}{}", out,
                    device.device == "cpu" ? "" : " --device " + device.device);
    output.object({{"done", false}, {"step", done}, {"out", out}, {"resume", command}});
    output.result("Stopped after step {} of {}. Continue with: {}\n", done, options.steps, command);
  }
  return 0;
}

}  // namespace

Command add_train(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("train", "Train a LLaMA-style model on text");
  auto command = std::make_shared<TrainCommand>();
  command->add_options(*sub);
  sub->footer(
      "A run that stops (Ctrl-C, SIGTERM, --stop-after) resumes bit for bit, with any --threads.\n"
      "Examples:\n"
      "  coda train --data book.txt --out run\n"
      "  coda train --data notes/ --tokenizer bytes --d-model 128 --steps 300 --out run\n"
      "  coda train --resume run");
  return {sub, [command] { return command->run(); }};
}

}  // namespace coda
