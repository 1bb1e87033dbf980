#include "coda/program_builder.h"

#include "base/check.h"
#include "ir/infer.h"
#include "ops/op_table.h"

namespace coda {

using detail::Handle;

namespace {

Finished finishing(std::string_view operand, Finish finish) {
  Finished finished;
  finished.operand = operand;
  finished.finish = finish;
  return finished;
}

}  // namespace

Finished finish_sum(std::string_view operand) { return finishing(operand, Finish::sum); }
Finished finish_max(std::string_view operand) { return finishing(operand, Finish::max); }
Finished finish_lse(std::string_view operand) { return finishing(operand, Finish::lse); }
Finished finish_lse_max(std::string_view operand) { return finishing(operand, Finish::lse_max); }
Finished finish_log_sum(std::string_view operand) { return finishing(operand, Finish::log_sum); }

Finished finish_rms(std::string_view operand, std::int64_t d, double eps) {
  Finished finished = finish_sum(operand);
  finished.rms = true;
  finished.count = static_cast<double>(d);
  finished.eps = eps;
  return finished;
}

ProgramBuilder::ProgramBuilder(std::string_view name, Form form)
    : draft_(std::make_unique<Program>()) {
  draft_->name = name;
  draft_->form = form;
}

ProgramBuilder::~ProgramBuilder() = default;

void ProgramBuilder::gemm_nt(std::string_view a, std::int64_t k, const std::vector<std::string>& b,
                             const std::vector<std::int64_t>& rows, DType dtype) {
  if (draft_->form != Form::gemm || !draft_->values.empty() || b.empty() ||
      b.size() != rows.size()) {
    throw_error<ProgramError>(
        "program {}: gemm_nt: expected a GEMM program without values yet, and as many row counts "
        "({}) as blocks of B ({}), at least one. Call it first.",
        draft_->name, rows.size(), b.size());
  }
  draft_->gemm.k = Dim::number(k);
  draft_->gemm.a = input(a, Kind::tile, dtype, Dim::number(k), false);
  std::int64_t n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const std::int32_t block = input(b[i], Kind::weight, dtype, Dim::number(k), false);
    draft_->operands[static_cast<std::size_t>(block)].rows = Dim::number(rows[i]);
    draft_->gemm.b.push_back(block);
    n += rows[i];
  }
  draft_->cols = Dim::number(n);
}

std::int32_t ProgramBuilder::input(std::string_view name, Kind kind, DType dtype, Dim cols,
                                   bool partial) {
  Operand operand;
  operand.name = name;
  operand.kind = kind;
  operand.dtype = dtype;
  operand.partial = partial;
  operand.rows = kind == Kind::row || kind == Kind::scalar ? Dim::number(1) : draft_->rows;
  const bool wide = kind == Kind::tile || kind == Kind::weight || kind == Kind::row;
  operand.cols = wide ? cols : Dim::number(1);
  // N stands for the columns of acc: a number once the GEMM is known.
  if (wide && cols.symbol == Dim::Symbol::N && draft_->cols.symbol == Dim::Symbol::none) {
    operand.cols = scaled(draft_->cols, cols.num, cols.den);
  }
  for (std::size_t i = 0; i < draft_->operands.size(); ++i) {
    if (draft_->operands[i].name != name) continue;
    const Operand& other = draft_->operands[i];
    if (other.kind == kind && other.dtype == dtype && other.cols == operand.cols &&
        other.partial == partial && !other.output) {
      return static_cast<std::int32_t>(i);
    }
    throw_error<ProgramError>(
        "program {}: operand {}: expected the same kind, type and extents at each use, got {} {} "
        "and {} {}. Rename one of them.",
        draft_->name, name, name_of(other.dtype), name_of(other.kind), name_of(dtype),
        name_of(kind));
  }
  draft_->operands.push_back(operand);
  return static_cast<std::int32_t>(draft_->operands.size()) - 1;
}

Handle ProgramBuilder::apply(Op op, const std::vector<Handle>& args, const Attrs& attrs,
                             std::int32_t operand, std::string_view name) {
  Value value{};
  value.op = op;
  value.attrs = attrs;
  value.operand = operand;
  value.name = name;
  for (const Handle& arg : args) {
    if (arg.builder != this) {
      throw_error<ProgramError>(
          "program {}: {}: expected values of this builder, got one of {}. Build each program from "
          "its own loads.",
          draft_->name, name_of(op), arg.builder ? arg.builder->draft_->name : "none");
    }
    value.args.push_back(arg.index);
  }
  const auto index = static_cast<std::int32_t>(draft_->values.size());
  for (std::int32_t i = 0; i < index && !is_store(op); ++i) {
    const Value& other = draft_->values[static_cast<std::size_t>(i)];
    const bool same = other.op == op && other.args == value.args && other.attrs == attrs &&
                      other.operand == operand;
    if (same) return {this, i};  // equal values are one value
  }
  draft_->values.push_back(std::move(value));
  try {
    const ValueType type = infer(*draft_, index);
    Value& added = draft_->values.back();
    added.kind = type.kind;
    added.cols = type.cols;
    added.partial = type.partial;
  } catch (...) {
    draft_->values.pop_back();
    throw;
  }
  return {this, index};
}

namespace {

std::string free_name(const Program& program, std::string_view wanted) {
  for (const Value& value : program.values) {
    if (value.name == wanted) return "";
  }
  return std::string(wanted);
}

}  // namespace

Tile ProgramBuilder::acc() {
  for (std::size_t i = 0; i < draft_->values.size(); ++i) {
    if (draft_->values[i].op == Op::acc) return {{this, static_cast<std::int32_t>(i)}};
  }
  return {apply(Op::acc, {}, {}, -1, "acc")};
}

Tile ProgramBuilder::load_tile(std::string_view name, DType dtype, Dim cols) {
  const std::int32_t operand = input(name, Kind::tile, dtype, cols, false);
  return {apply(Op::load_tile, {}, {}, operand, free_name(*draft_, name))};
}

RowVec ProgramBuilder::load_row(std::string_view name, DType dtype, Dim cols) {
  const std::int32_t operand = input(name, Kind::row, dtype, cols, false);
  return {apply(Op::load_row, {}, {}, operand, free_name(*draft_, name))};
}

ColVec ProgramBuilder::load_col(std::string_view name, DType dtype) {
  if (!is_float(dtype)) {
    throw_error<ProgramError>(
        "program {}: load_col({}): expected a float type, got {}. Load targets and positions with "
        "load_integers.",
        draft_->name, name, name_of(dtype));
  }
  const std::int32_t operand = input(name, Kind::col, dtype, Dim::number(1), false);
  return {apply(Op::load_col, {}, {}, operand, free_name(*draft_, name))};
}

IntCol ProgramBuilder::load_integers(std::string_view name, DType dtype) {
  if (is_float(dtype)) {
    throw_error<ProgramError>(
        "program {}: load_integers({}): expected i32 or i64, got {}. Load floats with load_col.",
        draft_->name, name, name_of(dtype));
  }
  const std::int32_t operand = input(name, Kind::col, dtype, Dim::number(1), false);
  return {apply(Op::load_col, {}, {}, operand, free_name(*draft_, name))};
}

Scalar ProgramBuilder::load_scalar(std::string_view name) {
  const std::int32_t operand = input(name, Kind::scalar, DType::f32, Dim::number(1), false);
  return {apply(Op::load_scalar, {}, {}, operand, free_name(*draft_, name))};
}

Handle ProgramBuilder::finish(Op load, Kind kind, const Finished& finished, Dim cols) {
  const std::int32_t operand = input(finished.operand, kind, DType::f32, cols, true);
  Attrs attrs;
  attrs.finish = finished.finish;
  const Handle sum = apply(load, {}, attrs, operand, free_name(*draft_, finished.operand));
  if (!finished.rms) return sum;
  const Handle mean = apply(Op::mul, {sum, constant(1.0 / finished.count)});
  return apply(Op::rsqrt, {apply(Op::add, {mean, constant(finished.eps)})});
}

ColVec ProgramBuilder::load_col(const Finished& finished) {
  return {finish(Op::load_col, Kind::col, finished, Dim::number(1))};
}

RowVec ProgramBuilder::load_row(const Finished& finished, Dim cols) {
  return {finish(Op::load_row, Kind::row, finished, cols)};
}

Scalar ProgramBuilder::load_scalar(const Finished& finished) {
  return {finish(Op::load_scalar, Kind::scalar, finished, Dim::number(1))};
}

Scalar ProgramBuilder::constant(double value) {
  Attrs attrs;
  attrs.value = value;
  return {apply(Op::constant, {}, attrs)};
}

void ProgramBuilder::store(Op op, std::string_view name, Handle value, DType dtype, bool partial) {
  if (value.builder != this) {
    throw_error<ProgramError>(
        "program {}: store {}: expected a value of this builder, got one of {}. Build each program "
        "from its own loads.",
        draft_->name, name, value.builder ? value.builder->draft_->name : "none");
  }
  Value& stored = draft_->values[static_cast<std::size_t>(value.index)];
  Operand operand;
  operand.name = name;
  operand.kind = stored.kind;
  operand.dtype = dtype;
  operand.output = true;
  operand.partial = partial;
  const bool wide = stored.kind == Kind::tile || stored.kind == Kind::row;
  operand.cols = wide ? stored.cols : Dim::number(1);
  operand.rows =
      stored.kind == Kind::row || stored.kind == Kind::scalar ? Dim::number(1) : draft_->rows;
  for (const Operand& other : draft_->operands) {
    if (other.name == name) {
      throw_error<ProgramError>(
          "program {}: store {}: expected a new name, got that of another operand. A program never "
          "writes what it reads; rename the output.",
          draft_->name, name);
    }
  }
  // The value takes the name of its first store, so that generated code reads well.
  if (stored.name.empty()) stored.name = free_name(*draft_, name);
  draft_->operands.push_back(operand);
  apply(op, {value}, {}, static_cast<std::int32_t>(draft_->operands.size()) - 1);
}

void ProgramBuilder::store_tile(std::string_view name, Tile value, DType dtype) {
  store(Op::store_tile, name, value, dtype, false);
}
void ProgramBuilder::store_partial(std::string_view name, Partial value) {
  store(Op::store_partial, name, value, DType::f32, true);
}
void ProgramBuilder::store_vector(std::string_view name, ColVec value, DType dtype) {
  store(Op::store_vector, name, value, dtype, false);
}
void ProgramBuilder::store_vector(std::string_view name, RowVec value, DType dtype) {
  store(Op::store_vector, name, value, dtype, false);
}
void ProgramBuilder::store_vector(std::string_view name, Scalar value) {
  store(Op::store_vector, name, value, DType::f32, false);
}

namespace {

/// Copies what the stores need, operands of each value from left to right.
class Walker {
 public:
  explicit Walker(const Program& draft) : draft_(draft), moved_(draft.values.size(), -1) {}

  Program run() {
    Program program = draft_;
    program.values.clear();
    program.operands.clear();
    operands_.assign(draft_.operands.size(), -1);
    for (std::size_t i = 0; i < draft_.values.size(); ++i) {
      if (draft_.values[i].op == Op::acc) visit(program, static_cast<std::int32_t>(i));
    }
    if (program.gemm.a >= 0) program.gemm.a = operand(program, program.gemm.a);
    for (std::int32_t& b : program.gemm.b) b = operand(program, b);
    for (std::size_t i = 0; i < draft_.values.size(); ++i) {
      if (is_store(draft_.values[i].op)) visit(program, static_cast<std::int32_t>(i));
    }
    return program;
  }

 private:
  std::int32_t operand(Program& program, std::int32_t index) {
    std::int32_t& slot = operands_[static_cast<std::size_t>(index)];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(program.operands.size());
      program.operands.push_back(draft_.operands[static_cast<std::size_t>(index)]);
    }
    return slot;
  }

  std::int32_t visit(Program& program, std::int32_t index) {
    std::int32_t& slot = moved_[static_cast<std::size_t>(index)];
    if (slot >= 0) return slot;
    Value value = draft_.values[static_cast<std::size_t>(index)];
    for (std::int32_t& arg : value.args) arg = visit(program, arg);
    if (value.operand >= 0) value.operand = operand(program, value.operand);
    slot = static_cast<std::int32_t>(program.values.size());
    program.values.push_back(std::move(value));
    return slot;
  }

  const Program& draft_;
  std::vector<std::int32_t> moved_;
  std::vector<std::int32_t> operands_;
};

}  // namespace

Program ProgramBuilder::build() const {
  Program program = Walker(*draft_).run();
  verify(program);
  return program;
}

// --- free functions ---

namespace {

template <class Result>
Result make(Op op, const std::vector<Handle>& args, const Attrs& attrs = {}) {
  for (const Handle& arg : args) {
    if (arg.builder == nullptr) {
      throw_error<ProgramError>(
          "program: {}: expected a value of a builder, got an empty handle. "
          "Load it, or compute it, first.",
          name_of(op));
    }
  }
  Result result;
  static_cast<Handle&>(result) = args[0].builder->apply(op, args, attrs);
  return result;
}

Scalar number(Handle beside, double value) { return beside.builder->constant(value); }

Attrs with_pairs(Pairs pairs) {
  Attrs attrs;
  attrs.layout = pairs.layout;
  // Interleaved pairs are always neighbours; only halves have a period.
  attrs.period = pairs.layout == PairLayout::halves ? pairs.period : 0;
  return attrs;
}

Attrs with_period(std::int64_t period) {
  Attrs attrs;
  attrs.period = period;
  return attrs;
}

}  // namespace

#define CODA_BINARY(symbol, op, Result, A, B) \
  Result operator symbol(A a, B b) { return make<Result>(Op::op, {a, b}); }
CODA_BINARY(+, add, Tile, Tile, Tile)
CODA_BINARY(-, sub, Tile, Tile, Tile)
CODA_BINARY(*, mul, Tile, Tile, Tile)
CODA_BINARY(/, div, Tile, Tile, Tile)
CODA_BINARY(+, add, Tile, Tile, ColVec)
CODA_BINARY(-, sub, Tile, Tile, ColVec)
CODA_BINARY(*, mul, Tile, Tile, ColVec)
CODA_BINARY(/, div, Tile, Tile, ColVec)
CODA_BINARY(+, add, Tile, Tile, RowVec)
CODA_BINARY(-, sub, Tile, Tile, RowVec)
CODA_BINARY(*, mul, Tile, Tile, RowVec)
CODA_BINARY(+, add, Tile, Tile, Scalar)
CODA_BINARY(-, sub, Tile, Tile, Scalar)
CODA_BINARY(*, mul, Tile, Tile, Scalar)
CODA_BINARY(+, add, ColVec, ColVec, ColVec)
CODA_BINARY(-, sub, ColVec, ColVec, ColVec)
CODA_BINARY(*, mul, ColVec, ColVec, ColVec)
CODA_BINARY(/, div, ColVec, ColVec, ColVec)
CODA_BINARY(*, mul, ColVec, ColVec, Scalar)
CODA_BINARY(+, add, RowVec, RowVec, RowVec)
CODA_BINARY(*, mul, RowVec, RowVec, RowVec)
CODA_BINARY(*, mul, RowVec, RowVec, Scalar)
CODA_BINARY(+, add, Scalar, Scalar, Scalar)
CODA_BINARY(*, mul, Scalar, Scalar, Scalar)
CODA_BINARY(/, div, Scalar, Scalar, Scalar)
#undef CODA_BINARY

Tile operator*(Tile a, double b) { return a * number(a, b); }
Tile operator+(Tile a, double b) { return a + number(a, b); }
Tile operator-(double a, Tile b) { return make<Tile>(Op::sub, {number(b, a), b}); }
Tile operator-(Tile a) { return make<Tile>(Op::neg, {a}); }
ColVec operator*(ColVec a, double b) { return a * number(a, b); }
ColVec operator+(ColVec a, double b) { return make<ColVec>(Op::add, {a, number(a, b)}); }
RowVec operator*(RowVec a, double b) { return a * number(a, b); }

Tile exp(Tile x) { return make<Tile>(Op::exp, {x}); }
Tile log(Tile x) { return make<Tile>(Op::log, {x}); }
Tile tanh(Tile x) { return make<Tile>(Op::tanh, {x}); }
Tile sigmoid(Tile x) { return make<Tile>(Op::sigmoid, {x}); }
Tile rsqrt(Tile x) { return make<Tile>(Op::rsqrt, {x}); }
Tile erf(Tile x) { return make<Tile>(Op::erf, {x}); }
ColVec exp(ColVec x) { return make<ColVec>(Op::exp, {x}); }
ColVec log(ColVec x) { return make<ColVec>(Op::log, {x}); }
ColVec rsqrt(ColVec x) { return make<ColVec>(Op::rsqrt, {x}); }
Tile maximum(Tile a, Tile b) { return make<Tile>(Op::maximum, {a, b}); }

Tile cast(Tile x, DType dtype) {
  Attrs attrs;
  attrs.dtype = dtype;
  return make<Tile>(Op::cast, {x}, attrs);
}

Tile silu(Tile x) {
  const Tile gate = sigmoid(x);
  return x * gate;
}

std::pair<Tile, Tile> split(Tile x, Pairs pairs) {
  const Attrs attrs = with_pairs(pairs);
  const Tile first = make<Tile>(Op::first_of_pair, {x}, attrs);
  const Tile second = make<Tile>(Op::second_of_pair, {x}, attrs);
  return {first, second};
}

Tile join(Tile first, Tile second, Pairs pairs) {
  return make<Tile>(Op::join, {first, second}, with_pairs(pairs));
}

Tile rotate(Tile x, IntCol positions, RowVec frequencies, Pairs pairs) {
  return make<Tile>(Op::rotate, {x, positions, frequencies}, with_pairs(pairs));
}

Tile cols(Tile acc, std::int64_t lo, std::int64_t hi) {
  Attrs attrs;
  attrs.lo = lo;
  attrs.hi = hi;
  return make<Tile>(Op::cols, {acc}, attrs);
}

Tile segment_sum(Tile x, std::int64_t period) {
  return make<Tile>(Op::segment_sum, {x}, with_period(period));
}
Tile segment_broadcast(Tile x, std::int64_t period) {
  return make<Tile>(Op::segment_broadcast, {x}, with_period(period));
}

Partial row_sum(Tile x) { return make<Partial>(Op::row_sum, {x}); }
Partial row_max(Tile x) { return make<Partial>(Op::row_max, {x}); }
Partial col_sum(Tile x) { return make<Partial>(Op::col_sum, {x}); }
Partial online_lse(Tile x) { return make<Partial>(Op::lse, {x}); }

Partial pick_col(Tile x, IntCol targets, std::int64_t ignore_index) {
  Attrs attrs;
  attrs.ignore_index = ignore_index;
  return make<Partial>(Op::pick, {x, targets}, attrs);
}

ColVec whole_row_sum(Tile x) { return make<ColVec>(Op::row_sum, {x}); }
ColVec whole_row_max(Tile x) { return make<ColVec>(Op::row_max, {x}); }
ColVec whole_lse(Tile x) { return make<ColVec>(Op::lse, {x}); }
ColVec whole_log_sum(Tile x) { return make<ColVec>(Op::log_sum, {x}); }

}  // namespace coda
