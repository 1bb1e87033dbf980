// `coda bench gemm`: the Hopper mainloop against cuBLAS in one process (docs/cuda.md, "Timing").
#include "backend/cuda/bench_gemm.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/command.h"

namespace coda {
namespace {

struct BenchGemmCommand {
  std::vector<std::int64_t> layers;
  std::vector<std::string> shapes;
  bool sweep = false;
  std::int64_t tokens = 16384;
  std::string timing = "both";
  cuda::BenchGemmOptions options;
  Printer output;

  int run();

 private:
  void collect_shapes();
  void print_json(const cuda::BenchGemmReport& report) const;
};

void BenchGemmCommand::collect_shapes() {
  if (layers.empty() && shapes.empty() && !sweep) layers = {2048, 4096};
  const auto add = [&](const std::vector<cuda::GemmShape>& more) {
    options.shapes.insert(options.shapes.end(), more.begin(), more.end());
  };
  for (const std::int64_t d : layers) add(cuda::layer_gemms(tokens, d));
  if (sweep) add(cuda::sweep_gemms());
  for (const std::string& shape : shapes) options.shapes.push_back(cuda::parse_gemm_shape(shape));
}

void BenchGemmCommand::print_json(const cuda::BenchGemmReport& report) const {
  for (const cuda::BenchGemmRow& row : report.rows) {
    nlohmann::ordered_json object = {
        {"shape", cuda::to_text(row.shape)}, {"device", report.device}, {"cublas", report.cublas}};
    if (options.interleaved) object["cublas_interleaved_ms"] = row.cublas_interleaved_ms;
    if (options.sustained) object["cublas_sustained_ms"] = row.cublas_sustained_ms;
    if (options.check) object["cublas_error"] = row.cublas_error;
    for (const cuda::BenchGemmEntry& entry : row.entries) {
      nlohmann::ordered_json ours = {{"config", entry.config}, {"picked", entry.picked}};
      if (options.interleaved) {
        ours["interleaved_ms"] = entry.interleaved_ms;
        ours["interleaved_ratio"] = entry.interleaved_ratio;
      }
      if (options.sustained) {
        ours["sustained_ms"] = entry.sustained_ms;
        ours["sustained_ratio"] = entry.sustained_ratio;
      }
      if (options.check) ours["error"] = entry.error;
      object["entries"].push_back(ours);
    }
    output.object(object);
  }
}

int BenchGemmCommand::run() {
  collect_shapes();
  options.interleaved = timing != "sustained";
  options.sustained = timing != "interleaved";
  const cuda::BenchGemmReport report = cuda::bench_gemm(options, !output.json());
  output.result("{}", report.table());
  print_json(report);
  return 0;
}

}  // namespace

Command add_bench_gemm(CLI::App& bench) {
  CLI::App* gemm = bench.add_subcommand("gemm", "The Hopper GEMM against cuBLAS, in one process");
  auto command = std::make_shared<BenchGemmCommand>();
  BenchGemmCommand& c = *command;
  gemm->add_option("--layer", c.layers,
                   "The 15 GEMMs of a layer and head of this width; default: 2048 4096")
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{65536}))
      ->group("Shapes");
  gemm->add_option("--tokens", c.tokens, "M of --layer")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str()
      ->group("Shapes");
  gemm->add_flag("--sweep", c.sweep, "Shapes off that table: odd M, N, other widths")
      ->group("Shapes");
  gemm->add_option("--shape", c.shapes, "One, such as \"NT 16384 2048 2048 bf16 f32 add\"")
      ->group("Shapes");
  gemm->add_option("--config", c.options.configs,
                   "Candidates by name; picked: the heuristic's choice; all: every one")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Race");
  gemm->add_option("--timing", c.timing, "interleaved (launch by launch), sustained, or both")
      ->check(CLI::IsMember({"interleaved", "sustained", "both"}))
      ->capture_default_str()
      ->group("Race");
  gemm->add_option("--seconds", c.options.block_seconds, "Length of a sustained block")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str()
      ->group("Race");
  gemm->add_option("--rounds", c.options.sustained_rounds, "Sustained blocks of each candidate")
      ->check(CLI::Range(1, 100))
      ->capture_default_str()
      ->group("Race");
  gemm->add_flag("!--no-check", c.options.check, "Skip the comparison with float64")->group("Race");
  c.output.add_option(*gemm);
  gemm->footer(
      "Ratios are cuBLAS's time / coda's: above 1, coda is faster. Needs a Hopper GPU and cuBLAS.\n"
      "Example:\n  coda bench gemm --layer 4096 --json");
  return {gemm, [command] { return command->run(); }};
}

}  // namespace coda
