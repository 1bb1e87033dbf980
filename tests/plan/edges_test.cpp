// Requests at the edge: outputs twice, inputs as outputs, gradients of nothing, no rows, weights
// used twice, accumulation, memory types, and what compile refuses.
#include <gtest/gtest.h>

#include "coda/error.h"
#include "plan/blocks.h"
#include "plan/execute.h"

namespace coda::blocks {
namespace {

TEST(Edges, OutputsThatAreInputsTwinsOrConstants) {
  const Build build = [](Graph& g) {
    Tensor x = g.tile("x", 6), w = g.weight("w", 4, 6), r = g.row("r", 6), c = g.col("c");
    Tensor y = matmul_nt(x, w);
    Tensor z = cat_cols({y, x});
    CompileRequest request;
    request.outputs = {{"y", y, {}},
                       {"again", y, {}},
                       {"copy", x, {}},
                       {"both", z, {}},
                       {"part", cols(x, 1, 3), {}},
                       {"slice", cols(y, 1, 3), {}},
                       {"row", r * r, {}},
                       {"row_copy", r, {}},
                       {"col", c, {}},
                       {"sum", sum(row_sum(y)) + sum(r), {}},
                       {"seven", g.constant(7), {}}};
    return request;
  };
  for (const bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    for (const std::int64_t tokens : {0, 1, 5}) expect_plan_equals_math(build, options, tokens);
  }
}

TEST(Edges, AnInputThatNothingDependsOnHasGradientZero) {
  const Build build = [](Graph& g) {
    Tensor x = g.tile("x", 6), w = g.weight("w", 4, 6);
    CompileRequest request;
    request.outputs = {{"y", matmul_nt(x, w), g.tile("d_y", 4)}};
    request.wrt = {
        x, w, g.tile("t", 3), g.weight("v", 5, 2), g.row("r", 7), g.col("c"), g.scalar("s")};
    return request;
  };
  expect_plan_equals_math(build, {}, 5);
}

TEST(Edges, GradientsThatAreTheCotangentItself) {
  const Build build = [](Graph& g) {
    Tensor a = g.tile("a", 6), b = g.tile("b", 6), s = g.scalar("s");
    CompileRequest request;
    request.outputs = {{"y", a + b * s, g.tile("d_y", 6)}};
    request.wrt = {a, b, s};
    return request;
  };
  for (const std::int64_t tokens : {0, 1, 6}) expect_plan_equals_math(build, {}, tokens);
}

TEST(Edges, AWeightUsedTwiceAndOutputsUnstored) {
  const Build build = [](Graph& g) {
    Tensor x = g.tile("x", 8), w = g.weight("w", 8, 8), v = g.weight("v", 3, 8);
    Tensor y = tanh(matmul_nt(tanh(matmul_nt(x, w)), w));
    CompileRequest request;
    request.outputs = {{"y", y, g.tile("d_y", 8)},
                       {"hidden", matmul_nt(y, v), g.tile("d_hidden", 3), false}};
    request.wrt = {x, w, v};
    return request;
  };
  for (const bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    expect_plan_equals_math(build, options, 8);
  }
}

/// Rows 2 to 5 by one product, 5 to 8 by two, 1 to 3 of another weight beside all of it, and a
/// weight made of blocks as an output.
TEST(Edges, RowsOfAWeightUsedApart) {
  const Build build = [](Graph& g) {
    Tensor x = g.tile("x", 4), y = g.tile("y", 4), w = g.weight("w", 9, 4), v = g.weight("v", 4, 4);
    CompileRequest request;
    request.outputs = {{"a", matmul_nt(x, rows(w, 2, 5)), g.tile("d_a", 3)},
                       {"b", tanh(matmul_nt(x, rows(w, 5, 8))), g.tile("d_b", 3)},
                       {"c", matmul_nt(y, rows(w, 5, 8)), g.tile("d_c", 3)},
                       {"d", matmul_nt(matmul_nt(y, v), rows(v, 1, 3)), g.tile("d_d", 2)},
                       {"blocks", cat_rows({v, rows(w, 1, 4) * 2.0}), {}}};
    request.wrt = {x, y, w, v};
    return request;
  };
  for (const bool fuse : {true, false})
    for (const bool accumulate : {true, false}) {
      CompileOptions options;
      options.fuse = fuse;
      options.accumulate_weight_grads = accumulate;
      for (const std::int64_t tokens : {0, 1, 5}) expect_plan_equals_math(build, options, tokens);
    }
}

TEST(Edges, BlocksRunOnNoRowsAndOneRow) {
  for (const auto build : {llama_layer, parallel_block})
    for (const std::int64_t tokens : {0, 1})
      expect_plan_equals_math([&](Graph& g) { return build(g, Sizes{}); }, {}, tokens);
}

TEST(Edges, ASliceOfAnOpaqueResultIsOutputAndOperand) {
  const Build build = [](Graph& g) {
    Tensor q = g.tile("q", 8), k = g.tile("k", 8), v = g.tile("v", 8), w = g.weight("w", 3, 4);
    Tensor o = attention(q, k, v, g.list("cu_seqlens"), 2, 2, 4, 0.5);
    Tensor part = cols(o, 4, 8);
    CompileRequest request;
    request.outputs = {{"part", part, {}}, {"y", matmul_nt(part, w), g.tile("d_y", 3)}};
    request.wrt = {q, v, w};
    return request;
  };
  for (const bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    expect_plan_equals_math(build, options, 9);
  }
}

TEST(Edges, WeightGradientsAccumulate) {
  CompileOptions options;
  options.accumulate_weight_grads = true;
  const auto plan =
      expect_plan_equals_math([](Graph& g) { return model(g, Sizes{}, 1, true); }, options, 24);
  int accumulated = 0;
  for (const Step& step : plan->backward)
    if (step.program)
      for (const Operand& operand : step.program->operands) accumulated += operand.accumulate;
  Graph graph;
  EXPECT_EQ(accumulated, static_cast<int>(model(graph, Sizes{}, 1, true).wrt.size()));
}

TEST(Edges, AnOutputOfAnotherTypeIsStoredBesideWhatProgramsRead) {
  CompileOptions options;
  options.dtype = DType::bf16;
  options.output_dtype = DType::f32;
  const auto plan = expect_plan_equals_math(
      [](Graph& g) { return llama_layer(g, {.tile = DType::bf16}); }, options, 24);
  for (const auto* steps : {&plan->forward, &plan->backward})
    for (const Step& step : *steps) {
      if (!step.program || step.program->form != Form::gemm) continue;
      const auto dtype = [&](std::int32_t i) {
        return step.program->operands[static_cast<std::size_t>(i)].dtype;
      };
      EXPECT_EQ(dtype(step.program->gemm.a), DType::bf16) << step.program->name;
      EXPECT_EQ(dtype(step.program->gemm.b[0]), DType::bf16) << step.program->name;
    }
}

/// Runs in fp32 with casts obeyed; outputs by name.
std::map<std::string, std::vector<double>> run_rounded(const Build& build,
                                                       const CompileOptions& options,
                                                       std::int64_t tokens) {
  Graph graph;
  const CompileRequest request = build(graph);
  const auto inputs = inputs_of(graph, tokens);
  const auto plan = compile(graph, request, options);
  const auto session = make_reference_backend(DType::f32)->prepare(plan, tokens);
  std::map<std::string, HostTensor> memory;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    HostTensor tensor(buffer.dtype, buffer.rows == kTokens ? tokens : buffer.rows, buffer.cols);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, buffer.role == Role::input
                        ? inputs.at(buffer.name).v[static_cast<std::size_t>(i)]
                        : std::nan(""));
    session->bind(buffer.name, tensor.view());
    memory.emplace(buffer.name, std::move(tensor));
  }
  session->run(Phase::forward, tokens);
  session->run(Phase::backward, tokens);
  std::map<std::string, std::vector<double>> outputs;
  for (const auto& [name, tensor] : memory) {
    if (plan->buffers[static_cast<std::size_t>(plan->find_buffer(name))].role != Role::output)
      continue;
    for (std::int64_t i = 0; i < tensor.size(); ++i) outputs[name].push_back(tensor.get(i));
  }
  return outputs;
}

// A value stored in 16 bits is rounded where it is made and nowhere else, so it does not matter
// whether backward reads it or computes it again.
TEST(Edges, RecomputedValuesAreTheStoredOnesBitForBit) {
  CompileOptions saved, again;
  saved.dtype = again.dtype = DType::bf16;
  saved.output_dtype = again.output_dtype = DType::bf16;
  again.held_price = 4;
  for (const auto block : {llama_layer, parallel_block, head}) {
    const Build build = [&](Graph& g) {
      return block(g, {.d = 40, .f = 33, .head = 10, .kv = 20, .tile = DType::bf16});
    };
    const auto a = run_rounded(build, saved, 24), b = run_rounded(build, again, 24);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, values] : a)
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], b.at(name)[i]) << name << " " << i;
  }
}

std::string refusal(const std::function<void(Graph&, CompileRequest&)>& edit,
                    const CompileOptions& options = {}) {
  Graph graph;
  CompileRequest request = llama_layer(graph, Sizes{});
  edit(graph, request);
  try {
    compile(graph, request, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

/// x + swiglu(rms_norm(x)) four times.
CompileRequest four_layers(Graph& g) {
  const Sizes s;
  Tensor x = g.tile("x", s.d);
  CompileRequest request;
  for (int i = 0; i < 4; ++i) {
    const auto weight = [&](const char* name, std::int64_t rows, std::int64_t cols) {
      request.wrt.push_back(g.weight(name + std::to_string(i), rows, cols));
      return request.wrt.back();
    };
    request.wrt.push_back(g.row("norm" + std::to_string(i), s.d));
    const Tensor h = rms_norm(x, request.wrt.back());
    const Tensor gate = matmul_nt(h, weight("gate", s.f, s.d));
    const Tensor up = matmul_nt(h, weight("up", s.f, s.d));
    x = x + matmul_nt(silu(gate) * up, weight("down", s.d, s.f));
  }
  request.outputs = {{"y", x, g.tile("d_y", s.d)}};
  return request;
}

TEST(Edges, ProductsRunAgainRightBeforeTheyAreNeeded) {
  CompileOptions options;
  options.held_price = 30;
  const auto held = expect_plan_equals_math(four_layers, options, 24);
  options.recompute_products = true;
  const auto plan = expect_plan_equals_math(four_layers, options, 24);
  const Sizes s;
  const double gate_and_up = 2.0 * 24 * static_cast<double>(s.f) * 4;  // of a layer, f32
  EXPECT_LE(saved_bytes(*plan, 24), saved_bytes(*held, 24) - 3 * gate_and_up);
  int again = 0;
  const auto forward = static_cast<std::int32_t>(plan->forward.size());
  for (std::size_t i = 0; i < plan->backward.size(); ++i) {
    const Step& step = plan->backward[i];
    const bool product = step.program && step.program->form == Form::gemm &&
                         !step.program->gemm.transpose_a && step.program->gemm.transpose_b;
    if (!product) continue;
    ++again;
    const auto touches = [&](const Step& other, const Slice& slice) {
      return std::any_of(other.slices.begin(), other.slices.end(),
                         [&](const Slice& s) { return s.buffer == slice.buffer; });
    };
    bool next = false;
    for (std::size_t j = 0; j < step.slices.size(); ++j)
      if (step.program->operands[j].output)
        next = next || touches(plan->backward.at(i + 1), step.slices[j]);
    EXPECT_TRUE(next) << step.program->name;
    for (const Slice& slice : step.slices) {
      const Buffer& buffer = plan->buffers[static_cast<std::size_t>(slice.buffer)];
      if (buffer.role != Role::scratch) continue;
      EXPECT_GE(buffer.first_step, forward) << buffer.name;
      EXPECT_LE(buffer.last_step - buffer.first_step, 6) << buffer.name;
    }
  }
  EXPECT_EQ(again, 4);
}

TEST(Edges, RefusesRequestsThatMakeNoSense) {
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal([](Graph& g, CompileRequest& r) { r.outputs[0].cotangent = g.tile("c", 3); }),
           "cotangent of its type, tile [M, 64], got tile [M, 3]");
  contains(refusal([](Graph&, CompileRequest& r) { r.wrt.push_back(r.outputs[0].value); }),
           "expected inputs of this graph");
  contains(refusal([](Graph&, CompileRequest& r) { r.wrt.push_back(r.wrt[0]); }), "y0 twice");
  contains(refusal([](Graph&, CompileRequest& r) { r.outputs[1].name = "x2"; }), "x2 twice");
  contains(refusal([](Graph&, CompileRequest& r) { r.outputs[0].name = "x0"; }), "no input's name");
  contains(refusal([](Graph&, CompileRequest& r) {
             for (Output& output : r.outputs) output.cotangent = {};
           }),
           "expected a cotangent");
  contains(refusal([](Graph& g, CompileRequest& r) { r.wrt.push_back(g.col("pos", DType::i32)); }),
           "expected an input of floats");
  CompileOptions options;
  options.dtype = DType::i32;
  contains(refusal([](Graph&, CompileRequest&) {}, options), "expected f32, bf16 or f16");
  options.dtype = DType::f32;
  options.weight_grad_dtype = DType::bf16;
  options.accumulate_weight_grads = true;
  contains(refusal([](Graph&, CompileRequest&) {}, options), "accumulated");
  options.weight_grad_dtype = DType::f32;
  options.own_weight_grads = true;
  contains(refusal([](Graph&, CompileRequest&) {}, options), "own_weight_grads");
}

}  // namespace
}  // namespace coda::blocks
