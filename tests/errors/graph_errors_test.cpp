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
  rejects([] { Tensor().graph(); },
          {"Tensor::graph: ", "a value of a Graph", "an empty Tensor", "Make it"});
  for (const NodeId id : {kNoNode, NodeId{1}, NodeId{99}}) {
    rejects([&] { g.at(id); }, {"Graph::node: ", "an id in [0, 1)", std::to_string(id), "Ids are"});
    rejects([&] { g.node(id); }, {"Graph::node: ", "an id in [0, 1)", std::to_string(id), ""});
  }
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

TEST(GraphErrors, ExtentsBeyond32Bits) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  Graph g;
  rejects([&] { g.tile("x", kHuge); },
          {"input x: ", "cols >= 0 and at most 2147483647", "2147483648", "Give such a size"});
  rejects([&] { g.weight("w", kHuge, 1); }, {"input w: ", "rows >= 0", "2147483648", ""});
  const Tensor row = g.row("row", kHuge - 1), tile = g.tile("t", kHuge - 1);
  rejects([&] { repeat(row, 3); }, {"repeat: ", "a result of at most", "6442450941", "smaller"});
  rejects([&] { repeat(row, kHuge * kHuge); }, {"repeat: ", "extents of at most", "", "smaller"});
  rejects([&] { segment_broadcast(tile, 2); }, {"segment_broadcast: ", "a result of", "", ""});
  rejects([&] { segment_broadcast(tile, kHuge << 20); },
          {"segment_broadcast: ", "extents", "", ""});
  rejects([&] { cat_cols({tile, tile}); }, {"cat_cols: ", "a result of", "4294967294", ""});
  rejects(
      [&] {
        broadcast(g.scalar("s"), {Kind::tile, kTokens, kHuge, DType::f32});
      },
      {"broadcast: ", "extents of at most", "2147483648", ""});
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

TEST(BackendErrors, TypesAndSizesThatItHasNot) {
  Graph g;
  CompileRequest request;
  request.outputs.push_back({"y", exp(g.tile("x", 4, DType::f64)), {}, true});
  const auto plan = compile(g, request, {});
  const auto cpu = make_cpu_backend(1);
  rejects([&] { cpu->prepare(plan, 4); },
          {"prepare: x: ", "f32, bf16, f16, i32 or i64", "f64", "Only the reference backend"});
  make_reference_backend(DType::f32)->prepare(plan, 4);
  rejects([&] { cpu->prepare(plan, std::int64_t{1} << 31); },
          {"prepare: ", "at least 0 tokens and at most 2147483647", "2147483648", "Reserve"});
  rejects([&] { cpu->allocate(std::numeric_limits<std::size_t>::max()); },
          {"tensor: ", "extents >= 0 that fit memory", "", "Give smaller ones"});
  rejects([] { make_cpu_backend(5000); },
          {"cpu backend: ", "0 (all cores) or a number of threads up to 4096", "5000", "Give 0"});
}

TEST(GraphErrors, OperandsOfAttentionAndRope) {
  Graph g;
  const Tensor q = g.tile("q", 8), ids = g.tile("ids", 8, DType::i32), list = g.list("cu_seqlens");
  rejects([&] { attention(ids, q, q, list, 2, 2, 4, 1.0); },
          {"opaque: ", "floating-point numbers as operand 1", "tile [M, 8]", "Integers"});
  rejects([&] { attention(q, q, q, list, 2, 2, 4, std::nan("")); },
          {"attention: scale: ", "a finite number", "nan", "1 / sqrt(head_dim)"});
  rejects([&] { attention(q, q, q, list, 2, 2, 4, 1.0, {.window = -1}); },
          {"attention: window: ", "a number of keys", "-1", "0 is no window"});
  for (const double softcap : {-1.0, 1e-40, 1e40, std::nan(""), HUGE_VAL}) {
    rejects([&] { attention(q, q, q, list, 2, 2, 4, 1.0, {.softcap = softcap}); },
            {"attention: softcap: ", "a number from 1e-30 to 1e30", "", "0 is no cap"});
  }
  rejects([&] { rotate(q, g.col("p", DType::i32), g.row("f", 4, DType::i32), Pairs::halves(4)); },
          {"rotate: ", "floating-point numbers as operand 3", "tile [M, 8], col [M], row [4]",
           "Integers"});
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
  rejects([&] { t.as<float>(); },
          {"HostTensor::as: ", "a type of 2 bytes, as bf16", "one of 4", "std::uint16_t"});
  EXPECT_EQ(t.as<std::uint16_t>().size(), 6u);
  const HostTensor taken = std::move(t);
  EXPECT_TRUE(t.as<float>().empty());
  EXPECT_EQ(taken.get(5), 0);
  rejects([&] { t.get(0); }, {"HostTensor::get: ", "an index in [0, 0)", "0", ""});
  rejects([] { HostTensor(DType::f32, -1, 2); },
          {"tensor: ", "extents >= 0 that fit memory", "[-1, 2]", "Give smaller ones"});
}

}  // namespace
}  // namespace coda
