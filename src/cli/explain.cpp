#include "plan/explain.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/block.h"
#include "cli/command.h"

namespace coda {
namespace {

using nlohmann::ordered_json;

struct ExplainCommand {
  BlockOptions block;
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
  output.object({{"block", block.block},
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
  if (!(teraflops >= 0.0) || !(terabytes >= 0.0)) {
    throw_error<UsageError>(
        "--peak-tflops, --peak-tbytes: expected numbers of 0 or more, got {}, {}.", teraflops,
        terabytes);
  }
  const auto plan = block.compile_plan(!unfused);
  const Peaks peaks{teraflops * 1e12, terabytes * 1e12};
  if (output.json()) {
    print_json(report(*plan, block.tokens, peaks));
  } else {
    output.result("{}", explain(*plan, block.tokens, peaks, !brief));
  }
  return 0;
}

}  // namespace

Command add_explain(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("explain", "Show what the compiler makes of a block, and what it costs");
  auto c = std::make_shared<ExplainCommand>();
  c->block.add_options(*sub);
  sub->add_flag("--unfused", c->unfused, "Every operation a program of its own")->group("Compiler");
  sub->add_option("--peak-tflops", c->teraflops, "Of the machine, 0: no floor times")
      ->group("Floor times")
      ->capture_default_str();
  sub->add_option("--peak-tbytes", c->terabytes, "Memory bandwidth, TB/s")
      ->group("Floor times")
      ->capture_default_str();
  sub->add_flag("--brief", c->brief, "Without the text of the programs")->group("Output");
  c->output.add_option(*sub);
  sub->footer(
      "Examples:\n"
      "  coda explain llama-layer --d-model 4096\n"
      "  coda explain llama-layer --brief --peak-tflops 989 --peak-tbytes 4.8");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
