// Runs a plan program by program on whole matrices. Only stores and finished partials pass from one
// program to the next, as on every backend.

#include <span>
#include <utility>
#include <vector>

#include "backend/bindings.h"
#include "backend/reference/evaluate.h"
#include "backend/reference/opaque_kernels.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda {

namespace {

using reference::Matrix;

class ProgramRun {
 public:
  ProgramRun(const Program& program, const std::vector<TensorView>& operands, std::int64_t tokens,
             reference::Precision precision)
      : program_(program), operands_(operands), tokens_(tokens), precision_(precision) {}

  void run() {
    values_.resize(program_.values.size());
    for (std::size_t i = 0; i < values_.size(); ++i) step(i);
    for (const auto& [operand, matrix] : stores_) {
      const Operand& target = program_.operands[static_cast<std::size_t>(operand)];
      reference::write_matrix(operands_[static_cast<std::size_t>(operand)], matrix,
                              target.accumulate);
    }
  }

 private:
  std::int64_t rows_of(Dim rows) const {
    return rows.symbol == Dim::Symbol::M ? tokens_ : rows.num;
  }

  const Matrix& arg(const Value& value, std::size_t i) const {
    return values_[static_cast<std::size_t>(value.args[i])];
  }

  Matrix read(std::int32_t operand) const {
    return reference::read_matrix(operands_[static_cast<std::size_t>(operand)]);
  }

  Matrix accumulator() const {
    const Gemm& gemm = program_.gemm;
    std::vector<Matrix> blocks;
    std::int64_t rows = 0;
    for (const std::int32_t b : gemm.b) {
      blocks.push_back(read(b));
      rows += blocks.back().rows;
    }
    std::vector<const Matrix*> parts;
    for (const Matrix& block : blocks) parts.push_back(&block);
    const Matrix b = reference::evaluate(Op::cat_rows, {}, parts, rows, blocks[0].cols, false, {});
    Matrix acc = reference::multiply(read(gemm.a), b, gemm.transpose_a, gemm.transpose_b);
    if (precision_.f32) {
      for (double& x : acc.v) x = static_cast<float>(x);
    }
    return acc;
  }

  Matrix load(const Value& value) const {
    Matrix matrix = read(value.operand);
    if (value.attrs.finish == Finish::none) return matrix;
    return reference::finished(matrix, value.kind, value.attrs.finish);
  }

  void step(std::size_t index) {
    const Value& value = program_.values[index];
    switch (value.op) {
      case Op::acc:
        values_[index] = accumulator();
        return;
      case Op::load_tile:
      case Op::load_row:
      case Op::load_col:
      case Op::load_scalar:
        values_[index] = load(value);
        return;
      case Op::store_tile:
      case Op::store_vector:
      case Op::store_partial:
        // A program reads all that it reads before it writes: blocks may be tiles of one buffer.
        stores_.emplace_back(value.operand, arg(value, 0));
        return;
      default:
        break;
    }
    std::vector<const Matrix*> args;
    for (std::size_t i = 0; i < value.args.size(); ++i) args.push_back(&arg(value, i));
    if (value.partial) {
      values_[index] = reference::partials_of(value.op, value.attrs, args);
      return;
    }
    const bool tile = value.kind == Kind::tile || value.kind == Kind::weight;
    values_[index] = reference::evaluate(value.op, value.attrs, args, result_rows(value, args),
                                         result_cols(value), tile, precision_);
  }

  std::int64_t result_rows(const Value& value, const std::vector<const Matrix*>& args) const {
    if (value.kind == Kind::row || value.kind == Kind::scalar) return 1;
    if (value.op == Op::rows) return value.attrs.hi - value.attrs.lo;
    for (std::size_t i = 0; i < args.size(); ++i) {
      const Kind kind = program_.values[static_cast<std::size_t>(value.args[i])].kind;
      if (kind == Kind::tile || kind == Kind::weight || kind == Kind::col) return args[i]->rows;
    }
    return rows_of(program_.rows);
  }

  static std::int64_t result_cols(const Value& value) {
    return value.kind == Kind::col || value.kind == Kind::scalar ? 1 : value.cols.num;
  }

  const Program& program_;
  const std::vector<TensorView>& operands_;
  std::int64_t tokens_;
  reference::Precision precision_;
  std::vector<Matrix> values_;
  std::vector<std::pair<std::int32_t, Matrix>> stores_;
};

class ReferenceSession final : public Session {
 public:
  ReferenceSession(std::shared_ptr<const Plan> plan, std::int64_t max_tokens, DType compute)
      : bindings_(
            std::move(plan), max_tokens,
            {.widen = compute == DType::f64, .reuse = false, .holds_f64 = true, .poison = true}),
        precision_{.f32 = compute == DType::f32} {}

  void bind(std::string_view name, const TensorView& view) override { bindings_.bind(name, view); }

  void run(Phase phase, std::int64_t tokens) override {
    bindings_.begin(phase, tokens);
    const Plan& plan = bindings_.plan();
    for (const Step& step : phase == Phase::forward ? plan.forward : plan.backward) {
      std::vector<TensorView> views;
      for (const Slice& slice : step.slices) views.push_back(bindings_.view(slice, step.piece));
      if (step.program) {
        const std::int64_t rows = rows_of(step.piece, tokens).rows;
        ProgramRun(*step.program, views, rows, precision_).run();
        continue;
      }
      const auto inputs = static_cast<std::size_t>(step.n_inputs);
      const std::span<const TensorView> all(views);
      reference::run_opaque(step.opaque, step.attrs, all.first(inputs), all.subspan(inputs),
                            step.accumulates);
    }
    bindings_.end(phase);
  }

  TensorView buffer(std::string_view name) const override { return bindings_.view(name); }

 private:
  Bindings bindings_;
  reference::Precision precision_;
};

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(DType compute) : compute_(compute) {}
  std::string_view name() const override { return "reference"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                   std::int64_t max_tokens) override {
    return std::make_unique<ReferenceSession>(std::move(plan), max_tokens, compute_);
  }

 private:
  DType compute_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType compute) {
  if (compute != DType::f32 && compute != DType::f64) {
    throw_error<UsageError>(
        "reference backend: expected to compute in f32 or f64, got {}. Memory "
        "types belong to the plan.",
        name_of(compute));
  }
  return std::make_unique<ReferenceBackend>(compute);
}

}  // namespace coda
