#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/median.h"
#include "cli/block.h"
#include "cli/command.h"

namespace coda {
namespace {

using nlohmann::ordered_json;

struct BenchCommand {
  BlockOptions block;
  double seconds = 2.0;
  bool from_stdin = false;
  DeviceOptions device;
  Printer output;

  int run() const;
  int run_on_lines(Backend& backend) const;
};

/// One way to run the block, and how long each phase took each time.
struct Candidate {
  std::string name;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<BlockMemory> memory;
  std::unique_ptr<Session> session;
  std::vector<double> forward, backward;
};

double timed_run(Backend& backend, Session& session, Phase phase, std::int64_t tokens) {
  const auto start = std::chrono::steady_clock::now();
  session.run(phase, tokens);
  backend.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Cost cost_of_phase(const Plan& plan, Phase phase, std::int64_t tokens) {
  Cost total;
  for (const Step& step : phase == Phase::forward ? plan.forward : plan.backward) {
    const Cost cost = cost_of(step, plan, tokens);
    total.bytes += cost.bytes;
    total.flops += cost.flops;
  }
  return total;
}

double processor_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

double resident_mebibytes() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) / 1024;
}

/// The fused plan, forward and backward, once for each line of standard input.
int BenchCommand::run_on_lines(Backend& backend) const {
  const auto plan = block.compile_plan(true);
  BlockMemory memory(*plan, block.tokens, block.sizes, false);
  const double before = resident_mebibytes();
  const auto session = backend.prepare(plan, block.tokens);
  memory.bind(*session, backend);
  const auto run_once = [&] {
    const double forward = timed_run(backend, *session, Phase::forward, block.tokens);
    return std::pair(forward, timed_run(backend, *session, Phase::backward, block.tokens));
  };
  run_once();
  output.object({{"ready", true}});
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const double start = processor_seconds();
    const auto [forward, backward] = run_once();
    output.object({{"seconds", forward + backward},
                   {"forward_seconds", forward},
                   {"processor_seconds", processor_seconds() - start}});
    std::fflush(stdout);
  }
  // Beyond inputs and outputs; the process's code and tables count too.
  output.object({{"peak_mebibytes", resident_mebibytes()},
                 {"extra_mebibytes", resident_mebibytes() - before}});
  return 0;
}

int BenchCommand::run() const {
  if (block.block.empty()) {
    throw_error<UsageError>(
        "bench: expected llama-layer, llama-head, attention, gemm, train or generate, got "
        "nothing.");
  }
  if (!(seconds > 0.0 && seconds <= 3600.0)) {
    throw_error<UsageError>("--seconds: expected a number above 0 and at most 3600, got {}.",
                            seconds);
  }
  const auto backend = device.make();
  if (from_stdin) return run_on_lines(*backend);
  std::vector<Candidate> candidates;
  for (const bool fuse : {true, false}) {
    Candidate c{fuse ? "fused" : "unfused", block.compile_plan(fuse), nullptr, nullptr, {}, {}};
    c.memory = std::make_unique<BlockMemory>(*c.plan, block.tokens, block.sizes, false);
    c.session = backend->prepare(c.plan, block.tokens);
    c.memory->bind(*c.session, *backend);
    candidates.push_back(std::move(c));
  }
  // In turns, so that whatever else the machine does meets both alike. The first round warms up.
  double spent = 0.0;
  for (int round = 0; round < 4 || spent < seconds; ++round) {
    for (Candidate& c : candidates) {
      const double forward = timed_run(*backend, *c.session, Phase::forward, block.tokens);
      const double backward = timed_run(*backend, *c.session, Phase::backward, block.tokens);
      spent += forward + backward;
      if (round == 0) continue;
      c.forward.push_back(forward);
      c.backward.push_back(backward);
    }
  }
  output.result("{:<9} {:<9} {:>10} {:>10} {:>10}  median of {}\n", "plan", "phase", "ms",
                "GFLOP/s", "GB/s", candidates[0].forward.size());
  for (const Candidate& c : candidates) {
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const bool is_forward = phase == Phase::forward;
      const double time = median(is_forward ? c.forward : c.backward);
      const Cost cost = cost_of_phase(*c.plan, phase, block.tokens);
      // Attention's are not counted: they depend on the lengths of the sequences.
      std::optional<double> gflops;
      if (cost.flops > 0) gflops = cost.flops / time * 1e-9;
      const char* name = is_forward ? "forward" : "backward";
      output.object({{"block", block.block},
                     {"plan", c.name},
                     {"phase", name},
                     {"milliseconds", time * 1e3},
                     {"gflops", gflops ? ordered_json(*gflops) : nullptr},
                     {"gigabytes_per_second", cost.bytes / time * 1e-9},
                     {"runs", c.forward.size()}});
      output.result("{:<9} {:<9} {:>10.2f} {:>10} {:>10.1f}\n", c.name, name, time * 1e3,
                    gflops ? fmt::format("{:.1f}", *gflops) : "n/a", cost.bytes / time * 1e-9);
    }
  }
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  CLI::App* sub = app.add_subcommand(
      "bench",
      "Time a compiled block, fused and unfused in turns, training steps, generation, or the "
      "Hopper GEMM");
  auto c = std::make_shared<BenchCommand>();
  c->block.sizes.d_model = 512;
  c->block.sizes.head_dim = 64;
  c->block.sizes.vocab = 4096;
  c->block.tokens = 1024;
  c->block.dtype = "f32";
  c->block.add_options(*sub);
  sub->get_option("block")->required(false);  // not with `bench gemm`
  const Command gemm = add_bench_gemm(*sub), generate = add_bench_generate(*sub);
  const Command train = add_bench_train(*sub);
  sub->add_option("--seconds", c->seconds, "Run at least so long in all")
      ->group("Output")
      ->capture_default_str();
  sub->add_flag("--stdin", c->from_stdin,
                "With --json: the fused plan, one run for each line of standard input")
      ->group("Output");
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer(
      "GFLOP/s count matrix products, GB/s the bytes of the plan (coda explain).\n"
      "Example:\n  coda bench llama-layer --d-model 1024 --threads 1");
  return {sub, [c, gemm, generate, train] {
            for (const Command& command : {gemm, generate, train})
              if (command.app->parsed()) return command.run();
            return c->run();
          }};
}

}  // namespace coda
