// Mistakes when binding and running a plan. After each, nothing has been written.
#include <cmath>
#include <functional>

#include "backend/backend.h"
#include "coda/program_builder.h"
#include "errors/expect_error.h"

namespace coda {
namespace {

constexpr std::int64_t kClasses = 97;

/// loss parts of a head: picked = logits[target], over logits = x w^T; x has 4 columns.
std::shared_ptr<const Plan> pick_plan() {
  ProgramBuilder b("head");
  b.gemm_nt("x", 4, {"w"}, {kClasses}, DType::f32);
  b.store_tile("logits", b.acc(), DType::f32);
  b.store_partial("picked", pick_col(b.acc(), b.load_integers("targets")));
  auto plan = std::make_shared<Plan>();
  const auto add = [&](const char* name, Role role, Kind kind, DType dtype, std::int64_t rows,
                       std::int64_t cols) {
    Buffer buffer;
    buffer.name = name;
    buffer.role = role;
    buffer.kind = kind;
    buffer.dtype = dtype;
    buffer.rows = rows;
    buffer.cols = cols;
    plan->buffers.push_back(buffer);
  };
  add("x", Role::input, Kind::tile, DType::f32, kTokens, 4);
  add("w", Role::input, Kind::weight, DType::f32, kClasses, 4);
  add("targets", Role::input, Kind::col, DType::i32, kTokens, 1);
  add("logits", Role::output, Kind::tile, DType::f32, kTokens, kClasses);
  add("picked", Role::scratch, Kind::col, DType::f32, kTokens, 1);
  plan->buffers.back().partial = true;
  plan->buffers.back().finish = Finish::sum;
  plan->buffers.back().granules = 2;
  Step step;
  step.program = std::make_shared<Program>(b.build());
  for (const Operand& operand : step.program->operands) {
    for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
      const Buffer& buffer = plan->buffers[i];
      if (buffer.name != operand.name) continue;
      step.slices.push_back({static_cast<std::int32_t>(i), 0, 0, buffer.rows, buffer.cols});
    }
  }
  plan->forward.push_back(step);
  return plan;
}

class RunErrors : public testing::Test {
 protected:
  RunErrors()
      : session(make_reference_backend(DType::f32)->prepare(pick_plan(), 32)),
        x(DType::f32, 20, 4),
        w(DType::f32, kClasses, 4),
        targets(DType::i32, 20, 1),
        logits(DType::f32, 20, kClasses) {
    for (std::int64_t i = 0; i < logits.size(); ++i) logits.set(i, std::nan(""));
    session->bind("x", x.view());
    session->bind("w", w.view());
    session->bind("targets", targets.view());
    session->bind("logits", logits.view());
  }

  template <class F>
  void rejects(F mistake, const Message& message) {
    expect_error<UsageError>(mistake, message);
    for (std::int64_t i = 0; i < logits.size(); ++i) {
      ASSERT_TRUE(std::isnan(logits.get(i))) << "something was written";
    }
  }

  std::unique_ptr<Session> session;
  HostTensor x, w, targets, logits;
};

TEST_F(RunErrors, RunsWithoutMistake) {
  targets.set(3, -100);
  session->run(Phase::forward, 20);
  EXPECT_EQ(logits.get(0), 0);
}

TEST_F(RunErrors, UnknownName) {
  rejects([&] { session->bind("y", x.view()); },
          {"bind: ", "an input or output of the plan (x, w, targets, logits)", "\"y\"",
           "Correct the name"});
}

TEST_F(RunErrors, PlanOwnedName) {
  rejects([&] { session->bind("picked", targets.view()); },
          {"bind: ", "an input or output", "\"picked\"", "Correct"});
}

TEST_F(RunErrors, WrongType) {
  const HostTensor half(DType::bf16, 20, 4);
  rejects([&] { session->bind("x", half.view()); },
          {"bind: x: ", "f32[M, 4]", "bf16[20, 4]", "Convert it"});
}

TEST_F(RunErrors, WrongColumns) {
  const HostTensor wide(DType::f32, 20, 5);
  rejects([&] { session->bind("x", wide.view()); },
          {"bind: x: ", "f32[M, 4]", "f32[20, 5]", "these extents"});
}

TEST_F(RunErrors, WrongRowsOfAWeight) {
  const HostTensor tall(DType::f32, kClasses + 1, 4);
  rejects([&] { session->bind("w", tall.view()); },
          {"bind: w: ", "f32[97, 4]", "f32[98, 4]", "these extents"});
}

TEST_F(RunErrors, RowsThatOverlap) {
  TensorView view = x.view();
  view.stride = 3;
  rejects([&] { session->bind("x", view); },
          {"bind: x: ", "f32[M, 4]", "f32[20, 4] with stride 3", "Rows must not overlap"});
}

TEST_F(RunErrors, NullMemory) {
  TensorView view = x.view();
  view.data = nullptr;
  rejects([&] { session->bind("x", view); }, {"bind: x: ", "f32[M, 4]", "f32[20, 4]", "not null"});
}

TEST_F(RunErrors, TargetOutOfRange) {
  targets.set(17, kClasses);
  rejects([&] { session->run(Phase::forward, 20); },
          {"targets: row 17: ", "a class in [0, 97) or ignore_index -100", "97",
           "mark the row with ignore_index"});
}

TEST_F(RunErrors, NegativeTarget) {
  targets.set(2, -1);
  rejects([&] { session->run(Phase::forward, 20); },
          {"targets: row 2: ", "a class in [0, 97) or ignore_index -100", "-1", "Correct"});
}

TEST_F(RunErrors, MoreTokensThanReserved) {
  rejects([&] { session->run(Phase::forward, 33); },
          {"run: ", "between 0 and 32 tokens (as reserved)", "33", "for more tokens"});
}

TEST_F(RunErrors, NegativeTokens) {
  rejects([&] { session->run(Phase::forward, -1); },
          {"run: ", "between 0 and 32 tokens", "-1", "Prepare"});
}

TEST_F(RunErrors, RowsThatAreNotTokens) {
  rejects([&] { session->run(Phase::forward, 19); },
          {"run: x: ", "f32[M, 4] with M = 19 rows", "f32[20, 4]", "one row a token"});
}

TEST_F(RunErrors, NothingBound) {
  session = make_reference_backend(DType::f32)->prepare(pick_plan(), 32);
  session->bind("x", x.view());
  rejects([&] { session->run(Phase::forward, 20); },
          {"run: w: ", "f32[97, 4] to be bound", "nothing", "bind(\"w\", ...)"});
}

TEST_F(RunErrors, OutputThatOverlapsAnInput) {
  TensorView view = logits.view();
  view.cols = 4;
  session->bind("x", view);
  rejects([&] { session->run(Phase::forward, 20); },
          {"run: output logits: ", "memory of its own", "memory shared with x", "do not overlap"});
}

TEST_F(RunErrors, BackwardWithoutForward) {
  rejects([&] { session->run(Phase::backward, 20); },
          {"run: backward of 20 tokens: ", "a forward run of as many", "none",
           "Run forward on the same rows first"});
}

TEST_F(RunErrors, BackwardOfOtherRows) {
  session->run(Phase::forward, 20);
  expect_error<UsageError>(
      [&] { session->run(Phase::backward, 19); },
      {"run: backward of 19 tokens: ", "a forward run", "one of 20", "same rows"});
}

TEST_F(RunErrors, BufferThatThePlanHasNot) {
  rejects([&] { session->buffer("hidden"); },
          {"buffer: ", "a buffer of the plan", "\"hidden\"", "Print the plan"});
}

TEST_F(RunErrors, ReferenceBackendOfAMemoryType) {
  rejects([] { make_reference_backend(DType::bf16); },
          {"reference backend: ", "to compute in f32 or f64", "bf16", "belong to the plan"});
}

TEST_F(RunErrors, NegativeReserve) {
  rejects([] { make_reference_backend(DType::f32)->prepare(pick_plan(), -2); },
          {"prepare: ", "at least 0 tokens", "-2", "Reserve"});
}

}  // namespace
}  // namespace coda
