#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/block.h"
#include "cli/check_cases.h"
#include "cli/command.h"
#include "train/safetensors.h"

namespace coda {
namespace {

struct CheckCommand {
  BlockOptions block;
  std::optional<double> tolerance;
  std::string save, filter;
  bool one_type = false;  // --dtype was given
  DeviceOptions device;
  Printer output;

  int run() const;

 private:
  int run_block() const;
  int run_table() const;
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

constexpr double kDepth = 8;

double widest_of(const Plan& plan) {
  double widest = 1;
  for (const Buffer& b : plan.buffers) {
    widest = std::max(widest, static_cast<double>(std::max(b.rows, b.cols)));
  }
  return widest;
}

/// No value here is the result of more than kDepth roundings to the memory type, one after another,
/// and fp32 sums run over at most the widest extent. Their errors are independent, so that of
/// either the root of the number counts.
double default_tolerance(const Plan& plan, DType dtype) {
  return std::sqrt(kDepth) * (roundoff(dtype) + 0x1p-24 * std::sqrt(widest_of(plan)));
}

/// Root of the mean square of a(i).
template <class A>
double mean_size(std::int64_t count, const A& a) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += a(i) * a(i);
  return count == 0 ? 0.0 : std::sqrt(sum / static_cast<double>(count));
}

double mean_size(const HostTensor& tensor) {
  return mean_size(tensor.size(), [&](std::int64_t i) { return tensor.get(i); });
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

/// Both sides' results of one plan.
struct Checked {
  BlockMemory memory, exact;

  Checked(const std::shared_ptr<const Plan>& plan, std::int64_t tokens,
          const LlamaBlockSizes& sizes, Backend& backend)
      : memory(*plan, tokens, sizes, false), exact(*plan, tokens, sizes, true) {
    static const std::unique_ptr<Backend> oracle = make_reference_backend(DType::f64);
    const auto run_on = [&](Backend& on, BlockMemory& with) {
      const auto session = on.prepare(plan, tokens);
      with.bind(*session, on);
      session->run(Phase::forward, tokens);
      if (!plan->backward.empty()) session->run(Phase::backward, tokens);
      with.fetch();
    };
    run_on(backend, memory);
    run_on(*oracle, exact);
    for (const auto& [name, expected] : exact.outputs()) {
      largest = std::max(largest, mean_size(expected));
    }
  }

  /// |got - expected| / |expected|, as norms. What is zero by cancellation (gradients of
  /// attention's q and k with one key) has no size of its own: it is held against the largest of
  /// the others.
  double relative_error(const std::string& name) const {
    const HostTensor &got = memory.outputs().at(name), &expected = exact.outputs().at(name);
    const double difference =
        mean_size(expected.size(), [&](std::int64_t i) { return got.get(i) - expected.get(i); });
    const double size = mean_size(expected);
    return difference == 0.0 ? 0.0 : difference / (size > 0.0 ? size : largest);
  }

  double largest = 0.0;  ///< of the results' elements, in root mean square
};

int CheckCommand::run() const {
  if (tolerance && !(*tolerance >= 0.0)) {
    throw_error<UsageError>("check: --tol: expected a number of 0 or more, got {}.", *tolerance);
  }
  if (!block.block.empty()) {
    if (filter.empty()) return run_block();
    throw_error<UsageError>("check: --filter: expected no block beside it, got {}.", block.block);
  }
  if (!save.empty()) throw_error<UsageError>("check: --save: expected a block, got none.");
  return run_table();
}

/// Every case, in every type, on tiles of 37 rows and on products of 130.
int CheckCommand::run_table() const {
  const auto backend = device.make();
  std::int64_t cases = 0, failed = 0;
  for (const CheckCase& one : check_cases()) {
    if (one.name.find(filter) == std::string::npos) continue;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (one_type && parse_dtype(block.dtype) != dtype) continue;
      for (const bool product : {false, true}) {
        if (product && !one.on_product) continue;
        CaseGraph graph(dtype, product);
        one.build(graph);
        const auto plan = graph.compile_plan();
        const std::int64_t tokens = product ? 130 : 37;
        const Checked checked(plan, tokens, graph.sizes(), *backend);
        const double bound = tolerance.value_or(default_tolerance(*plan, dtype));
        double worst = 0.0;
        std::string of;
        for (const auto& [name, expected] : checked.exact.outputs()) {
          const double error = checked.relative_error(name);
          if (!of.empty() && !(error > worst) && !std::isnan(error)) continue;
          worst = error;
          of = name;
          if (std::isnan(error)) break;
        }
        const bool ok = worst <= bound;
        ++cases;
        failed += ok ? 0 : 1;
        output.object({{"case", one.name},
                       {"dtype", name_of(dtype)},
                       {"product", product},
                       {"results", checked.exact.outputs().size()},
                       {"worst", of},
                       {"relative_error", worst},
                       {"tolerance", bound},
                       {"ok", ok}});
        output.result("{:<24}{:<5}{:<8}{:>2} results, worst {:.1e} of {:.1e} ({}) {}\n", one.name,
                      name_of(dtype), product ? "product" : "tiles", checked.exact.outputs().size(),
                      worst, bound, of, ok ? "ok" : "FAIL");
      }
    }
  }
  if (cases == 0) {
    throw_error<UsageError>(
        "check: --filter: expected a part of a case's name, such as op/exp, got \"{}\".", filter);
  }
  output.object({{"compared", cases}, {"failed", failed}});
  output.result(
      "{} of {} within sqrt({:.0f}) (u + 2^-24 sqrt(K)): u the rounding of the type (bf16 2^-8, "
      "f16 2^-11, f32 2^-24), K the longest sum, at most {:.0f} roundings one after another\n",
      cases - failed, cases, kDepth, kDepth);
  return failed == 0 ? 0 : 1;
}

int CheckCommand::run_block() const {
  const auto plan = block.compile_plan(true);
  const double bound = tolerance.value_or(default_tolerance(*plan, parse_dtype(block.dtype)));
  const auto backend = device.make();
  const Checked checked(plan, block.tokens, block.sizes, *backend);
  const auto& outputs = checked.exact.outputs();
  if (!save.empty()) save_tensors(save, checked.memory, checked.exact);
  std::int64_t failed = 0;
  for (const auto& [name, expected] : outputs) {
    const double error = checked.relative_error(name);
    const bool ok = error <= bound;  // false for NaN
    failed += ok ? 0 : 1;
    output.object({{"name", name}, {"relative_error", error}, {"ok", ok}});
    output.result("{:<24} {:.3e} {}\n", name, error, ok ? "ok" : "FAIL");
  }
  const auto count = static_cast<std::int64_t>(outputs.size());
  output.object({{"compared", count}, {"failed", failed}, {"tolerance", bound}});
  output.result("{} of {} within {:.1e}\n", count - failed, count, bound);
  return failed == 0 ? 0 : 1;
}

}  // namespace

Command add_check(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("check", "Run compiled math and compare it with float64's");
  auto c = std::make_shared<CheckCommand>();
  c->block.sizes.d_model = 128;
  c->block.sizes.head_dim = 32;
  c->block.sizes.vocab = 500;
  c->block.tokens = 70;
  c->block.add_options(*sub);
  sub->get_option("block")->required(false);
  sub->add_option("--filter", c->filter,
                  "Without a block: only cases whose name holds this, such as op/exp or operator/")
      ->group("Cases");
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
      "Without a block: every op, every operator, attention and embedding, forward and backward, "
      "on tiles in memory and on a GEMM's product, in each type (or --dtype). With one: that block "
      "at "
      "the given sizes; the float64 side runs the same programs scalar by scalar, so keep them "
      "small. Exit code 1 if a result or a gradient is further off.\n"
      "Examples:\n  coda check --device cuda\n  coda check --filter op/rotate\n"
      "  coda check llama-layer\n  coda check llama-head --dtype f32 --tokens 33");
  return {sub, [c, sub] {
            c->one_type = sub->count("--dtype") > 0;
            return c->run();
          }};
}

}  // namespace coda
