#include "plan/explain.h"

#include <nlohmann/json.hpp>

#include "backend/cuda/nvrtc.h"
#include "backend/cuda/plan_kernels.h"
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
  std::string device;  // empty: no kernels
  Printer output;

  int run() const;

 private:
  void print_json(const PlanReport& report) const;
  void explain_kernels(const std::shared_ptr<const Plan>& plan) const;
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
                   {"flops", step.counted ? ordered_json(step.cost.flops) : nullptr},
                   {"floor_seconds", step.floor_seconds},
                   {"program", step.text},
                   {"piece", step.piece.index + 1},
                   {"pieces", step.piece.count}});
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

ordered_json json_of(const cuda::KernelReport& k) {
  ordered_json object{{"name", k.name},
                      {"entry", k.entry},
                      {"configuration", k.configuration},
                      {"sums", k.order},
                      {"grid", {k.grid, k.grid_y}},
                      {"threads", k.block},
                      {"cluster", k.cluster},
                      {"shared_bytes", k.shared_bytes}};
  if (k.compiled) {
    object["registers"] = k.registers;
    object["frame_bytes"] = k.frame_bytes;
    object["ctas_per_sm"] = k.ctas_per_sm;
    object["occupancy"] = k.occupancy;
  } else {
    object["problem"] = k.problem;
  }
  return object;
}

/// What runs on the GPU for each step, after what explains the plan.
void ExplainCommand::explain_kernels(const std::shared_ptr<const Plan>& plan) const {
  const int sm_count = cuda::explained_sm_count();
  const std::string nvrtc =
      cuda::Nvrtc::why_not().empty()
          ? fmt::format("compiled by NVRTC {}", cuda::Nvrtc::get().version())
          : fmt::format("not compiled, so registers and occupancy are not known: {}",
                        cuda::Nvrtc::why_not());
  const auto steps = cuda::plan_kernels(plan, block.tokens, sm_count);
  for (const cuda::StepKernels& step : steps) {
    for (const cuda::KernelReport& kernel : step.kernels) {
      ordered_json object{{"phase", step.phase}, {"step", step.name}, {"form", step.form}};
      object["kernel"] = json_of(kernel);
      if (!brief) object["source"] = kernel.source;
      output.object(object);
    }
    if (step.kernels.empty()) {
      output.object({{"phase", step.phase}, {"step", step.name}, {"note", step.note}});
    }
  }
  output.object({{"sm_count", sm_count}, {"nvrtc", nvrtc}, {"sums", cuda::order_of_sums()}});
  output.result("\nkernels for sm_90a, {} SMs, {}\n  {}\n", sm_count, nvrtc, cuda::order_of_sums());
  for (const cuda::StepKernels& step : steps) output.result("{}", to_string(step, !brief));
}

int ExplainCommand::run() const {
  if (!(teraflops >= 0.0) || !(terabytes >= 0.0)) {
    throw_error<UsageError>(
        "--peak-tflops, --peak-tbytes: expected numbers of 0 or more, got {}, {}.", teraflops,
        terabytes);
  }
  if (!device.empty() && device != "cpu" && device != "cuda") {
    throw_error<UsageError>("--device: expected cpu or cuda, got \"{}\".", device);
  }
  const auto plan = block.compile_plan(!unfused);
  const Peaks peaks{teraflops * 1e12, terabytes * 1e12};
  if (output.json()) {
    print_json(report(*plan, block.tokens, peaks));
  } else {
    output.result("{}", explain(*plan, block.tokens, peaks, !brief));
  }
  if (device == "cuda") explain_kernels(plan);
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
  sub->add_option("--device", c->device,
                  "cuda: also the kernels that run on a Hopper GPU, with their generated source, "
                  "configuration, registers, shared memory, occupancy and order of sums. Needs no "
                  "GPU; registers and occupancy need NVRTC")
      ->group("Device");
  sub->add_flag("--brief", c->brief, "Without the text of programs and kernels")->group("Output");
  c->output.add_option(*sub);
  sub->footer(
      "Examples:\n"
      "  coda explain llama-layer --d-model 4096\n"
      "  coda explain llama-head --device cuda --brief\n"
      "  coda explain llama-layer --brief --peak-tflops 989 --peak-tbytes 4.8");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
