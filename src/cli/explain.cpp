#include "plan/explain.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/command.h"
#include "nn/models/llama_blocks.h"

namespace coda {
namespace {

using nlohmann::ordered_json;

struct ExplainCommand {
  std::string block, dtype = "bf16";
  LlamaBlockSizes sizes;
  std::int64_t tokens = 16384;
  double held_price = 0.0;
  double teraflops = 0.0, terabytes = 0.0;  // peaks of the machine, 0: no floor times
  bool unfused = false, brief = false;
  Printer output;

  int run() const;

 private:
  void print_json(const PlanReport& report) const;
};

ordered_json json_of(const Cost& cost) { return {{"bytes", cost.bytes}, {"flops", cost.flops}}; }

void ExplainCommand::print_json(const PlanReport& r) const {
  for (const StepReport& step : r.steps) {
    output.object({{"phase", step.phase},
                   {"name", step.name},
                   {"form", step.form},
                   {"fused", step.fused},
                   {"note", step.note},
                   {"bytes", step.cost.bytes},
                   {"flops", step.cost.flops},
                   {"floor_seconds", step.floor_seconds},
                   {"program", step.text}});
  }
  output.object({{"block", block},
                 {"tokens", r.tokens},
                 {"math", r.math},
                 {"rewrites", r.rewrites},
                 {"forward", json_of(r.forward)},
                 {"backward", json_of(r.backward)},
                 {"saved_bytes", r.saved_bytes},
                 {"gemm_bytes", r.gemm_bytes},
                 {"floor_seconds", r.floor_seconds}});
}

int ExplainCommand::run() const {
  if (tokens < 1 || tokens > (std::int64_t{1} << 31)) {
    throw_error<UsageError>("--tokens: expected a whole number from 1 to 2^31, got {}.", tokens);
  }
  if (!(held_price >= 0.0) || !(teraflops >= 0.0) || !(terabytes >= 0.0)) {
    throw_error<UsageError>(
        "--held-price, --peak-tflops, --peak-tbytes: expected numbers of 0 or more, got {}, {}, "
        "{}.",
        held_price, teraflops, terabytes);
  }
  LlamaBlockSizes with_dtype = sizes;
  with_dtype.dtype = parse_dtype(dtype);
  Graph graph;
  CompileRequest request;
  if (block == "llama-layer") {
    request = llama_layer_block(graph, with_dtype);
  } else if (block == "llama-head") {
    request = llama_head_block(graph, with_dtype);
  } else {
    throw_error<UsageError>("explain: expected llama-layer or llama-head, got \"{}\".", block);
  }
  CompileOptions options;
  options.dtype = options.output_dtype = with_dtype.dtype;
  options.weight_grad_dtype = with_dtype.dtype;
  options.fuse = !unfused;
  options.held_price = held_price;
  options.budget_tokens = tokens;
  const auto plan = compile(graph, request, options);
  const Peaks peaks{teraflops * 1e12, terabytes * 1e12};
  if (output.json()) {
    print_json(report(*plan, tokens, peaks));
  } else {
    output.result("{}", explain(*plan, tokens, peaks, !brief));
  }
  return 0;
}

}  // namespace

Command add_explain(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("explain", "Show what the compiler makes of a block, and what it costs");
  auto c = std::make_shared<ExplainCommand>();
  const auto option = [&](const char* group, const char* name, auto& value, const char* text) {
    return sub->add_option(name, value, text)->group(group)->capture_default_str();
  };
  sub->add_option("block", c->block,
                  "llama-layer (from one attention to the next) or llama-head (cross-entropy)")
      ->required();
  option("Sizes", "--tokens", c->tokens, "Rows, for bytes and FLOPs");
  option("Sizes", "--d-model", c->sizes.d_model, "Width");
  option("Sizes", "--d-ff", c->sizes.d_ff, "Width of the MLP, 0: 8/3 of --d-model");
  option("Sizes", "--head-dim", c->sizes.head_dim, "Columns of an attention head");
  option("Sizes", "--kv-heads", c->sizes.n_kv_heads, "Key-value heads, 0: as many as heads");
  option("Sizes", "--vocab", c->sizes.vocab, "Vocabulary of the head");
  option("Compiler", "--dtype", c->dtype, "Memory type: f32, bf16 or f16");
  option("Compiler", "--held-price", c->held_price,
         "Price of a byte held for backward, in bytes moved; 1.5 recomputes what is cheap");
  sub->add_flag("--unfused", c->unfused, "Every operation a program of its own")->group("Compiler");
  option("Floor times", "--peak-tflops", c->teraflops, "Of the machine, 0: no floor times");
  option("Floor times", "--peak-tbytes", c->terabytes, "Memory bandwidth, TB/s");
  sub->add_flag("--brief", c->brief, "Without the text of the programs")->group("Output");
  c->output.add_option(*sub);
  sub->footer(
      "Examples:\n"
      "  coda explain llama-layer --d-model 4096\n"
      "  coda explain llama-layer --brief --peak-tflops 989 --peak-tbytes 4.8");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
