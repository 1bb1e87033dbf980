// A plan made by hand, run on the reference backend: two programs that hand a finished partial on.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "coda/program_builder.h"

namespace coda {
namespace {

constexpr std::int64_t kWidth = 96;  // two granules, the second one ragged
constexpr std::int64_t kDepth = 5;

/// x = a w^T + x0 with sums of squares, then y = x * rsqrt(mean(x^2) + eps) in a row program.
std::shared_ptr<const Plan> residual_norm_plan() {
  ProgramBuilder b("residual");
  b.gemm_nt("a", kDepth, {"w0", "w1"}, {32, 64}, DType::f32);
  Tile x = b.acc() + b.load_tile("x0", DType::f32);
  b.store_tile("x", x, DType::f32);
  b.store_partial("ss", row_sum(x * x));
  ProgramBuilder n("norm", Form::rows);
  const ColVec rstd = n.load_col(finish_rms("ss", kWidth, 1e-6));
  n.store_tile("y", n.load_tile("x", DType::f32, Dim::number(kWidth)) * rstd, DType::f32);

  auto plan = std::make_shared<Plan>();
  const auto buffer = [&](const char* name, Role role, Kind kind, std::int64_t rows,
                          std::int64_t cols) {
    Buffer made;
    made.name = name;
    made.role = role;
    made.kind = kind;
    made.rows = rows;
    made.cols = cols;
    plan->buffers.push_back(made);
  };
  buffer("a", Role::input, Kind::tile, kTokens, kDepth);
  buffer("w0", Role::input, Kind::weight, 32, kDepth);
  buffer("w1", Role::input, Kind::weight, 64, kDepth);
  buffer("x0", Role::input, Kind::tile, kTokens, kWidth);
  buffer("x", Role::scratch, Kind::tile, kTokens, kWidth);
  buffer("ss", Role::scratch, Kind::col, kTokens, 1);
  plan->buffers.back().partial = true;
  plan->buffers.back().finish = Finish::sum;
  plan->buffers.back().granules = (kWidth + kColumnGranule - 1) / kColumnGranule;
  buffer("y", Role::output, Kind::tile, kTokens, kWidth);
  for (ProgramBuilder* builder : {&b, &n}) {
    Step step;
    step.program = std::make_shared<Program>(builder->build());
    for (const Operand& operand : step.program->operands) {
      Slice slice;
      for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
        if (plan->buffers[i].name != operand.name) continue;
        slice.buffer = static_cast<std::int32_t>(i);
        slice.rows = plan->buffers[i].rows;
        slice.cols = plan->buffers[i].cols;
      }
      step.slices.push_back(slice);
    }
    plan->forward.push_back(step);
  }
  return plan;
}

struct Case {
  HostTensor a, w0, w1, x0, y;
};

Case make_case(std::int64_t tokens, DType dtype) {
  Case c{HostTensor(dtype, tokens, kDepth), HostTensor(dtype, 32, kDepth),
         HostTensor(dtype, 64, kDepth), HostTensor(dtype, tokens, kWidth),
         HostTensor(dtype, tokens, kWidth)};
  int seed = 1;
  for (HostTensor* tensor : {&c.a, &c.w0, &c.w1, &c.x0}) {
    for (std::int64_t i = 0; i < tensor->size(); ++i) {
      tensor->set(i, std::sin(static_cast<double>(i * 7 + 13 * seed)));
    }
    ++seed;
  }
  for (std::int64_t i = 0; i < c.y.size(); ++i) c.y.set(i, std::nan(""));
  return c;
}

void bind(Session& session, const Case& c) {
  session.bind("a", c.a.view());
  session.bind("w0", c.w0.view());
  session.bind("w1", c.w1.view());
  session.bind("x0", c.x0.view());
  session.bind("y", c.y.view());
}

void expect_normed(const Case& c, std::int64_t tokens, double tolerance) {
  for (std::int64_t r = 0; r < tokens; ++r) {
    std::vector<double> x;
    double squares = 0;
    for (std::int64_t n = 0; n < kWidth; ++n) {
      double value = c.x0.get(r * kWidth + n);
      const HostTensor& w = n < 32 ? c.w0 : c.w1;
      const std::int64_t row = n < 32 ? n : n - 32;
      for (std::int64_t k = 0; k < kDepth; ++k) {
        value += c.a.get(r * kDepth + k) * w.get(row * kDepth + k);
      }
      x.push_back(value);
      squares += value * value;
    }
    const double rstd = 1 / std::sqrt(squares / kWidth + 1e-6);
    for (std::int64_t n = 0; n < kWidth; ++n) {
      EXPECT_NEAR(c.y.get(r * kWidth + n), x[static_cast<std::size_t>(n)] * rstd, tolerance)
          << "row " << r << " column " << n;
    }
  }
}

TEST(ReferenceBackend, RunsAPlanInDouble) {
  const auto session = make_reference_backend(DType::f64)->prepare(residual_norm_plan(), 8);
  const Case c = make_case(7, DType::f64);
  bind(*session, c);
  session->run(Phase::forward, 7);
  // Values of magnitude up to 6, sums of 96 and 5 terms: rounding errors below 1e-13.
  expect_normed(c, 7, 1e-13);
  const TensorView ss = session->buffer("ss");
  EXPECT_EQ(ss.rows, 2);
  EXPECT_EQ(ss.cols, 7);
  EXPECT_EQ(ss.dtype, DType::f64);
}

TEST(ReferenceBackend, RunsAPlanInFloatWithFewerRowsThanReserved) {
  const auto session = make_reference_backend(DType::f32)->prepare(residual_norm_plan(), 300);
  for (const std::int64_t tokens : {1, 130, 96, 0}) {
    const Case c = make_case(tokens, DType::f32);
    bind(*session, c);
    session->run(Phase::forward, tokens);
    // |y| <= 10 after four roundings of 2^-24 relative error each.
    expect_normed(c, tokens, 10 * 4 * std::pow(2.0, -24));
  }
}

TEST(ReferenceBackend, LeavesRowsBeyondTheRunAlone) {
  const auto session = make_reference_backend(DType::f64)->prepare(residual_norm_plan(), 8);
  const Case c = make_case(8, DType::f64);
  bind(*session, c);
  for (const auto& [name, tensor] :
       {std::pair<const char*, const HostTensor*>{"a", &c.a}, {"x0", &c.x0}, {"y", &c.y}}) {
    TensorView view = tensor->view();
    view.rows = 3;
    session->bind(name, view);
  }
  session->run(Phase::forward, 3);
  expect_normed(c, 3, 1e-13);
  for (std::int64_t i = 3 * kWidth; i < c.y.size(); ++i) EXPECT_TRUE(std::isnan(c.y.get(i)));
}

}  // namespace
}  // namespace coda
