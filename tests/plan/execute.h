// Runs a compiled block on the reference backend in double and compares every output and gradient
// with the math itself, evaluated node by node. Outputs are poisoned before the run.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "backend/backend.h"
#include "backend/reference/graph_evaluator.h"
#include "coda/graph.h"
#include "plan/compile.h"

namespace coda::blocks {

using Build = std::function<CompileRequest(Graph&)>;

/// A number in (-1, 1) that depends on its position only.
inline double noise(std::size_t seed, std::size_t i) {
  std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + i * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1;
}

/// Values for every input: floats are noise, targets in range with some rows ignored, positions
/// ascending, two sequences.
inline reference::GraphBindings inputs_of(const Graph& graph, std::int64_t tokens) {
  std::int64_t classes = 1;
  std::set<std::string> offsets;
  for (NodeId v = 0; v < graph.size(); ++v) {
    if (graph.node(v).op == Op::pick) classes = graph.node(v).attrs.hi;
    if (graph.node(v).op == Op::opaque && graph.node(v).attrs.opaque == Opaque::embedding)
      classes = graph.node(graph.node(v).in[0]).type.rows;
  }
  reference::GraphBindings bindings;
  for (NodeId v = 0; v < graph.size(); ++v) {
    const Node& node = graph.node(v);
    if (node.op != Op::input) continue;
    const Type& type = node.type;
    if (type.kind == Kind::list) {
      reference::Matrix list(1, 3);
      list.v = {0, static_cast<double>(tokens / 3), static_cast<double>(tokens)};
      bindings[node.name] = list;
      continue;
    }
    reference::Matrix m(type.rows == kTokens ? tokens : type.rows, type.cols);
    for (std::size_t i = 0; i < m.v.size(); ++i) {
      const double x = noise(std::hash<std::string>()(node.name), i);
      if (is_float(type.dtype))
        m.v[i] = node.name == "freq" ? (i < m.v.size() / 2 ? std::abs(x) : x * 1e-8) : x;
      else if (node.name == "pos")
        m.v[i] = static_cast<double>(i);
      else
        m.v[i] = i % 5 == 3 && node.name == "targets"
                     ? -100
                     : std::floor(std::abs(x) * static_cast<double>(classes));
    }
    bindings[node.name] = std::move(m);
  }
  return bindings;
}

/// What the math gives for outputs and gradients, by name.
inline std::map<std::string, reference::Matrix> oracle(const Build& build, std::int64_t tokens,
                                                       const reference::GraphBindings& inputs) {
  Graph graph;
  const CompileRequest request = build(graph);
  std::vector<Tensor> roots;
  std::vector<std::string> names;
  std::vector<Seed> seeds;
  for (const Output& output : request.outputs) {
    if (output.cotangent) seeds.push_back({output.value, output.cotangent});
    if (!output.store) continue;
    roots.push_back(output.value);
    names.push_back(output.name);
  }
  std::map<std::string, reference::Matrix> result;
  if (!request.wrt.empty()) {
    const std::vector<Tensor> found = gradients(seeds, request.wrt);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Node& input = graph.node(request.wrt[i].id());
      if (found[i]) {
        roots.push_back(found[i]);
        names.push_back("d_" + input.name);
      } else {
        result["d_" + input.name] = reference::Matrix(
            input.type.rows == kTokens ? tokens : input.type.rows, input.type.cols);
      }
    }
  }
  const auto values = reference::evaluate(graph, roots, inputs, tokens);
  for (std::size_t i = 0; i < values.size(); ++i) result[names[i]] = values[i];
  return result;
}

/// What an output that is added to holds before the run.
inline constexpr double kBefore = 2;

inline bool accumulates(const Plan& plan, const std::string& output) {
  for (const Step& step : plan.backward)
    for (std::size_t i = 0; step.program && i < step.slices.size(); ++i)
      if (step.program->operands[i].output &&
          plan.buffers[static_cast<std::size_t>(step.slices[i].buffer)].name == output)
        return step.program->operands[i].accumulate;
  return false;
}

/// Compiles, runs in double, and expects every output within `tolerance` of the oracle, relative to
/// the largest entry of that output. Returns the plan.
inline std::shared_ptr<const Plan> expect_plan_equals_math(const Build& build,
                                                           const CompileOptions& options,
                                                           std::int64_t tokens,
                                                           double tolerance = 1e-9) {
  Graph graph;
  const CompileRequest request = build(graph);
  const reference::GraphBindings inputs = inputs_of(graph, tokens);
  const auto expected = oracle(build, tokens, inputs);
  const std::shared_ptr<const Plan> plan = compile(graph, request, options);
  const auto session = make_reference_backend(DType::f64)->prepare(plan, tokens + 3);
  std::map<std::string, HostTensor> memory;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const bool list = buffer.kind == Kind::list;
    const std::int64_t rows = list ? 1 : buffer.rows == kTokens ? tokens : buffer.rows;
    const std::int64_t cols = list ? 3 : buffer.cols;
    HostTensor tensor(is_float(buffer.dtype) ? DType::f64 : buffer.dtype, rows, cols);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      if (buffer.role == Role::input)
        tensor.set(i, inputs.at(buffer.name).v[static_cast<std::size_t>(i)]);
      else
        tensor.set(i, accumulates(*plan, buffer.name) ? kBefore : std::nan(""));
    session->bind(buffer.name, tensor.view());
    memory.emplace(buffer.name, std::move(tensor));
  }
  session->run(Phase::forward, tokens);
  if (!request.wrt.empty()) session->run(Phase::backward, tokens);
  for (const auto& [name, matrix] : expected) {
    const auto found = memory.find(name);
    EXPECT_NE(found, memory.end()) << name;
    if (found == memory.end()) continue;
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < matrix.v.size(); ++i) {
      const double got = found->second.get(static_cast<std::int64_t>(i)) -
                         (accumulates(*plan, name) ? kBefore : 0);
      largest = std::max(largest, std::abs(matrix.v[i]));
      if (std::isnan(got) != std::isnan(matrix.v[i])) error = INFINITY;
      if (!std::isnan(got)) error = std::max(error, std::abs(got - matrix.v[i]));
    }
    EXPECT_LE(error, tolerance * std::max(largest, 1e-3)) << name;
  }
  return plan;
}

}  // namespace coda::blocks
