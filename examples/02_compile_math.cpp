// Lesson 2: math on a Graph, compiled to programs, printed and run, forward and backward.
//
// The block is a gated MLP with a pre-norm and a residual. Nothing below says what is fused or how
// the gradients are computed: the compiler derives both.
#include <fmt/core.h>

#include <cmath>
#include <map>
#include <string>

#include "coda/backend.h"
#include "coda/compile.h"
#include "coda/graph.h"

using namespace coda;

namespace {

constexpr std::int64_t kRows = 5, kModel = 8, kHidden = 12;

Tensor rms_norm(Tensor x, Tensor weight) {
  return x * rsqrt(row_sum(x * x) * (1.0 / kModel) + 1e-6) * weight;
}

Tensor silu(Tensor x) { return x * sigmoid(x); }

Tensor mlp(Graph& g) {
  Tensor x = matmul_nt(g.tile("input", kModel), g.weight("w_in", kModel, kModel));
  Tensor normed = rms_norm(x, g.row("norm", kModel));
  Tensor gate = matmul_nt(normed, g.weight("w_gate", kHidden, kModel));
  Tensor up = matmul_nt(normed, g.weight("w_up", kHidden, kModel));
  return x + matmul_nt(silu(gate) * up, g.weight("w_down", kModel, kHidden));
}

std::shared_ptr<const Plan> compile_mlp() {
  Graph g;
  CompileRequest request;
  request.outputs.push_back({"output", mlp(g), g.tile("d_output", kModel)});
  for (const char* name : {"input", "w_gate", "norm"}) {
    request.wrt.push_back(g.at(g.find_input(name)));
  }
  return compile(g, request, {});
}

/// Binds every input and output of the plan to memory of its own, inputs filled with small numbers.
std::map<std::string, HostTensor> bind_all(Session& session, const Plan& plan) {
  std::map<std::string, HostTensor> tensors;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    HostTensor tensor(buffer.dtype, buffer.rows == kTokens ? kRows : buffer.rows, buffer.cols);
    for (std::int64_t i = 0; i < tensor.size() && buffer.role == Role::input; ++i) {
      tensor.set(i, std::sin(static_cast<double>(i) + static_cast<double>(buffer.name.size())));
    }
    session.bind(buffer.name, tensor.view());
    tensors[buffer.name] = std::move(tensor);
  }
  return tensors;
}

}  // namespace

int main() {
  const std::shared_ptr<const Plan> plan = compile_mlp();
  fmt::print("{}", to_string(*plan));

  const auto session = make_reference_backend(DType::f32)->prepare(plan, kRows);
  auto tensors = bind_all(*session, *plan);
  HostTensor& input = tensors.at("input");
  const HostTensor& weights = tensors.at("d_output");  // of the sum that is differentiated
  const auto objective = [&] {
    session->run(Phase::forward, kRows);
    double total = 0;
    const HostTensor& output = tensors.at("output");
    for (std::int64_t i = 0; i < output.size(); ++i) total += output.get(i) * weights.get(i);
    return total;
  };
  objective();
  session->run(Phase::backward, kRows);
  const double gradient = tensors.at("d_input").get(0);

  // A finite difference in the first element agrees to what fp32 gives.
  const double at = input.get(0), h = 1e-2;
  input.set(0, at + h);
  const double above = objective();
  input.set(0, at - h);
  const double below = objective();
  const double measured = (above - below) / (2 * h);
  fmt::print("d_input[0][0] = {:.5f}, finite difference {:.5f}\n", gradient, measured);
  return std::abs(gradient - measured) < 1e-2 * (1 + std::abs(gradient)) ? 0 : 1;
}
