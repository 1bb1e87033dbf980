// Lesson 1: an epilogue written by hand, printed, checked and run.
//
// A Program is one matrix product and what is done to each of its tiles before it leaves the
// registers. Here: y = silu(rstd * (x w^T)) with one rstd a token.
#include <fmt/core.h>

#include <cmath>

#include "coda/backend.h"
#include "coda/program_builder.h"

using namespace coda;

namespace {

constexpr std::int64_t kDepth = 4, kWidth = 6, kRows = 3;

Program scaled_silu() {
  ProgramBuilder b("scaled_silu");
  b.gemm_nt("x", kDepth, {"w"}, {kWidth}, DType::f32);  // acc = x w^T
  ColVec rstd = b.load_col("rstd", DType::f32);         // [M], one a token
  Tile scaled = b.acc() * rstd;                         // broadcasts along each row
  b.store_tile("y", silu(scaled), DType::f32);
  return b.build();  // throws ProgramError if ill-formed
}

/// A plan of one step. Usually the compiler makes plans (lesson 2).
std::shared_ptr<const Plan> plan_of(Program program) {
  auto plan = std::make_shared<Plan>();
  Step step;
  for (const Operand& operand : program.operands) {
    const auto extent = [](Dim dim) { return dim.symbol == Dim::Symbol::M ? kTokens : dim.num; };
    Buffer buffer;
    buffer.name = operand.name;
    buffer.role = operand.output ? Role::output : Role::input;
    buffer.kind = operand.kind;
    buffer.dtype = operand.dtype;
    buffer.rows = extent(operand.rows);
    buffer.cols = extent(operand.cols);
    const auto index = static_cast<std::int32_t>(plan->buffers.size());
    step.slices.push_back({index, 0, 0, buffer.rows, buffer.cols});
    plan->buffers.push_back(buffer);
  }
  step.program = std::make_shared<const Program>(std::move(program));
  plan->forward.push_back(step);
  return plan;
}

}  // namespace

int main() {
  const Program program = scaled_silu();
  fmt::print("{}", to_string(program));

  const HostTensor x(DType::f32, kRows, kDepth), w(DType::f32, kWidth, kDepth),
      rstd(DType::f32, kRows, 1), y(DType::f32, kRows, kWidth);
  for (float& value : x.as<float>()) value = 1;
  for (float& value : w.as<float>()) value = 0.5f;
  for (float& value : rstd.as<float>()) value = 0.25f;

  const auto session = make_reference_backend(DType::f32)->prepare(plan_of(program), kRows);
  session->bind("x", x.view());
  session->bind("w", w.view());
  session->bind("rstd", rstd.view());
  session->bind("y", y.view());
  session->run(Phase::forward, kRows);

  // Every element is silu(0.25 * 4 * 0.5) = 0.5 / (1 + exp(-0.5)).
  const double expected = 0.5 / (1 + std::exp(-0.5));
  fmt::print("y[0][0] = {:.7f}, expected {:.7f}\n", y.get(0), expected);
  for (std::int64_t i = 0; i < y.size(); ++i) {
    if (!(std::abs(y.get(i) - expected) < 1e-7)) return 1;
  }
  return 0;
}
