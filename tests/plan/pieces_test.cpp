// The widest tile a piece of rows at a time: what is cut, what is not, and that every value stays
// what the math says.
#include "plan/pieces.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/arena.h"
#include "plan/blocks.h"
#include "plan/execute.h"

namespace coda {
namespace {

using namespace blocks;

std::string note_of(const Plan& plan) {
  for (const std::string& note : plan.rewrites)
    if (note.starts_with("pieces: ")) return note;
  return "";
}

std::int64_t steps_of(const Plan& plan, Piece piece) {
  return std::count_if(plan.backward.begin(), plan.backward.end(),
                       [&](const Step& step) { return step.piece == piece; });
}

NodeId logits_of(const Graph& g) {
  for (NodeId v = 0; v < g.size(); ++v)
    if (g.node(v).name == "logits") return v;
  return kNoNode;
}

TEST(RowPieces, CoverAllRowsInWholeGranules) {
  for (const std::int64_t tokens : {0, 1, 127, 128, 129, 300, 1000, 16384}) {
    for (const std::int32_t count : {1, 2, 3, 24}) {
      std::int64_t next = 0, largest = 0;
      for (std::int32_t index = 0; index < count; ++index) {
        const RowRange range = rows_of({index, count}, tokens);
        EXPECT_EQ(range.first, next);
        EXPECT_TRUE(range.first % kRowGranule == 0 || range.rows == 0);
        next += range.rows;
        largest = std::max(largest, range.rows);
      }
      EXPECT_EQ(next, tokens);
      EXPECT_EQ(largest, rows_of({0, count}, tokens).rows);
    }
  }
}

TEST(RowPieces, OfTheHeadEqualTheMath) {
  for (const bool tied : {false, true}) {
    for (const bool sums : {false, true}) {
      for (const double price : {0.0, 1.5}) {
        for (const std::int64_t tokens : {0, 1, 7, 128, 129, 300, 513}) {
          SCOPED_TRACE(fmt::format("tied {} sums {} price {} M {}", tied, sums, price, tokens));
          const auto plan = expect_plan_equals_math(
              [&](Graph& g) { return summed_head(g, Sizes{}, tied); },
              {.accumulate_weight_grads = sums, .held_price = price, .pieces = 3}, tokens);
          // logits, loss, their gradient, the norm's with the next layer's, the weight's
          for (const int index : {0, 1, 2}) EXPECT_EQ(steps_of(*plan, {index, 3}), 5);
          EXPECT_EQ(plan->forward.size(), tied ? 2u : 1u);
        }
      }
    }
  }
}

TEST(RowPieces, HoldOneOfThemAtATime) {
  Graph whole_graph, graph;
  CompileOptions options;
  const auto whole = compile(whole_graph, summed_head(whole_graph, Sizes{}, true), options);
  options.pieces = 4;
  const auto cut = compile(graph, summed_head(graph, Sizes{}, true), options);
  const std::int64_t tokens = 4096;
  const auto logits = static_cast<double>(tokens * Sizes{}.vocab * 4);
  EXPECT_NEAR(saved_bytes(*whole, tokens) - saved_bytes(*cut, tokens), logits, 0.1 * logits);
  EXPECT_LT(static_cast<double>(layout_arena(*cut, tokens).bytes),
            static_cast<double>(layout_arena(*whole, tokens).bytes) - 0.7 * logits);
  const std::string note = note_of(*cut);
  EXPECT_NE(note.find("logits in 4 pieces of rows"), std::string::npos) << note;
  EXPECT_NE(note.find("summed piece after piece: loss d_wl"), std::string::npos) << note;
  EXPECT_NE(note.find("not written by forward: loss"), std::string::npos) << note;
}

TEST(RowPieces, OfAMeanKnowTheCountBefore) {
  for (const std::int64_t tokens : {0, 1, 129, 300}) {
    const auto plan =
        expect_plan_equals_math([](Graph& g) { return head(g, Sizes{}); }, {.pieces = 3}, tokens);
    EXPECT_EQ(steps_of(*plan, {0, 3}), 4) << note_of(*plan);  // the loss comes after all pieces
  }
}

TEST(RowPieces, OfASumOfWhatASumScalesAreNotSummed) {
  const auto scaled = [](Graph& g) {
    CompileRequest request = head(g, Sizes{});
    const Tensor targets = g.at(g.find_input("targets")), z = g.at(logits_of(g));
    const Tensor scale = g.constant(1) / maximum(sum(valid(targets)), 1.0);
    request.outputs[0].value = sum(valid(targets) * (lse(z) - pick(z, targets)) * scale);
    return request;
  };
  const auto plan = expect_plan_equals_math(scaled, {.pieces = 3}, 300);
  EXPECT_EQ(steps_of(*plan, {0, 3}), 4) << note_of(*plan);
}

TEST(RowPieces, OfWhatNeedsAllRowsAreNoneAndTheNoteSaysWhy) {
  const auto square = [](Graph& g) {
    CompileRequest request = summed_head(g, Sizes{}, false);
    request.outputs[0].value = request.outputs[0].value * request.outputs[0].value;
    return request;
  };
  const auto plan = expect_plan_equals_math(square, {.pieces = 3}, 300);
  EXPECT_NE(note_of(*plan).find("which depends on all rows of logits"), std::string::npos)
      << note_of(*plan);
  EXPECT_EQ(steps_of(*plan, {0, 3}), 0);
  const auto layer =
      expect_plan_equals_math([](Graph& g) { return llama_layer(g, Sizes{}); }, {.pieces = 3}, 300);
  EXPECT_NE(note_of(*layer).find("pieces: none, since "), std::string::npos);
}

}  // namespace
}  // namespace coda
