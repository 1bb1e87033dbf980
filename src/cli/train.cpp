#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "backend/cuda/info.h"
#include "base/check.h"
#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "cli/tokens.h"
#include "train/init.h"
#include "train/llama_model.h"
#include "train/loop.h"
#include "train/memory.h"
#include "train/plot.h"
#include "train/run_folder.h"
#include "train/speed.h"

namespace coda {
namespace {

using nlohmann::ordered_json;

/// For a shell to read as one word.
std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("/._-+=:,@%", c);
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// So that a run can be resumed from any folder.
void keep_absolute_paths(TrainOptions& options) {
  const auto make_absolute = [](std::string& path) {
    path = std::filesystem::absolute(path).lexically_normal().string();
  };
  for (std::string& path : options.data) make_absolute(path);
  if (!options.model.empty()) make_absolute(options.model);
}

/// Value, gradient and two moments in fp32, and the copy that is computed with.
std::int64_t bytes_per_weight(DType dtype) {
  return 16 + (dtype == DType::f32 ? 0 : static_cast<std::int64_t>(size_of(dtype)));
}

struct TrainCommand {
  CLI::App* app = nullptr;
  TrainOptions options;
  DeviceOptions device;
  Printer output;
  std::string out, resume, config, plot;
  std::int64_t stop_after = 0;

  void add_options(CLI::App& sub);
  int run();

 private:
  bool resuming() const { return !resume.empty(); }
  void check_paths() const;
  void remember_asked();
  void begin();
  void continue_run();
  void check_resume_alone() const;
  LlamaConfig model_config(const Tokenizer& tokenizer);
  void take_sizes(const LlamaConfig& c);
  void check_hash(const std::string& hash) const;
  void check_step_fits(const LlamaConfig& config, double bytes) const;
  Progression first_state(Model& model, AdamW& optimizer, const Checkpoint& checkpoint) const;
  void train(Model& model, AdamW& optimizer, const TokenSplit& tokens, Progression& run,
             const LlamaConfig& model_config);
  void write_plot() const;
  void report(Model& model, const TokenSplit& tokens, std::optional<double> known) const;
  std::string resume_command() const;
  std::string ways_on_from(const Diverged& stop) const;
  [[noreturn]] void fail_with_way_on(const std::string& what) const;
  void say_stopped(std::int64_t done) const;

  std::set<std::string> asked_;   ///< options that a model from --model must agree with
  std::optional<FileLock> lock_;  ///< of the run's folder
  std::optional<TokenFile> token_file_;
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
  option(data, "--text-field", o.text_field, "What holds the text in lines of .jsonl files");
  sub.add_option("--out", out, "New folder for the run: a Hugging Face model and what resumes it")
      ->group(data);
  sub.add_option("--resume", resume, "Continue the run in this folder with its own options")
      ->group(data);
  sub.add_option("--config", config,
                 "JSON file with any of these options (d_model for --d-model), such as "
                 "RUN/options.json; the command line has the last word")
      ->group(data);
  option(data, "--steps", o.steps, "Length of the schedule");
  sub.add_option("--stop-after", stop_after,
                 "Stop at this step of a longer schedule; 0: at its end")
      ->group(data);
  option(data, "--eval-every", o.eval_every, "Steps between evaluations, 0: at the end only");
  option(data, "--save-every", o.save_every, "Steps between checkpoints, 0: at the end only");
  option(data, "--keep", o.keep, "Saves to keep under RUN/checkpoints besides the newest");
  option(data, "--eval-tokens", o.eval_tokens, "Held-out tokens to evaluate at most");
  option(data, "--seed", o.seed, "Of initial weights and of the order of the data");
  sub.add_option("--plot", plot, "SVG file to draw the losses into, at every save and evaluation")
      ->group(data);

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
  option(steps, "--on-nan", o.on_nan,
         "A step whose loss or gradient is not finite: stop the run, or skip the step");
  option(steps, "--on-spike", o.on_spike,
         "A step whose loss is a spike: ignore that, stop the run, or skip the step");
  option(steps, "--spike", o.spike, "Nats above the median of the last 32 losses: a spike");
  sub.add_flag("--recompute", o.recompute,
               "Hold fewer activations for the backward pass and compute them again")
      ->group(steps);
  sub.add_flag("--recompute-products", o.recompute_products,
               "Far fewer: products run again too, which takes time")
      ->group(steps);
  sub.add_option("--memory", o.memory,
                 "GiB for weights, moments and a step: products run again until they are enough")
      ->group(steps);
  device.add_options(sub);
  output.add_option(sub);
}

/// A resumed run keeps its options: one that is given as well would be silently ignored.
void TrainCommand::check_resume_alone() const {
  constexpr const char* kAllowed[] = {"--resume", "--stop-after", "--threads", "--device",
                                      "--json",   "--plot",       "--on-nan",  "--on-spike",
                                      "--spike",  "--save-every", "--keep"};
  for (const CLI::Option* option : app->get_options()) {
    const std::string name = option->get_name();
    const auto is_name = [&](const char* allowed) { return name == allowed; };
    if (option->count() > 0 && std::none_of(std::begin(kAllowed), std::end(kAllowed), is_name)) {
      throw_error<UsageError>(
          "{}: expected nothing but {} beside --resume, got it as well. A run keeps the options it "
          "began with.",
          name, fmt::join(std::span(kAllowed).subspan(1), ", "));
    }
  }
}

/// An empty path is a variable of the shell that nobody set.
void TrainCommand::check_paths() const {
  for (const char* name : {"--data", "--out", "--resume", "--config", "--model", "--plot"}) {
    for (const std::string& path : app->get_option(name)->results()) {
      if (path.empty()) throw_error<UsageError>("{}: expected a path, got an empty one.", name);
    }
  }
}

void TrainCommand::remember_asked() {
  for (const CLI::Option* option : app->get_options()) {
    if (option->count() > 0) asked_.insert(option->get_name());
  }
}

void TrainCommand::begin() {
  remember_asked();
  // Sizes of a config file belong to its own model, not to another that the command line names.
  const bool another_model = asked_.contains("--model");
  if (!config.empty()) apply_config(*app, config);
  if (!another_model) remember_asked();
  check(options);
  if (out.empty()) throw_error<UsageError>("--out: expected a folder for the run, got none.");
  check_new_run(out);
}

void TrainCommand::continue_run() {
  check_resume_alone();
  out = resume;
  lock_ = lock_run(out);
  TrainOptions stored = load_options(out);
  const auto given = [&](const char* name) { return app->count(name) > 0; };
  if (given("--on-nan")) stored.on_nan = options.on_nan;
  if (given("--on-spike")) stored.on_spike = options.on_spike;
  if (given("--spike")) stored.spike = options.spike;
  if (given("--save-every")) stored.save_every = options.save_every;
  if (given("--keep")) stored.keep = options.keep;
  options = stored;
  check(options);
}

/// The options of a new run from --model are the model's sizes: others would be silently ignored.
void TrainCommand::take_sizes(const LlamaConfig& c) {
  const auto take = [&](const char* name, auto& value, auto actual, bool is_default = false) {
    if (asked_.contains(name) && value != actual && !is_default) {
      throw_error<UsageError>("{}: expected {}, which {} has, got {}. Leave the option out.", name,
                              actual, options.model, value);
    }
    value = actual;
  };
  take("--d-model", options.d_model, c.hidden_size);
  take("--layers", options.layers, c.num_hidden_layers);
  take("--heads", options.heads, c.num_attention_heads);
  take("--kv-heads", options.kv_heads, c.num_key_value_heads, options.kv_heads == 0);
  take("--d-ff", options.d_ff, c.intermediate_size, options.d_ff == 0);
  take("--vocab", options.vocab, c.vocab_size);
  take("--tie-embeddings", options.tie_embeddings, c.tie_word_embeddings);
}

LlamaConfig TrainCommand::model_config(const Tokenizer& tokenizer) {
  const std::string source = resuming() ? out : options.model;
  LlamaConfig c = source.empty() ? new_config(options, tokenizer) : load_config(source);
  if (!resuming() && !source.empty()) take_sizes(c);
  c.dtype = parse_dtype(options.dtype);
  check_vocabulary(tokenizer, c, source);
  if (options.seq > c.max_position_embeddings) {
    throw_error<UsageError>("--seq: expected at most max_position_embeddings = {} of {}, got {}.",
                            c.max_position_embeddings, source, options.seq);
  }
  check_memory("train", parameter_count(c), bytes_per_weight(c.dtype));
  if (device.device != "cuda") {  // logits, and what each layer begins with, before data is read
    const std::int64_t tokens = options.batch * options.seq;
    const double logits = static_cast<double>(c.vocab_size) / pieces_of_logits(c, c.dtype, tokens);
    const auto layers = static_cast<double>(c.num_hidden_layers * c.hidden_size);
    check_step_fits(
        c, static_cast<double>(tokens) * static_cast<double>(size_of(c.dtype)) * (logits + layers));
  }
  return c;
}

void TrainCommand::check_step_fits(const LlamaConfig& c, double bytes) const {
  const auto weights = static_cast<double>(parameter_count(c));
  check_step_memory(options.batch, options.seq, bytes,
                    weights * static_cast<double>(bytes_per_weight(c.dtype)));
}

void TrainCommand::check_hash(const std::string& hash) const {
  if (!resuming() || hash == options.data_hash) return;
  throw_error<UsageError>(
      "--resume: {}: expected the data that the run began with (hash {}), got other data (hash {}) "
      "in {}. Restore the files, or begin a new run with --model {}.",
      out, options.data_hash, hash, fmt::join(options.data, " "), out);
}

void TrainCommand::write_plot() const {
  if (plot.empty()) return;
  const std::filesystem::path metrics = std::filesystem::path(out) / "metrics.jsonl";
  const std::string text = std::filesystem::exists(metrics) ? read_file(metrics) : "";
  try {
    replace_file(plot, loss_plot(text, out));
  } catch (const BackendError& e) {  // a picture is no reason to lose a run
    output.note("--plot: {} Training goes on without it.\n", e.what());
  }
}

std::string TrainCommand::resume_command() const {
  return fmt::format("coda train --resume {}{}", shell_word(out),
                     device.device == "cpu" ? "" : " --device " + device.device);
}

/// What to do about a run that its losses ended.
std::string TrainCommand::ways_on_from(const Diverged& stop) const {
  std::string text = fmt::format(
      "\nBegin again with: coda train --config {} --lr {:.2g} --out NEW_RUN",
      shell_word((std::filesystem::path(out) / "options.json").string()), options.lr / 3);
  if (!stop.skipping().empty()) {
    text += fmt::format("\nOr go on without such steps: {} {}", resume_command(), stop.skipping());
  }
  return text;
}

/// Something outside the run failed.
void TrainCommand::fail_with_way_on(const std::string& what) const {
  throw_error<BackendError>(
      "{}\n{} Once that is mended, continue with: {}", what,
      has_checkpoint(out) ? "The last checkpoint is as it was." : "There is no checkpoint yet.",
      resume_command());
}

/// A reader of standard output who left must not take the command that continues with him.
void TrainCommand::say_stopped(std::int64_t done) const {
  const std::string command = resume_command();
  const std::string text =
      fmt::format("Stopped after step {} of {}. Continue with: {}\n", done, options.steps, command);
  output.object({{"done", false}, {"step", done}, {"out", out}, {"resume", command}});
  output.result("{}", text);
  if (std::ferror(stdout) != 0) print_text(stderr, text);
}

/// The end of a schedule: the held-out loss (`known` if the loop has just computed it), and what a
/// model without context would reach.
void TrainCommand::report(Model& model, const TokenSplit& tokens,
                          std::optional<double> known) const {
  const auto held_out = evaluated_tokens(tokens, options);
  const double loss = known ? *known : mean_loss(model, held_out, options.seq, options.batch);
  const std::optional<double> unigram = telling_unigram_loss(
      tokens.training, held_out, model.vocab_size(), [this] { token_file_->release(); });
  output.object({{"done", true},
                 {"step", options.steps},
                 {"eval_loss", loss},
                 {"eval_tokens", held_out.size()},
                 {"perplexity", std::exp(loss)},
                 {"unigram_loss", unigram ? ordered_json(*unigram) : nullptr},
                 {"out", out}});
  output.result("held-out loss {:.4f} (perplexity {:.2f}) over {} tokens{}. Saved in {}\n", loss,
                std::exp(loss), held_out.size(),
                unigram ? fmt::format("; a unigram model reaches {:.4f}", *unigram) : "", out);
}

/// From run.done to the end of the schedule, to --stop-after, or until a signal comes.
void TrainCommand::train(Model& model, AdamW& optimizer, const TokenSplit& tokens, Progression& run,
                         const LlamaConfig& model_config) {
  const std::int64_t last = stop_after > 0 ? std::min(stop_after, options.steps) : options.steps;
  Progress progress(run.done, last, output.json());
  std::optional<double> last_eval;
  std::int64_t skipped = 0;
  LoopEvents events;
  events.on_step = [&](const StepMetrics& r) {
    token_file_->release();
    output.object(to_json(r));
    if (!r.skipped.empty()) {
      ++skipped;
      progress.finish_line();
      output.note(
          "step {}  skipped ({}): loss {:.4f}, gradient norm {:.4g}; weights are as before\n",
          r.step, r.skipped, r.loss, r.gradient_norm);
    }
    progress.update(r.step,
                    fmt::format("loss {:.4f}  lr {:.2e}  norm {:.2f}  {:.0f} tokens/s  {:.2f} "
                                "GB  MFU {}",
                                r.loss, r.lr, r.gradient_norm, r.tokens_per_second,
                                static_cast<double>(r.memory_bytes) * 1e-9,
                                r.mfu ? fmt::format("{:.1f} %", *r.mfu * 100) : "n/a"));
  };
  events.on_eval = [&](const EvalMetrics& r) {
    last_eval = r.loss;
    output.object({{"step", r.step}, {"eval_loss", r.loss}});
    progress.finish_line();
    output.note("step {}  held-out loss {:.4f}\n", r.step, r.loss);
    write_plot();
  };
  events.on_save = [&](std::int64_t) { write_plot(); };
  events.should_stop = stop_asked;
  DeviceSpeed speed{training_flops_per_token(model_config, options.seq), std::nullopt};
  if (device.device == "cuda") speed.peak = known_peak(cuda::info(), model_config.dtype);
  try {
    train_loop(model, optimizer, tokens, options, Checkpoint(out, model_config.dtype), run, last,
               events, speed);
  } catch (const Diverged& e) {
    progress.finish_line();
    throw Diverged(e.what() + ways_on_from(e), e.skipping());
  } catch (const BackendError& e) {
    progress.finish_line();
    fail_with_way_on(e.what());
  } catch (const std::bad_alloc&) {
    progress.finish_line();
    fail_with_way_on("out of memory.");
  } catch (...) {
    progress.finish_line();
    throw;
  }
  progress.finish_line();
  if (skipped > 0)
    output.note("{} skipped; metrics.jsonl says which and why\n", counted(skipped, "step"));
  if (run.done >= options.steps) {
    report(model, tokens, last_eval);
    return;
  }
  say_stopped(run.done);
}

/// Weights and moments of the last checkpoint, or those that a new run begins from.
Progression TrainCommand::first_state(Model& model, AdamW& optimizer,
                                      const Checkpoint& checkpoint) const {
  if (resuming() && has_checkpoint(out)) {
    Progression run = checkpoint.load(model, optimizer);
    if (run.done <= options.steps) return run;
    throw_error<UsageError>(
        "{}: steps: expected at least {}, the step that the run has reached, got {}. Restore it; "
        "--stop-after ends a run before its last step.",
        (std::filesystem::path(out) / "options.json").string(), run.done, options.steps);
  }
  if (!options.model.empty()) {
    load_weights(model, options.model);
  } else {
    initialize(model, options.seed);
  }
  return {};
}

int TrainCommand::run() {
  if (stop_after < 0) throw_error<UsageError>("--stop-after: expected a step, got {}.", stop_after);
  check_paths();
  resuming() ? continue_run() : begin();
  if (!plot.empty()) check_plot(plot, resuming() ? "" : out);
  SettingUp setting_up(
      resuming() ? fmt::format("\ncoda: stopped before a step was done; {} is as it was. Continue "
                               "with: {}\n",
                               out, resume_command())
                 : "\ncoda: stopped before the first step; nothing was written. The same command "
                   "begins again.\n");
  const auto backend = device.make();
  const Texts texts = open_texts(options.data, options.text_field, output);
  if (!resuming()) keep_absolute_paths(options);
  const std::string source = resuming() ? out : options.model;
  // Bytes fit any model with enough ids, also one whose own tokenizer coda cannot read.
  const Tokenizer tokenizer = options.tokenizer == "bytes" ? Tokenizer::bytes()
                              : source.empty() ? Tokenizer::train(texts.sample(), options.vocab)
                                               : Tokenizer::load(source);
  if (source.empty() && !tokenizer.is_bytes() && tokenizer.vocab_size() < options.vocab) {
    output.note("The text gives {} pieces, fewer than --vocab {}.\n", tokenizer.vocab_size(),
                options.vocab);
  }
  if (!source.empty()) {
    if (!resuming() && tokenizer.is_bytes() && options.tokenizer != "bytes" &&
        asked_.contains("--tokenizer")) {
      throw_error<UsageError>("--tokenizer: expected bytes, which {} has, got {}. Leave it out.",
                              source, options.tokenizer);
    }
    options.tokenizer = tokenizer.is_bytes() ? "bytes" : "bpe";
  }
  const LlamaConfig model_config = this->model_config(tokenizer);
  const std::filesystem::path kept = std::filesystem::path(out) / "tokens.bin";
  LoadedTokens loaded = load_tokens(texts, tokenizer, kept, existing_folder(out), output);
  token_file_ = std::move(loaded.file);
  const TokenSplit tokens = split_tokens(token_file_->tokens(), options.seq);
  const std::string hash = fmt::format("{:016x}", token_file_->hash());
  check_hash(hash);
  options.data_hash = hash;

  // On the host gradients have memory of their own: what a model takes is known, and refused,
  // before any is asked for.
  const bool accumulates = options.accumulate > 1 || device.device != "cuda";
  const auto model =
      make_llama_model(model_config, *backend, model_config.dtype, options.batch * options.seq,
                       {.recompute = options.recompute,
                        .recompute_products = options.recompute_products,
                        .accumulates = accumulates,
                        .memory = options.memory.value_or(0) * (1 << 30)});
  AdamW optimizer(*model, {options.beta1, options.beta2, 1e-8, options.weight_decay});
  const Checkpoint checkpoint(out, model_config.dtype);
  Progression run = first_state(*model, optimizer, checkpoint);
  check_step_fits(model_config, static_cast<double>(model->step_bytes()));
  model->prepare();
  setting_up.end();
  if (resuming()) {
    save_options(out, options);
  } else {
    lock_ = create_run(out, model_config, tokenizer, options);
  }
  if (loaded.fresh) token_file_->keep(kept);
  if (run.done == 0) checkpoint.cut_metrics(0);  // of a run that ended before its first checkpoint
  write_plot();
  output.note(
      "{} weights, vocabulary {}; {} training and {} held-out tokens; {} of {} steps done\n",
      parameter_count(model_config), model_config.vocab_size, tokens.training.size(),
      tokens.held_out.size(), run.done, options.steps);
  train(*model, optimizer, tokens, run, model_config);
  forgive_lost_reader();
  return 0;
}

}  // namespace

Command add_train(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("train", "Train a LLaMA-style model on text");
  auto command = std::make_shared<TrainCommand>();
  command->add_options(*sub);
  sub->footer(
      "A run that stops (Ctrl-C, SIGTERM, a closed terminal, --stop-after) resumes bit for bit, "
      "with any --threads.\n"
      "Examples:\n"
      "  coda train --data book.txt --out run\n"
      "  coda train --data notes/ --tokenizer bytes --d-model 128 --steps 300 --out run\n"
      "  coda train --resume run");
  return {sub, [command] { return command->run(); }};
}

}  // namespace coda
