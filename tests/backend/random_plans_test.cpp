// Random plans on the CPU backend against the reference backend, in fp32, bf16 and fp16.
// The reference in double gives the truth, the reference in fp32 (with the same casts) what error
// the memory types cause; the CPU backend may err a small factor more. And whatever the number of
// threads, the bits are the same.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "backend/arena.h"
#include "backend/backend.h"
#include "backend/element.h"
#include "plan/random_graph.h"

namespace coda {
namespace {

using random_graph::Built;
using reference::GraphBindings;
using reference::Matrix;

using Outputs = std::map<std::string, HostTensor>;

struct Case {
  std::shared_ptr<const Plan> plan;
  GraphBindings values;
  std::int64_t tokens = 0;
  std::string story;
};

Case make_case(std::uint64_t seed, DType dtype) {
  Built built;
  const random_graph::Sizes sizes = random_graph::build(seed, built, dtype);
  Case result;
  result.tokens = sizes.tokens;
  result.values = random_graph::values_of(built.graph, seed, sizes.tokens);
  result.story = built.story;
  for (const Tensor& parameter : random_graph::parameters(built.graph)) {
    built.request.wrt.push_back(parameter);
  }
  CompileOptions options;
  options.dtype = dtype;
  options.output_dtype = dtype;
  result.plan = compile(built.graph, built.request, options);
  return result;
}

/// Runs both phases with inputs as the plan wants them (or as doubles) and poisoned outputs.
Outputs run(const Case& c, Backend& backend, bool widen) {
  const auto session = backend.prepare(c.plan, c.tokens + 5);
  std::vector<HostTensor> inputs;
  Outputs outputs;
  for (const Buffer& buffer : c.plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const bool input = buffer.role == Role::input;
    const DType dtype = widen && is_float(buffer.dtype) ? DType::f64 : buffer.dtype;
    const Extents extents = extents_of(buffer, c.tokens);
    const Matrix* value = input ? &c.values.at(buffer.name) : nullptr;
    HostTensor tensor(dtype, input ? value->rows : extents.rows,
                      input ? value->cols : extents.cols);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const double x = input ? value->v[static_cast<std::size_t>(i)] : std::nan("");
      // Rounded as the plan's memory is, so that all backends start from the same numbers.
      tensor.set(i, is_float(dtype) ? reference::rounded(x, buffer.dtype) : x);
    }
    session->bind(buffer.name, tensor.view());
    if (input) {
      inputs.push_back(std::move(tensor));
    } else {
      outputs[buffer.name] = std::move(tensor);
    }
  }
  session->run(Phase::forward, c.tokens);
  session->run(Phase::backward, c.tokens);
  return outputs;
}

double largest_difference(const HostTensor& a, const HostTensor& b) {
  double top = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a.get(i) - b.get(i));
    if (!(difference <= top)) top = difference;  // NaN stays
  }
  return top;
}

double largest(const HostTensor& a) {
  double top = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) top = std::max(top, std::abs(a.get(i)));
  return top;
}

void compare(std::uint64_t seed, DType dtype) {
  const Case c = make_case(seed, dtype);
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(name_of(dtype)) +
               ", M = " + std::to_string(c.tokens) + "\n  " + c.story);
  const Outputs exact = run(c, *make_reference_backend(DType::f64), true);
  const Outputs rounded = run(c, *make_reference_backend(DType::f32), false);
  const Outputs one = run(c, *make_cpu_backend(1), false);
  const Outputs three = run(c, *make_cpu_backend(3), false);
  for (const auto& [name, truth] : exact) {
    // The reference accumulates in double and rounds once an operation; fp32 sums of n terms err
    // up to n / 2 eps more. 16 times its error covers n <= 130 and another order of operations;
    // n / 2 eps of numbers of order 1 is what a sum that cancels may leave.
    const double floor = 64 * std::pow(2.0, -24) * (1 + largest(truth));
    const double allowed = 16 * largest_difference(rounded.at(name), truth) + floor;
    EXPECT_LE(largest_difference(one.at(name), truth), allowed) << name;
    if (truth.size() > 0) {
      EXPECT_EQ(std::memcmp(one.at(name).view().data, three.at(name).view().data,
                            one.at(name).view().bytes()),
                0)
          << name << " depends on the number of threads";
    }
  }
}

std::uint64_t seeds() {
  const char* text = std::getenv("CODA_RANDOM_GRAPHS");
  return text == nullptr ? 30 : static_cast<std::uint64_t>(std::atoll(text));
}
std::uint64_t first_seed() {
  const char* text = std::getenv("CODA_RANDOM_GRAPHS_FIRST");
  return text == nullptr ? 0 : static_cast<std::uint64_t>(std::atoll(text));
}

TEST(RandomPlans, CpuEqualsReferenceInF32) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    compare(seed, DType::f32);
  }
}

TEST(RandomPlans, CpuEqualsReferenceInBf16) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    compare(seed, DType::bf16);
  }
}

TEST(RandomPlans, CpuEqualsReferenceInF16) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(); seed += 3) {
    compare(seed, DType::f16);
  }
}

}  // namespace
}  // namespace coda
