// Mistakes in programs, by hand and as data.
#include <functional>

#include "coda/program_builder.h"
#include "errors/expect_error.h"

namespace coda {
namespace {

void rejects(const std::function<void(ProgramBuilder&)>& mistake, const Message& message,
             Form form = Form::gemm) {
  ProgramBuilder b("p", form);
  expect_error<ProgramError>([&] { mistake(b); }, message);
}

/// A correct program whose data a case then spoils.
Program good() {
  ProgramBuilder b("p");
  b.gemm_nt("a", 8, {"w"}, {16}, DType::f32);
  Tile y = b.acc() * b.load_col("r", DType::f32);
  b.store_tile("y", y, DType::f32);
  b.store_partial("s", row_sum(y));
  return b.build();
}

void spoiled(const std::function<void(Program&)>& spoil, const Message& message) {
  Program program = good();
  spoil(program);
  expect_error<ProgramError>([&] { verify(program); }, message);
}

TEST(ProgramErrors, PartialInArithmetic) {
  rejects(
      [](ProgramBuilder& b) {
        Tile y = b.acc();
        ColVec sumsq = whole_row_sum(y * y);
        b.store_tile("z", y * sumsq, DType::f32);
      },
      {"program p: mul(%acc, %1): ", "a finished ColVec [M]",
       "a partial [M] (row_sum covers one "
       "tile's columns)",
       "Store %1 with store_partial and load it, finished, in the next GEMM's program: "
       "load_col(finish_sum(\"1\"))"});
}

TEST(ProgramErrors, WidthsThatDiffer) {
  rejects(
      [](ProgramBuilder& b) {
        auto [first, second] = split(b.acc(), Pairs::interleaved());
        b.store_tile("y", b.acc() * first + second, DType::f32);
      },
      {"program p: mul(%acc, %0): ", "equal widths", "[M, N] and [M, N/2]", "Slice or repeat"});
}

TEST(ProgramErrors, RowVectorOfAnotherWidth) {
  rejects(
      [](ProgramBuilder& b) {
        b.store_tile("y", b.acc() * b.load_row("w", DType::f32, Dim::width(1, 2)), DType::f32);
      },
      {"program p: mul(%acc, %w): ", "equal widths", "[M, N] and [N/2]", "columns correspond"});
}

TEST(ProgramErrors, StoringACompleteVectorAsAPartial) {
  rejects([](ProgramBuilder& b) { b.store_partial("s", row_sum(b.load_tile("x", DType::f32))); },
          {"program p: store_partial(s, %s): operand %s: ", "a partial", "ColVec [M]",
           "Store complete vectors with store_vector"},
          Form::rows);
}

TEST(ProgramErrors, StoringAPartialAsACompleteVector) {
  rejects([](ProgramBuilder& b) { b.store_vector("s", whole_row_sum(b.acc())); },
          {"program p: store_vector(s, %s): ", "a finished ColVec [M]", "a partial [M]",
           "Store %s with store_partial"});
}

TEST(ProgramErrors, WritingWhatIsRead) {
  rejects(
      [](ProgramBuilder& b) {
        b.store_tile("x", b.acc() + b.load_tile("x", DType::f32), DType::f32);
      },
      {"program p: store x: ", "a new name", "that of another operand", "rename the output"});
}

TEST(ProgramErrors, OneNameTwoOperands) {
  rejects(
      [](ProgramBuilder& b) {
        b.load_tile("x", DType::f32);
        b.load_col("x", DType::f32);
      },
      {"program p: operand x: ", "the same kind", "f32 tile and f32 col", "Rename one"});
}

TEST(ProgramErrors, AccumulatorOfARowProgram) {
  rejects([](ProgramBuilder& b) { b.acc(); },
          {"program p: acc(): only a GEMM program has an accumulator", "", "", ""}, Form::rows);
}

TEST(ProgramErrors, ValuesOfAnotherBuilder) {
  ProgramBuilder other("q");
  const Tile foreign = other.acc();
  rejects([&](ProgramBuilder& b) { b.store_tile("y", b.acc() + foreign, DType::f32); },
          {"program p: add: ", "values of this builder", "one of q", "from its own loads"});
}

TEST(ProgramErrors, EmptyHandle) {
  rejects([](ProgramBuilder&) { silu(Tile{}); },
          {"program: sigmoid: ", "a value of a builder", "an empty handle", "Load it"});
}

TEST(ProgramErrors, TargetsLoadedAsFloats) {
  rejects([](ProgramBuilder& b) { b.load_col("target", DType::i32); },
          {"load_col(target): ", "a float type", "i32", "load_integers"});
}

TEST(ProgramErrors, FloatsLoadedAsIntegers) {
  rejects([](ProgramBuilder& b) { b.load_integers("target", DType::f32); },
          {"load_integers(target): ", "i32 or i64", "f32", "load_col"});
}

TEST(ProgramErrors, OddFrequencies) {
  rejects(
      [](ProgramBuilder& b) {
        rotate(b.acc(), b.load_integers("pos"), b.load_row("freq", DType::f32, Dim::number(7)),
               Pairs::halves());
      },
      {"program p: rotate(%acc, %pos, %freq): operand %freq: ",
       "frequencies of an even number of columns", "RowVec [7]", "head dimension"});
}

TEST(ProgramErrors, PeriodThatDoesNotDivide) {
  rejects([](ProgramBuilder& b) { segment_sum(b.load_tile("x", DType::f32, Dim::number(10)), 4); },
          {"segment_sum(%x): ", "a period of at least 1 that divides the width", "4 for 10 columns",
           "width of a head"});
}

TEST(ProgramErrors, ColumnsBeyondTheAccumulator) {
  rejects(
      [](ProgramBuilder& b) {
        b.gemm_nt("a", 8, {"w"}, {16}, DType::f32);
        cols(b.acc(), 8, 17);
      },
      {"cols(%acc): ", "a range of columns within [0, 16)", "[8, 17)", "at most at the extent"});
}

TEST(ProgramErrors, ColumnsOfAnotherTile) {
  rejects([](ProgramBuilder& b) { cols(b.load_tile("x", DType::f32), 0, 4); },
          {"cols(%x): operand %x: ", "the accumulator", "Tile [M, N]", "load slices"});
}

TEST(ProgramErrors, GemmAfterValues) {
  rejects(
      [](ProgramBuilder& b) {
        b.acc();
        b.gemm_nt("a", 8, {"w"}, {16}, DType::f32);
      },
      {"program p: gemm_nt: ", "a GEMM program without values yet", "", "Call it first"});
}

TEST(ProgramErrors, BlocksOfDifferentWidthInOneEpilogue) {
  ProgramBuilder b("p");
  b.gemm_nt("a", 8, {"w"}, {48}, DType::f32);
  const Tile narrow = cols(b.acc(), 0, 16);
  const auto [half, other] = split(cols(b.acc(), 16, 48), Pairs::interleaved());
  b.store_tile("y", narrow + half * other, DType::f32);
  expect_error<ProgramError>([&] { b.build(); },
                             {"program p: value %", "column blocks of equal width in one epilogue",
                              "32 linked with blocks of 16 columns", "in another program"});
}

TEST(ProgramErrors, NothingStored) {
  ProgramBuilder b("p");
  b.acc();
  expect_error<ProgramError>([&] { b.build(); },
                             {"program p: ", "at least one output", "none", "Store"});
}

TEST(ProgramErrors, ProgramWithoutAccumulator) {
  ProgramBuilder b("p");
  b.store_tile("y", b.load_tile("x", DType::f32), DType::f32);
  expect_error<ProgramError>([&] { b.build(); },
                             {"program p: ", "one accumulator", "0", "is a row program"});
}

TEST(ProgramErrors, NameWithSpaces) {
  ProgramBuilder b("my program");
  b.store_tile("y", b.acc(), DType::f32);
  expect_error<ProgramError>(
      [&] { b.build(); },
      {"program my program: ", "a name of letters, digits", "\"my program\"", "Name the program"});
}

TEST(ProgramErrors, OddWidthForPairs) {
  ProgramBuilder b("p");
  const auto [first, second] = split(b.acc(), Pairs::interleaved());
  b.store_tile("y", first * second, DType::f32);
  const Program program = b.build();
  expect_error<ProgramError>(
      [&] { instantiate(program, 97); },
      {"program p: N = 97: ", "a number of columns that 2 divides", "97/2", "multiple of 2"});
}

TEST(ProgramErrors, ReductionAcrossJoinedHalves) {
  ProgramBuilder b("p");
  const Tile both = join(b.acc(), b.acc() * 2.0, Pairs::halves());
  b.store_partial("s", row_sum(both));
  const Program program = b.build();
  expect_error<ProgramError>(
      [&] { instantiate(program, 16); },
      {"program p: join(", "halves of the whole width that become column blocks",
       "a use that cannot", "Use interleaved pairs"});
}

// --- programs as data ---

TEST(ProgramErrors, OperandDefinedLater) {
  spoiled([](Program& p) { p.values[2].args[1] = 3; },
          {"program p: mul(%acc, ", "a value defined before it", "value 3", "operands come first"});
}

TEST(ProgramErrors, WrongNumberOfOperands) {
  spoiled([](Program& p) { p.values[2].args.pop_back(); },
          {"program p: mul(%acc): ", "2 operand(s)", "1", "docs/ops.md"});
}

TEST(ProgramErrors, WrongKind) {
  spoiled([](Program& p) { p.values[1].kind = Kind::row; },
          {"program p: load_col(r): value %r: ", "ColVec [M]", "RowVec [1]", "shape rule"});
}

TEST(ProgramErrors, PartialNotMarked) {
  spoiled(
      [](Program& p) {
        for (Value& value : p.values) value.partial = false;
      },
      {"row_sum(%y): value %s: ", "partial [M]", "ColVec [M]", "shape rule"});
}

TEST(ProgramErrors, TwoValuesOfOneName) {
  spoiled([](Program& p) { p.values[2].name = "r"; },
          {"program p: value %r: ", "a unique name", "it twice", "Rename"});
}

TEST(ProgramErrors, TwoOperandsOfOneName) {
  spoiled([](Program& p) { p.operands[0].name = "r"; },
          {"program p: operand r: ", "a unique name", "it twice", "Rename"});
}

TEST(ProgramErrors, UnusedOperand) {
  spoiled(
      [](Program& p) {
        Operand extra;
        extra.name = "extra";
        p.operands.push_back(extra);
      },
      {"program p: operand extra: ", "it to be read", "no use of it", "Remove it"});
}

TEST(ProgramErrors, InnerExtentsOfTheGemm) {
  spoiled([](Program& p) { p.gemm.k = Dim::number(9); },
          {"program p: gemm: operand a: ", "9 columns (K)", "8", "Give A [M, K] and B [N, K]"});
}

TEST(ProgramErrors, RowsOfBThatDoNotMakeN) {
  spoiled(
      [](Program& p) { p.operands[static_cast<std::size_t>(p.gemm.b[0])].rows = Dim::number(15); },
      {"program p: gemm: operand w: ", "16 rows in all blocks of B (N)", "15", "B [N, K]"});
}

TEST(ProgramErrors, LoadingPartialsWithoutAFinish) {
  spoiled(
      [](Program& p) {
        for (Operand& operand : p.operands) operand.partial |= operand.name == "r";
      },
      {"load_col(r): operand r holds partials: ", "how to finish them", "no finish", "finish_sum"});
}

TEST(ProgramErrors, PartialsInBf16) {
  spoiled([](Program& p) { p.operands.back().dtype = DType::bf16; },
          {"store_partial(s, %s): operand s: ", "partials in f32", "bf16", "Declare it f32"});
}

TEST(ProgramErrors, AccumulatingInto16Bits) {
  spoiled(
      [](Program& p) {
        for (Operand& operand : p.operands) {
          if (operand.name != "y") continue;
          operand.dtype = DType::bf16;
          operand.accumulate = true;
        }
      },
      {"program p: operand y: ", "a complete f32 output to accumulate into", "a bf16 output",
       "f32 outputs only"});
}

TEST(ProgramErrors, OutputOfAnotherWidth) {
  spoiled(
      [](Program& p) {
        for (Operand& operand : p.operands) {
          if (operand.name == "y") operand.cols = Dim::number(8);
        }
      },
      {"store_tile(y, %y): operand y: ", "16 columns (those of %y)", "8", "columns of what is"});
}

// --- programs as text ---

void misread(const std::string& body, const Message& message) {
  const std::string text = "program p(%acc: [M, N], r: f32[M])\n    -> (y: f32[M, N]) {\n" + body;
  expect_error<ProgramError>([&] { parse_program(text); }, message);
}

TEST(TextErrors, UnknownOp) {
  misread("  %y = softmax %acc : [M, N]\n",
          {"program text: line 3: ", "an op", "\"softmax %acc : [M, N]\"", "docs/ops.md"});
}

TEST(TextErrors, ValueUsedBeforeItsLine) {
  misread(
      "  %y = mul %acc, %r : [M, N]\n  %r = load_col r : [M]\n",
      {"program text: line 3: ", "a value defined above", "\"r : [M, N]\"", "operands come first"});
}

TEST(TextErrors, ValueDefinedTwice) {
  misread("  %r = load_col r : [M]\n  %r = exp %acc : [M, N]\n",
          {"program text: line 4: ", "a new name", "\"r = exp %acc : [M, N]\"", "defined once"});
}

TEST(TextErrors, WrongShape) {
  misread("  %r = load_col r : [M]\n  %y = mul %acc, %r : [M]\n  store_tile y, %y\n}\n",
          {"program p: mul(%acc, %r): ", "Tile [M, N] (what mul makes)", "another shape",
           "the op's rule"});
}

TEST(TextErrors, OperandThatIsNotInTheHeader) {
  misread("  %s = load_col s : [M]\n",
          {"program p: ", "an operand of the header", "\"s\"", "Declare it"});
}

TEST(TextErrors, TextThatEnds) {
  misread("  %r = load_col r : [M]\n",
          {"program text: line 4: ", "a name", "\"\"", "Names are letters"});
}

TEST(TextErrors, TextAfterTheEnd) {
  misread("  %r = load_col r : [M]\n  %y = mul %acc, %r : [M, N]\n  store_tile y, %y\n}\nmore",
          {"program text: line 7: ", "the end of the text", "\"more\"", "one program"});
}

TEST(TextErrors, NoHeader) {
  expect_error<ProgramError>([] { parse_program("%y = exp %x : [M]"); },
                             {"program text: line 1: ", "\"program\", \"row program\"",
                              "\"%y = exp %x : [M]\"", "Start with the header"});
}

TEST(TextErrors, UnknownType) {
  expect_error<ProgramError>(
      [] { parse_program("row program p(x: f8[M, 4]) -> (y: f32[M, 4]) {}"); },
      {"program text: line 1: ", "a memory type", "\"[M, 4]) -> (y: f32[M, 4]) {}\"", "Use f32"});
}

TEST(TextErrors, NothingAtAll) {
  expect_error<ProgramError>([] { parse_program(""); },
                             {"program text: line 1: ", "\"program\"", "\"\"", "header"});
}

TEST(TextErrors, EveryTruncatedTextIsAnErrorAndNotACrash) {
  const std::string text = to_string(good());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THROW(parse_program(text.substr(0, length)), UsageError) << length;
  }
}

}  // namespace
}  // namespace coda
