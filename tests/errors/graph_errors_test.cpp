// Mistakes with graphs, tensors and options of the compiler, before anything runs.
#include <cmath>
#include <limits>
#include <utility>

#include "backend/backend.h"
#include "coda/compile.h"
#include "coda/graph.h"
#include "coda/tensor.h"
#include "errors/expect_error.h"

namespace coda {
namespace {

template <class F>
void rejects(F mistake, const Message& message) {
  expect_error<UsageError>(mistake, message);
}

TEST(GraphErrors, EmptyTensors) {
  Graph g;
  const Tensor x = g.tile("x", 4);
  rejects([] { Tensor().type(); },
          {"Tensor::type: ", "a value of a Graph", "an empty Tensor", "Make it"});
  rejects([] { exp(Tensor()); }, {"exp: ", "a value of a Graph", "an empty Tensor", "Make it"});
  rejects([&] { g.named(Tensor(), "y"); },
          {"Graph::named: y: ", "a Tensor of this Graph", "an empty one", "where it was made"});
  rejects(
      [&] {
        gradients({{x, Tensor()}}, {x});
      },
      {"gradients: ", "a value and its cotangent", "an empty Tensor", "Make all of them"});
  rejects(
      [&] {
        gradients({{x, x}}, {x, Tensor()});
      },
      {"gradients: wrt: ", "Tensors of one Graph", "an empty one", "Make all of them"});
}

TEST(GraphErrors, TensorsOfAnotherGraph) {
  Graph g, other;
  const Tensor x = g.tile("x", 4);
  for (int i = 0; i < 9; ++i) other.tile("t" + std::to_string(i), 4);
  const Tensor foreign = other.tile("x", 4);  // its id is beyond those of g
  rejects([&] { g.named(foreign, "y"); },
          {"Graph::named: y: ", "a Tensor of this Graph", "one of another", "where it was made"});
  rejects([&] { to_string(g, {foreign}); },
          {"to_string: ", "roots of the graph", "one of another Graph", "Print the graph"});
  rejects(
      [&] {
        gradients({{x, foreign}}, {x});
      },
      {"gradients: ", "a value and its cotangent", "one of another Graph", "Make all of them"});
  rejects(
      [&] {
        gradients({{x, x}}, {x, foreign});
      },
      {"gradients: wrt: ", "Tensors of one Graph", "those of two", "Make all of them"});
  CompileRequest request;
  request.outputs.push_back({"y", exp(x), foreign, true});
  request.wrt = {x};
  rejects([&] { compile(g, request, {}); },
          {"compile: output y: ", "a cotangent of this graph", "one of another", "Make it here"});
}

TEST(GraphErrors, HeadsThatDoNotFit) {
  Graph g;
  const Tensor q = g.tile("q", 8), list = g.list("cu_seqlens");
  for (const std::int64_t heads :
       {std::int64_t{0}, std::int64_t{-2}, (std::int64_t{1} << 32) + 2}) {
    rejects([&] { attention(q, q, q, list, heads, 2, 4, 1.0); },
            {"attention: n_heads: ", "1 to 2147483647", std::to_string(heads), "number of heads"});
    rejects([&] { attention(q, q, q, list, 2, heads, 4, 1.0); },
            {"attention: n_kv_heads: ", "1 to 2147483647", std::to_string(heads), ""});
  }
}

TEST(CompileErrors, NumbersThatMeanNothing) {
  Graph g;
  CompileRequest request;
  request.outputs.push_back({"y", exp(g.tile("x", 4)), {}, true});
  CompileOptions options;
  options.held_price = std::nan("");
  rejects(
      [&] { compile(g, request, options); },
      {"compile: held_price: ", "a finite number of 0 or more", "nan", "cheaper to read again"});
  options = {};
  options.memory_budget = -1;
  rejects([&] { compile(g, request, options); },
          {"compile: memory_budget: ", "a finite number of 0 or more", "-1", "Give bytes"});
  options.memory_budget = std::numeric_limits<double>::infinity();
  rejects([&] { compile(g, request, options); }, {"compile: memory_budget: ", "", "inf", ""});
  options = {};
  options.budget_tokens = -5;
  rejects([&] { compile(g, request, options); },
          {"compile: budget_tokens: ", "0 or more", "-5", "rows of a typical run"});
}

TEST(BackendErrors, NoPlan) {
  const auto cpu = make_cpu_backend(1), reference = make_reference_backend(DType::f32);
  for (Backend* backend : {cpu.get(), reference.get()}) {
    rejects([&] { backend->prepare(nullptr, 4); },
            {"prepare: ", "a plan", "null", "what compile() returned"});
  }
}

TEST(TensorErrors, ElementsThatAreNotThere) {
  HostTensor t(DType::bf16, 2, 3);
  rejects([&] { t.get(6); }, {"HostTensor::get: ", "an index in [0, 6)", "6", "r * cols + c"});
  rejects([&] { t.get(-1); }, {"HostTensor::get: ", "an index in [0, 6)", "-1", ""});
  rejects([&] { t.set(6, 1.0); }, {"HostTensor::set: ", "an index in [0, 6)", "6", ""});
  rejects([] { HostTensor().get(0); }, {"HostTensor::get: ", "an index in [0, 0)", "0", ""});
  const HostTensor taken = std::move(t);
  EXPECT_EQ(taken.get(5), 0);
  rejects([&] { t.get(0); }, {"HostTensor::get: ", "an index in [0, 0)", "0", ""});
  rejects([] { HostTensor(DType::f32, -1, 2); },
          {"tensor: ", "extents >= 0 that fit memory", "[-1, 2]", "Give smaller ones"});
}

}  // namespace
}  // namespace coda
