#include "ir/infer.h"

#include <algorithm>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda {

namespace {

/// Applies the rule of one op to one value; every failure names program and call.
class Inference {
 public:
  Inference(const Program& program, std::int32_t index)
      : program_(program),
        index_(index),
        value_(program.values[static_cast<std::size_t>(index)]),
        attrs_(value_.attrs) {}

  ValueType run() {
    check_args();
    switch (value_.op) {
      case Op::acc:
        if (program_.form != Form::gemm) {
          fail("only a GEMM program has an accumulator", "Load a tile instead");
        }
        return {Kind::tile, program_.cols};
      case Op::constant:
        return {Kind::scalar, one()};
      case Op::load_tile:
      case Op::load_row:
      case Op::load_col:
      case Op::load_scalar:
        return load();
      case Op::store_tile:
      case Op::store_partial:
      case Op::store_vector:
        return store();
      case Op::neg:
      case Op::exp:
      case Op::log:
      case Op::tanh:
      case Op::sigmoid:
      case Op::rsqrt:
      case Op::erf:
      case Op::cast:
        return type(0);
      case Op::add:
      case Op::sub:
      case Op::mul:
      case Op::div:
      case Op::maximum:
      case Op::greater:
      case Op::equal:
        return binary();
      case Op::broadcast:
        return broadcast();
      case Op::first_of_pair:
      case Op::second_of_pair:
      case Op::join:
        return pair();
      case Op::rotate:
      case Op::unrotate:
        return rotate();
      case Op::cols:
        return cut_cols();
      case Op::rows:
        return cut_rows();
      case Op::cat_cols:
        return cat_cols();
      case Op::segment_sum:
      case Op::segment_broadcast:
        return segment();
      case Op::repeat:
      case Op::fold:
        return repeat();
      case Op::row_sum:
      case Op::row_max:
      case Op::lse:
      case Op::log_sum:
        return expect_tile(0), ValueType{Kind::col, one(), program_.form == Form::gemm};
      case Op::col_sum:
        return expect_tile(0), ValueType{Kind::row, type(0).cols, true};
      case Op::sum:
        return sum();
      case Op::pick:
        expect_tile(0);
        expect_integers(1);
        return {Kind::col, one(), program_.form == Form::gemm};
      case Op::onehot:
        expect_integers(0);
        return {Kind::tile, attrs_.hi > 0 ? Dim::number(attrs_.hi) : program_.cols};
      case Op::valid:
        expect_integers(0);
        return {Kind::col, one()};
      case Op::input:
      case Op::matmul:
      case Op::cat_rows:
      case Op::opaque:
      case Op::proj:
        fail("this op belongs to a Graph, not to a Program",
             "A program has one GEMM; its operands are loaded");
    }
    fail("unknown op", "Use an op of the table in docs/ops.md");
  }

 private:
  static Dim one() { return Dim::number(1); }

  [[noreturn]] void fail(const std::string& what, const std::string& fix) const {
    throw_error<ProgramError>("program {}: {}: {}. {}.", program_.name, call_text(program_, index_),
                              what, fix);
  }

  /// "expected E, got G" for operand i.
  [[noreturn]] void mismatch(std::size_t i, const std::string& expected,
                             const std::string& fix) const {
    fail(fmt::format("operand {}: expected {}, got {}", name_text(program_, value_.args[i]),
                     expected, type_text(program_, type(i))),
         fix);
  }

  const Value& arg(std::size_t i) const {
    return program_.values[static_cast<std::size_t>(value_.args[i])];
  }
  ValueType type(std::size_t i) const { return {arg(i).kind, arg(i).cols, arg(i).partial}; }

  static bool is_tile(Kind kind) { return kind == Kind::tile || kind == Kind::weight; }

  std::string shape(Kind kind, Dim cols) const { return shape_text(program_, kind, cols); }

  bool is_integer(std::size_t i) const {
    const Value& a = arg(i);
    return is_load(a.op) && a.operand >= 0 &&
           !is_float(program_.operands[static_cast<std::size_t>(a.operand)].dtype);
  }

  /// Which operands read integers: targets and positions.
  bool wants_integers(std::size_t i) const {
    switch (value_.op) {
      case Op::pick:
      case Op::rotate:
      case Op::unrotate:
        return i == 1;
      case Op::onehot:
      case Op::valid:
        return i == 0;
      default:
        return false;
    }
  }

  void check_args() const {
    const int arity = row_of(value_.op).arity;
    const int loads_and_stores = is_load(value_.op) ? 0 : is_store(value_.op) ? 1 : arity;
    if (loads_and_stores >= 0 && static_cast<int>(value_.args.size()) != loads_and_stores) {
      fail(fmt::format("expected {} operand(s), got {}", loads_and_stores, value_.args.size()),
           "See docs/ops.md for the op's equation");
    }
    for (std::size_t i = 0; i < value_.args.size(); ++i) {
      if (value_.args[i] < 0 || value_.args[i] >= index_) {
        fail(fmt::format("operand {}: expected a value defined before it, got value {}", i,
                         value_.args[i]),
             "Order values so that operands come first");
      }
      if (is_store(arg(i).op)) {
        fail(fmt::format("operand {}: expected a value, got a store, which defines none", i),
             "Use what was stored");
      }
      if (arg(i).partial && value_.op != Op::store_partial) refuse_partial(i);
      if (!is_store(value_.op) && is_integer(i) && !wants_integers(i)) {
        fail(fmt::format("operand {}: expected floats, got the integers of {}",
                         name_text(program_, value_.args[i]),
                         program_.operands[static_cast<std::size_t>(arg(i).operand)].name),
             "Only pick, onehot, valid and rotate read integers");
      }
    }
  }

  [[noreturn]] void refuse_partial(std::size_t i) const {
    const std::string name = name_text(program_, value_.args[i]);
    const Op op = arg(i).op;
    const bool per_column = op == Op::col_sum;
    std::string finish = op == Op::row_max   ? "finish_max"
                         : op == Op::lse     ? "finish_lse"
                         : op == Op::log_sum ? "finish_log_sum"
                                             : "finish_sum";
    fail(fmt::format("expected a finished {} {}, got a {} ({} covers one tile's {})",
                     type_name(arg(i).kind), shape(arg(i).kind, arg(i).cols),
                     type_text(program_, type(i)), name_of(op),
                     per_column || op == Op::sum ? "rows" : "columns"),
         fmt::format("Store {} with store_partial and load it, finished, in the next GEMM's "
                     "program: load_{}({}(\"{}\"))",
                     name, name_of(arg(i).kind), finish, name.substr(1)));
  }

  void expect_tile(std::size_t i) const {
    if (!is_tile(arg(i).kind)) mismatch(i, "a Tile", "Broadcast the vector first");
  }
  void expect_integers(std::size_t i) const {
    if (arg(i).kind != Kind::col || !is_integer(i)) {
      mismatch(i, "a ColVec of integers, loaded from an i32 or i64 operand",
               "Load targets and positions with load_col");
    }
  }

  ValueType load() const {
    const Operand& operand = checked_operand(false);
    const Kind want = value_.op == Op::load_tile  ? Kind::tile
                      : value_.op == Op::load_row ? Kind::row
                      : value_.op == Op::load_col ? Kind::col
                                                  : Kind::scalar;
    const bool fits = want == Kind::tile ? is_tile(operand.kind) : operand.kind == want;
    if (!fits) {
      fail(fmt::format("operand {}: expected a {}, got a {}", operand.name, type_name(want),
                       type_name(operand.kind)),
           "Load it with the verb of its kind");
    }
    if (operand.partial && attrs_.finish == Finish::none) {
      fail(fmt::format("operand {} holds partials: expected how to finish them, got no finish",
                       operand.name),
           "Name it: finish_sum, finish_max, finish_lse, finish_log_sum or finish_lse_max");
    }
    if (!operand.partial && attrs_.finish != Finish::none) {
      fail(fmt::format("operand {} is complete: expected no finish, got one", operand.name),
           "Load it plainly, or mark the operand as partials");
    }
    if (want == Kind::tile && operand.rows != program_.rows) {
      fail(fmt::format("operand {}: expected {} rows (those of the program), got {}", operand.name,
                       to_string(program_.rows), to_string(operand.rows)),
           "Load a tile with as many rows, or a row vector");
    }
    if (!is_float(operand.dtype) && want != Kind::col) {
      fail(fmt::format("operand {}: expected floats, got {}", operand.name, name_of(operand.dtype)),
           "Integers are column vectors: targets and positions");
    }
    return {want, want == Kind::tile || want == Kind::row ? operand.cols : one()};
  }

  const Operand& checked_operand(bool output) const {
    if (value_.operand < 0 ||
        value_.operand >= static_cast<std::int32_t>(program_.operands.size())) {
      fail(fmt::format("expected an operand of the program, got index {}", value_.operand),
           "Declare the tensor among the operands");
    }
    const Operand& operand = program_.operands[static_cast<std::size_t>(value_.operand)];
    if (operand.output != output) {
      fail(output ? fmt::format("operand {}: expected an output, got an input", operand.name)
                  : fmt::format("operand {}: expected an input, got an output", operand.name),
           output ? "A program never writes what it reads; declare an output"
                  : "Use the value that was stored, or declare an input");
    }
    return operand;
  }

  ValueType store() const {
    const Operand& operand = checked_operand(true);
    const ValueType stored = type(0);
    const auto expected = [&] {
      return type_text(program_, {operand.kind, operand.cols, operand.partial});
    };
    if (value_.op == Op::store_tile) {
      if (!is_tile(stored.kind)) mismatch(0, "a Tile", "Store vectors with store_vector");
      if (!is_tile(operand.kind) || operand.partial) {
        fail(fmt::format("operand {}: expected a tile, got a {}", operand.name, expected()),
             "Declare the output as a tile");
      }
      if (operand.rows != rows_of(program_, value_.args[0])) {
        fail(fmt::format("operand {}: expected {} rows (those of {}), got {}", operand.name,
                         to_string(rows_of(program_, value_.args[0])),
                         name_text(program_, value_.args[0]), to_string(operand.rows)),
             "Give the output the rows of what is stored");
      }
    } else {
      if (value_.op == Op::store_partial && !stored.partial) {
        mismatch(0, "a partial (row_sum, row_max, lse, pick, col_sum)",
                 is_tile(stored.kind) ? "Store tiles with store_tile"
                                      : "Store complete vectors with store_vector");
      }
      if (is_tile(stored.kind)) mismatch(0, "a vector or scalar", "Store tiles with store_tile");
      if (operand.kind != stored.kind) {
        fail(fmt::format("operand {}: expected a {}, got a {}", operand.name,
                         type_text(program_, stored), expected()),
             "Declare the output with the kind of what is stored");
      }
      if (operand.partial != (value_.op == Op::store_partial)) {
        fail(fmt::format("operand {}: expected {}, got {}", operand.name,
                         operand.partial ? "store_partial" : "an operand marked as partials",
                         operand.partial ? "store_vector" : "a complete vector"),
             "A partial stays one until a load finishes it");
      }
      if (operand.partial && operand.dtype != DType::f32) {
        fail(fmt::format("operand {}: expected partials in f32, got {}", operand.name,
                         name_of(operand.dtype)),
             "Declare it f32");
      }
    }
    const bool wide = is_tile(stored.kind) || stored.kind == Kind::row;
    if (wide && operand.cols != stored.cols) {
      fail(fmt::format("operand {}: expected {} columns (those of {}), got {}", operand.name,
                       to_string(stored.cols), name_text(program_, value_.args[0]),
                       to_string(operand.cols)),
           "Give the output the columns of what is stored");
    }
    if (!is_float(operand.dtype)) {
      fail(fmt::format("operand {}: expected a float type, got {}", operand.name,
                       name_of(operand.dtype)),
           "Store in f32, bf16 or f16");
    }
    return stored;
  }

  ValueType binary() const {
    const ValueType a = type(0), b = type(1);
    const bool tile_a = is_tile(a.kind), tile_b = is_tile(b.kind);
    const bool wide_a = tile_a || a.kind == Kind::row, wide_b = tile_b || b.kind == Kind::row;
    if (wide_a && wide_b && a.cols != b.cols) {
      fail(fmt::format("expected equal widths, got {} and {}", shape(a.kind, a.cols),
                       shape(b.kind, b.cols)),
           "Slice or repeat one of them so that the columns correspond");
    }
    if (tile_a && tile_b &&
        rows_of(program_, value_.args[0]) != rows_of(program_, value_.args[1])) {
      fail(fmt::format("expected equal rows, got {} and {}",
                       to_string(rows_of(program_, value_.args[0])),
                       to_string(rows_of(program_, value_.args[1]))),
           "Take the same rows of both");
    }
    if (tile_a || tile_b) return {tile_a ? a.kind : b.kind, tile_a ? a.cols : b.cols};
    if (a.kind == b.kind || b.kind == Kind::scalar) return a;
    if (a.kind == Kind::scalar) return b;
    // A col and a row: their outer combination.
    return {Kind::tile, a.kind == Kind::row ? a.cols : b.cols};
  }

  ValueType broadcast() const {
    const ValueType a = type(0);
    if (is_tile(a.kind)) mismatch(0, "a vector or scalar", "A tile needs no broadcast");
    const Dim cols = attrs_.hi > 0 ? Dim::number(attrs_.hi) : program_.cols;
    if (a.kind == Kind::row && a.cols != cols) {
      mismatch(0, fmt::format("a RowVec [{}]", to_string(cols)), "Use repeat to lengthen a row");
    }
    // attrs.index says what is made; a scalar may become a vector as well.
    const auto made = static_cast<Kind>(attrs_.index);
    if (a.kind == Kind::scalar && made == Kind::col) return {Kind::col, one()};
    if (a.kind == Kind::scalar && made == Kind::row) return {Kind::row, cols};
    if (!is_tile(made)) {
      fail(fmt::format("expected to make a tile (or a vector of a scalar), got a {}",
                       type_name(made)),
           "Set the attribute index to the kind that is made");
    }
    return {made, cols};
  }

  /// width must be a multiple of period where both are numbers.
  void check_period(Dim width, std::int64_t period, std::int64_t least) const {
    if (period < least || (width.symbol == Dim::Symbol::none && width.num % period != 0)) {
      fail(fmt::format("expected a period of at least {} that divides the width, got {} for {} "
                       "columns",
                       least, period, to_string(width)),
           "Use the width of a head or of a pair group");
    }
  }

  std::int64_t pair_period(Dim width) const {
    if (attrs_.layout == PairLayout::interleaved) return 2;
    if (attrs_.period == 0 && width.symbol == Dim::Symbol::none)
      return std::max<std::int64_t>(width.num, 2);
    return attrs_.period == 0 ? 2 : attrs_.period;
  }

  ValueType pair() const {
    const ValueType a = type(0);
    if (!is_tile(a.kind) && a.kind != Kind::row)
      mismatch(0, "a Tile or a RowVec", "Columns are paired");
    const Dim whole = value_.op == Op::join ? scaled(a.cols, 2, 1) : a.cols;
    if (value_.op == Op::join && (type(1).cols != a.cols || type(1).kind != a.kind)) {
      fail(fmt::format("expected two halves of equal width, got {} and {}", shape(a.kind, a.cols),
                       shape(type(1).kind, type(1).cols)),
           "Join what split gave");
    }
    const std::int64_t period = pair_period(whole);
    check_period(whole, period, 2);
    if (period % 2 != 0) {
      fail(fmt::format("expected an even period, got {}", period), "Pairs have two halves");
    }
    return {a.kind, value_.op == Op::join ? whole : scaled(a.cols, 1, 2)};
  }

  ValueType rotate() const {
    expect_tile(0);
    expect_integers(1);
    if (arg(2).kind != Kind::row) mismatch(2, "a RowVec of frequencies", "Load it with load_row");
    const Dim period = arg(2).cols;
    if (period.symbol != Dim::Symbol::none || period.num % 2 != 0) {
      mismatch(2, "frequencies of an even number of columns (high parts, then low parts)",
               "Their number is the head dimension");
    }
    if (attrs_.period != 0 && attrs_.period != period.num) {
      mismatch(2, fmt::format("{} frequencies (the period)", attrs_.period),
               "The head dimension is the width of the frequencies");
    }
    check_period(type(0).cols, period.num, 2);
    return type(0);
  }

  ValueType cut_cols() const {
    const ValueType a = type(0);
    if (!is_tile(a.kind) && a.kind != Kind::row)
      mismatch(0, "a Tile or a RowVec", "A ColVec has no columns");
    check_range(a.cols, "columns");
    if (program_.form == Form::gemm && is_tile(a.kind) && arg(0).op != Op::acc) {
      mismatch(0, "the accumulator",
               "In a GEMM program slice acc itself, and load slices of other tiles as operands");
    }
    return {a.kind, Dim::number(attrs_.hi - attrs_.lo)};
  }

  void check_range(Dim extent, const char* what) const {
    const bool beyond = extent.symbol == Dim::Symbol::none && attrs_.hi > extent.num;
    if (attrs_.lo < 0 || attrs_.hi <= attrs_.lo || beyond) {
      fail(fmt::format("expected a range of {} within [0, {}), got [{}, {})", what,
                       to_string(extent), attrs_.lo, attrs_.hi),
           "Ranges are not empty and end at most at the extent");
    }
  }

  ValueType cut_rows() const {
    expect_tile(0);
    check_range(rows_of(program_, value_.args[0]), "rows");
    if (program_.rows.symbol == Dim::Symbol::M) {
      fail("expected a program whose rows are features, got rows that are tokens",
           "Only weight-gradient programs cut rows");
    }
    return type(0);
  }

  ValueType cat_cols() const {
    if (value_.args.empty()) fail("expected at least one part, got none", "Give the parts");
    const Kind kind = arg(0).kind;
    if (!is_tile(kind) && kind != Kind::row)
      mismatch(0, "a Tile or a RowVec", "A ColVec has no columns");
    if (program_.form == Form::gemm && is_tile(kind)) {
      fail("expected one column block a tile in a GEMM program, got several side by side",
           "Store each block into its own columns of the buffer");
    }
    Dim total = Dim::number(0);
    for (std::size_t i = 0; i < value_.args.size(); ++i) {
      if (arg(i).kind != kind)
        mismatch(i, std::string("a ") + std::string(type_name(kind)), "Parts are alike");
      const Dim part = arg(i).cols;
      if (i == 0) {
        total = part;
      } else if (part.symbol == total.symbol) {
        total = scaled(
            Dim{part.symbol, part.num * total.den + total.num * part.den, part.den * total.den}, 1,
            1);
      } else {
        mismatch(i, fmt::format("a width in the same symbol as {}", to_string(total)),
                 "Fix N, or give parts as fractions of N");
      }
    }
    return {kind, total};
  }

  ValueType segment() const {
    expect_tile(0);
    const ValueType a = type(0);
    if (value_.op == Op::segment_broadcast) {
      if (attrs_.period < 1)
        fail(fmt::format("expected a period of at least 1, got {}", attrs_.period),
             "Use the width of a segment");
      return {a.kind, scaled(a.cols, attrs_.period, 1)};
    }
    check_period(a.cols, attrs_.period, 1);
    return {a.kind, scaled(a.cols, 1, attrs_.period)};
  }

  ValueType repeat() const {
    if (arg(0).kind != Kind::row) mismatch(0, "a RowVec", "Tiles use segment_broadcast");
    const bool fold = value_.op == Op::fold;
    const Dim cols = fold ? scaled(arg(0).cols, 1, std::max<std::int64_t>(attrs_.hi, 1))
                          : scaled(arg(0).cols, attrs_.hi, 1);
    if (attrs_.hi < 1 || !is_whole(cols)) {
      fail(fmt::format(
               "expected a count of at least 1 that divides the width, got {} for {} columns",
               attrs_.hi, to_string(arg(0).cols)),
           "Use the number of heads");
    }
    return {Kind::row, cols};
  }

  ValueType sum() const {
    if (arg(0).kind != Kind::col && arg(0).kind != Kind::row) {
      mismatch(0, "a ColVec or a RowVec", "Reduce a tile with row_sum or col_sum first");
    }
    // A col is complete in a vector program only: elsewhere a program sees some rows at a time.
    return {Kind::scalar, one(), arg(0).kind == Kind::col && program_.form != Form::vectors};
  }

  const Program& program_;
  std::int32_t index_;
  const Value& value_;
  const Attrs& attrs_;
};

}  // namespace

ValueType infer(const Program& program, std::int32_t index) {
  return Inference(program, index).run();
}

}  // namespace coda
