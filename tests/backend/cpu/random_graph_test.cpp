// Random graphs (tests/plan/random_graph.h), compiled fused and unfused, on the CPU against the
// reference backend in double. CODA_RANDOM_GRAPHS sets how many (default 60).
#include "plan/random_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "backend/backend.h"
#include "backend/element.h"

namespace coda {
namespace {

using random_graph::Built;
using reference::Matrix;
using Results = std::map<std::string, std::vector<double>>;

/// Everything the plan writes for its user, by name.
Results run(Backend& backend, const std::shared_ptr<const Plan>& plan,
            const reference::GraphBindings& values, std::int64_t tokens) {
  const auto session = backend.prepare(plan, tokens + 3);
  std::map<std::string, HostTensor> tensors;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const bool input = buffer.role == Role::input;
    const std::int64_t rows = input                    ? values.at(buffer.name).rows
                              : buffer.rows == kTokens ? tokens
                                                       : buffer.rows;
    const std::int64_t cols = input ? values.at(buffer.name).cols : buffer.cols;
    HostTensor tensor(buffer.dtype, rows, cols);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, input ? values.at(buffer.name).v[static_cast<std::size_t>(i)] : std::nan(""));
    session->bind(buffer.name, tensor.view());
    tensors[buffer.name] = std::move(tensor);
  }
  session->run(Phase::forward, tokens);
  session->run(Phase::backward, tokens);
  Results results;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::output) continue;
    for (std::int64_t i = 0; i < tensors[buffer.name].size(); ++i)
      results[buffer.name].push_back(tensors[buffer.name].get(i));
  }
  return results;
}

/// Largest deviation from `exact` relative to exact's largest element (or 1); infinite where only
/// one of the two is a number.
double deviation(const std::vector<double>& got, const std::vector<double>& exact) {
  double largest = 1, worst = 0;
  for (const double x : exact)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isnan(exact[i]) && std::isnan(got[i])) continue;
    if (got[i] == exact[i]) continue;
    const double d = std::abs(got[i] - exact[i]) / largest;
    worst = d < HUGE_VAL ? std::max(worst, d) : HUGE_VAL;
  }
  return worst;
}

/// The CPU may deviate from double by a small multiple of what the reference backend deviates that
/// rounds every tile value to fp32: the condition of each graph is measured, not guessed. The
/// reference sums in double, so a floor of 512 roundings stands for the CPU's own sums.
void check(std::uint64_t seed, const CompileOptions& options, const char* mode) {
  Built built;
  const random_graph::Sizes sizes = random_graph::build(seed, built);
  const auto values = random_graph::values_of(built.graph, seed, sizes.tokens);
  built.request.wrt = random_graph::parameters(built.graph);
  const auto plan = compile(built.graph, built.request, options);
  const auto cpu = make_cpu_backend(2);
  const auto exact = make_reference_backend(DType::f64);
  const auto rounding = make_reference_backend(DType::f32);
  const Results want = run(*exact, plan, values, sizes.tokens);
  const Results rounded = run(*rounding, plan, values, sizes.tokens);
  const Results got = run(*cpu, plan, values, sizes.tokens);
  for (const auto& [name, x] : want) {
    const double allowed = 64 * deviation(rounded.at(name), x) + 512 * 0x1p-23;
    EXPECT_LE(deviation(got.at(name), x), allowed)
        << "seed " << seed << ", " << mode << ", M = " << sizes.tokens << ": " << name << "\n  "
        << built.story;
  }
}

TEST(CpuRandomGraph, AgreesWithTheReference) {
  const char* text = std::getenv("CODA_RANDOM_GRAPHS");
  const std::uint64_t count = text ? std::strtoull(text, nullptr, 10) : 60;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    for (const auto& [mode, options] :
         {std::pair{"all passes", CompileOptions{}},
          std::pair{"held bytes priced", CompileOptions{.held_price = 1.5}},
          std::pair{"no fuse", CompileOptions{.fuse = false}}}) {
      try {
        check(seed, options, mode);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "seed " << seed << ", " << mode << ": " << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace coda
