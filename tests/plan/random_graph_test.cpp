// Random graphs, each compiled in many modes, run program by program on the reference backend in
// double, and compared with the same math evaluated node by node; the derivatives themselves are
// compared with finite differences. CODA_RANDOM_GRAPHS sets how many graphs (default 60),
// CODA_RANDOM_GRAPHS_FIRST the first seed.
#include "plan/random_graph.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "backend/backend.h"
#include "backend/element.h"

namespace coda {
namespace {

using random_graph::Built;
using reference::GraphBindings;
using reference::Matrix;

/// Values are of order 1 and pass through at most some hundred operations on doubles, with
/// amplification by norms of at most 10 each (eps = 0.01): far below this when right.
constexpr double kTolerance = 1e-9;

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Mode {
  const char* name;
  CompileOptions options;
};

std::vector<Mode> modes() {
  std::vector<Mode> all(14);
  all[0].name = "all passes";
  all[1] = {"held bytes priced", {.held_price = 1.5}};
  all[2] = {"no fuse", {.fuse = false}};
  all[3] = {"no defer", {.defer = false}};
  all[4] = {"no merge", {.merge = false}};
  all[5] = {"no recover", {.recover = false}};
  all[6] = {"no search", {.search = false}};
  all[7] = {"no pass at all",
            {.defer = false, .merge = false, .recover = false, .fuse = false, .search = false}};
  all[8] = {"16-bit tiles", {.dtype = DType::bf16}};
  all[9] = {"no defer, no merge, held bytes priced",
            {.defer = false, .merge = false, .held_price = 1.5}};
  all[10] = {"products run again", {.held_price = 1000, .recompute_products = true}};
  all[11] = {"gradients are the plan's", {.own_weight_grads = true, .held_price = 1.5}};
  all[12] = {"in pieces", {.pieces = 3}};
  all[13] = {"in pieces, gradients the plan's, held bytes priced",
             {.own_weight_grads = true, .held_price = 1.5, .pieces = 2}};
  return all;
}

double largest(const Matrix& m) {
  double top = 0;
  for (const double x : m.v) top = std::max(top, std::abs(x));
  return top;
}

/// A description of the first element that is wrong, or "".
std::string difference(const TensorView& got, const Matrix& want, double tolerance) {
  const double allowed = tolerance * (1 + largest(want));
  for (std::int64_t r = 0; r < want.rows; ++r) {
    for (std::int64_t c = 0; c < want.cols; ++c) {
      const double value = read_element(got, r, c);
      if (!(std::abs(value - want.at(r, c)) <= allowed)) {
        return "[" + std::to_string(r) + ", " + std::to_string(c) + "] is " +
               std::to_string(value) + ", expected " + std::to_string(want.at(r, c)) + " within " +
               std::to_string(allowed);
      }
    }
  }
  return "";
}

HostTensor tensor_of(const Matrix& m, DType dtype) {
  HostTensor tensor(dtype, m.rows, m.cols);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    tensor.set(i, m.v[static_cast<std::size_t>(i)]);
  }
  return tensor;
}

/// What outputs and gradients should be, by name.
struct Expected {
  std::map<std::string, Matrix> values;
  std::vector<std::string> parameters;  ///< inputs that some output depends on
};

Expected expected_of(std::uint64_t seed) {
  Built built;
  const random_graph::Sizes sizes = random_graph::build(seed, built);
  const GraphBindings bindings = random_graph::values_of(built.graph, seed, sizes.tokens);
  const std::vector<Tensor> wrt = random_graph::parameters(built.graph);
  std::vector<Seed> seeds;
  std::vector<Tensor> roots;
  std::vector<std::string> names;
  for (const Output& output : built.request.outputs) {
    seeds.push_back({output.value, output.cotangent});
    roots.push_back(output.value);
    names.push_back(output.name);
  }
  const std::vector<Tensor> grads = gradients(seeds, wrt);
  Expected expected;
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    if (!grads[i]) continue;
    const std::string& name = built.graph.node(wrt[i].id()).name;
    expected.parameters.push_back(name);
    roots.push_back(grads[i]);
    names.push_back("d_" + name);
  }
  const std::vector<Matrix> values =
      reference::evaluate(built.graph, roots, bindings, sizes.tokens);
  for (std::size_t i = 0; i < names.size(); ++i) expected.values[names[i]] = values[i];
  return expected;
}

/// Compiles the graph of a seed for the named gradients, runs both phases, and compares all that
/// the plan writes. Returns what is wrong, or "".
std::string run_and_compare(std::uint64_t seed, const Mode& mode,
                            const std::vector<std::string>& wrt, const Expected& expected) {
  Built built;
  const random_graph::Sizes sizes = random_graph::build(seed, built);
  const GraphBindings values = random_graph::values_of(built.graph, seed, sizes.tokens);
  for (const std::string& name : wrt) {
    built.request.wrt.push_back(built.graph.at(built.graph.find_input(name)));
  }
  const std::shared_ptr<const Plan> plan = compile(built.graph, built.request, mode.options);
  const auto session = make_reference_backend(DType::f64)->prepare(plan, sizes.tokens + 3);

  std::map<std::string, HostTensor> inputs, before, outputs;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role == Role::input) {
      const DType dtype = is_float(buffer.dtype) ? DType::f64 : buffer.dtype;
      inputs[buffer.name] = tensor_of(values.at(buffer.name), dtype);
      before[buffer.name] = tensor_of(values.at(buffer.name), dtype);
      session->bind(buffer.name, inputs[buffer.name].view());
    } else if (buffer.role == Role::output) {
      const auto want = expected.values.find(buffer.name);
      if (want == expected.values.end()) return "an output nobody asked for: " + buffer.name;
      Matrix poison = want->second;
      for (double& x : poison.v) x = std::nan("");
      outputs[buffer.name] = tensor_of(poison, DType::f64);
      session->bind(buffer.name, outputs[buffer.name].view());
    }
  }
  session->run(Phase::forward, sizes.tokens);
  session->run(Phase::backward, sizes.tokens);

  std::vector<std::string> wanted;
  for (const Output& output : built.request.outputs) wanted.push_back(output.name);
  for (const std::string& name : wrt) wanted.push_back("d_" + name);
  for (const std::string& name : wanted) {
    const std::int32_t buffer = plan->find_buffer(name);
    if (buffer < 0) return "no output " + name;
    const bool result = plan->buffers[static_cast<std::size_t>(buffer)].role == Role::result;
    const std::string wrong = difference(result ? session->buffer(name) : outputs.at(name).view(),
                                         expected.values.at(name), kTolerance);
    if (!wrong.empty()) return name + wrong;
  }
  for (const auto& [name, tensor] : inputs) {
    if (tensor.size() > 0 &&
        std::memcmp(tensor.view().data, before.at(name).view().data, tensor.view().bytes()) != 0) {
      return "input " + name + " was written";
    }
  }
  return "";
}

void check(std::uint64_t seed, const Mode& mode, const std::vector<std::string>& wrt,
           const Expected& expected) {
  std::string wrong;
  try {
    wrong = run_and_compare(seed, mode, wrt, expected);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  if (wrong.empty()) return;
  Built built;
  const random_graph::Sizes sizes = random_graph::build(seed, built);
  std::string gradients;
  for (const std::string& name : wrt) gradients += " " + name;
  ADD_FAILURE() << "seed " << seed << ", " << mode.name << ", M = " << sizes.tokens
                << ", gradients of:" << gradients << "\n  " << built.story << "\n  " << wrong;
}

struct Seeds {
  std::uint64_t first, last;
};
Seeds seeds(std::int64_t default_count) {
  const std::int64_t first = from_environment("CODA_RANDOM_GRAPHS_FIRST", 0);
  const std::int64_t count = from_environment("CODA_RANDOM_GRAPHS", default_count);
  return {static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(first + count)};
}

TEST(RandomGraph, EveryModeEqualsTheUnfusedGraph) {
  const Seeds range = seeds(60);
  for (std::uint64_t seed = range.first; seed < range.last; ++seed) {
    const Expected expected = expected_of(seed);
    for (const Mode& mode : modes()) check(seed, mode, expected.parameters, expected);
  }
}

TEST(RandomGraph, EachGradientAloneEachLeftOutAndNone) {
  const Seeds range = seeds(60);
  const Mode all = modes()[0];
  for (std::uint64_t seed = range.first; seed < range.last; seed += 5) {
    const Expected expected = expected_of(seed);
    check(seed, all, {}, expected);
    for (const std::string& name : expected.parameters) {
      check(seed, all, {name}, expected);
      std::vector<std::string> others;
      for (const std::string& other : expected.parameters) {
        if (other != name) others.push_back(other);
      }
      check(seed, all, others, expected);
    }
  }
}

TEST(RandomGraph, EveryProgramIsReadBackFromItsText) {
  const Seeds range = seeds(60);
  for (std::uint64_t seed = range.first; seed < range.last; ++seed) {
    Built built;
    random_graph::build(seed, built);
    built.request.wrt = random_graph::parameters(built.graph);
    const std::shared_ptr<const Plan> plan = compile(built.graph, built.request, {});
    for (const auto* steps : {&plan->forward, &plan->backward}) {
      for (const Step& step : *steps) {
        if (!step.program) continue;
        const std::string text = to_string(*step.program);
        std::string again;
        EXPECT_NO_THROW(again = to_string(parse_program(text))) << text;
        EXPECT_EQ(again, text);
      }
    }
  }
}

TEST(RandomGraph, GradientsMatchFiniteDifferences) {
  const Seeds range = seeds(60);
  for (std::uint64_t seed = range.first; seed < range.last; ++seed) {
    Built built;
    const random_graph::Sizes sizes = random_graph::build(seed, built);
    const GraphBindings values = random_graph::values_of(built.graph, seed, sizes.tokens);
    const Expected expected = expected_of(seed);
    std::vector<Tensor> roots;
    for (const Output& output : built.request.outputs) roots.push_back(output.value);
    // sum of <output, cotangent>, the function whose gradients the plans compute
    const auto objective = [&](const GraphBindings& at) {
      const std::vector<Matrix> outputs = reference::evaluate(built.graph, roots, at, sizes.tokens);
      double total = 0;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto cotangent = at.find("cot" + std::to_string(i));  // none: the constant 1
        for (std::size_t j = 0; j < outputs[i].v.size(); ++j) {
          total += outputs[i].v[j] * (cotangent == at.end() ? 1 : cotangent->second.v[j]);
        }
      }
      return total;
    };
    for (const std::string& name : expected.parameters) {
      const Matrix& gradient = expected.values.at("d_" + name);
      std::mt19937_64 random(seed);
      std::normal_distribution<double> normal;
      Matrix direction = gradient;
      for (double& x : direction.v) x = normal(random);
      double slope = 0, magnitude = 0;
      for (std::size_t i = 0; i < gradient.v.size(); ++i) {
        slope += gradient.v[i] * direction.v[i];
        magnitude += std::abs(gradient.v[i] * direction.v[i]);
      }
      // Central differences at h and h/2, extrapolated: the error of order h^2 cancels, and what
      // remains is h^4 times a fifth derivative, beside rounding of size 1e-16 |f| / h.
      const double h = 1e-3 / std::sqrt(1 + static_cast<double>(direction.v.size()));
      const auto central = [&](double step) {
        GraphBindings moved = values;
        const auto shift = [&](double by) {
          Matrix& m = moved.at(name);
          for (std::size_t i = 0; i < m.v.size(); ++i) {
            m.v[i] = values.at(name).v[i] + by * direction.v[i];
          }
          return objective(moved);
        };
        return (shift(step) - shift(-step)) / (2 * step);
      };
      const auto extrapolated = [&](double step) {
        return (4 * central(step / 2) - central(step)) / 3;
      };
      const double measured = extrapolated(h / 2);
      // What halving the step changes bounds what is left of the higher orders: chains of norms of
      // single columns are strongly curved.
      const double allowed = 1e-6 * (1 + magnitude) + std::abs(measured - extrapolated(h));
      EXPECT_NEAR(measured, slope, allowed)
          << "seed " << seed << ", d_" << name << ", M = " << sizes.tokens << "\n  " << built.story;
    }
  }
}

}  // namespace
}  // namespace coda
