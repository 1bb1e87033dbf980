#include "base/check.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/block.h"
#include "cli/command.h"
#include "train/safetensors.h"

namespace coda {
namespace {

struct CheckCommand {
  BlockOptions block;
  double tolerance = 0.0;
  std::string save;  // file
  DeviceOptions device;
  Printer output;

  int run() const;
};

/// The largest relative error of one rounding.
double roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

/// No value here is the result of more than kDepth roundings to the memory type, one after another,
/// and fp32 sums run over at most the widest extent. Their errors are independent, so that of
/// either the root of the number counts.
double default_tolerance(const Plan& plan, DType dtype) {
  constexpr double kDepth = 8;
  double widest = 1;
  for (const Buffer& b : plan.buffers) {
    widest = std::max(widest, static_cast<double>(std::max(b.rows, b.cols)));
  }
  return std::sqrt(kDepth) * (roundoff(dtype) + 0x1p-24 * std::sqrt(widest));
}

double relative_error(const HostTensor& got, const HostTensor& expected) {
  double difference = 0.0, norm = 0.0;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const double d = got.get(i) - expected.get(i);
    difference += d * d;
    norm += expected.get(i) * expected.get(i);
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

std::string stored_type(DType dtype) {
  std::string name(name_of(dtype));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// What went in, what came out and what float64 says: input.NAME, got.NAME, exact.NAME.
void save_tensors(const std::string& path, const BlockMemory& memory, const BlockMemory& exact) {
  std::vector<StoredTensor> stored;
  const auto add = [&](const char* group, const std::map<std::string, HostTensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const TensorView view = tensor.view();
      stored.push_back({fmt::format("{}.{}", group, name),
                        stored_type(view.dtype),
                        {view.rows, view.cols},
                        {static_cast<const std::byte*>(view.data), view.bytes()}});
    }
  };
  add("input", memory.inputs());
  add("got", memory.outputs());
  add("exact", exact.outputs());
  write_safetensors(path, stored, {});
}

int CheckCommand::run() const {
  const auto plan = block.compile_plan(true);
  const double bound =
      tolerance > 0.0 ? tolerance : default_tolerance(*plan, parse_dtype(block.dtype));
  const auto backend = device.make();
  const auto oracle = make_reference_backend(DType::f64);
  BlockMemory memory(*plan, block.tokens, block.sizes, false);
  BlockMemory exact(*plan, block.tokens, block.sizes, true);
  const auto run_on = [&](Backend& on, BlockMemory& with) {
    const auto session = on.prepare(plan, block.tokens);
    with.bind(*session, on);
    session->run(Phase::forward, block.tokens);
    session->run(Phase::backward, block.tokens);
    with.fetch();
  };
  run_on(*backend, memory);
  run_on(*oracle, exact);
  if (!save.empty()) save_tensors(save, memory, exact);
  std::int64_t failed = 0;
  for (const auto& [name, expected] : exact.outputs()) {
    const double error = relative_error(memory.outputs().at(name), expected);
    const bool ok = error <= bound;  // false for NaN
    failed += ok ? 0 : 1;
    output.object({{"name", name}, {"relative_error", error}, {"ok", ok}});
    output.result("{:<24} {:.3e} {}\n", name, error, ok ? "ok" : "FAIL");
  }
  const auto count = static_cast<std::int64_t>(exact.outputs().size());
  output.object({{"compared", count}, {"failed", failed}, {"tolerance", bound}});
  output.result("{} of {} within {:.1e}\n", count - failed, count, bound);
  return failed == 0 ? 0 : 1;
}

}  // namespace

Command add_check(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("check", "Run a compiled block and compare it with float64 math");
  auto c = std::make_shared<CheckCommand>();
  c->block.sizes.d_model = 128;
  c->block.sizes.head_dim = 32;
  c->block.sizes.vocab = 500;
  c->block.tokens = 70;
  c->block.add_options(*sub);
  sub->add_option("--tol", c->tolerance,
                  "Largest relative error, in norm; default: from the memory type and sizes")
      ->group("Compiler");
  sub->add_option(
         "--save", c->save,
         "A safetensors file for what goes in (input.*), what comes out (got.*) and float64's "
         "results (exact.*)")
      ->group("Output");
  c->device.add_options(*sub);
  c->output.add_option(*sub);
  sub->footer(
      "All outputs and gradients; the float64 side runs the same programs scalar by scalar, so "
      "keep sizes small. Exit code 1 if one is further off.\n"
      "Examples:\n  coda check llama-layer\n  coda check llama-head --dtype f32 --tokens 33");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
