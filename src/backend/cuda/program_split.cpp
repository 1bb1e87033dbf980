#include "backend/cuda/program_split.h"

#include <algorithm>

#include "backend/cuda/program_rows.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

std::int64_t rows_of(const Program& program, std::int64_t tokens) {
  return program.rows.symbol == Dim::Symbol::M ? tokens : program.rows.num;
}

/// Floats from a row of acc to the next: rows begin at multiples of 64 bytes.
std::int64_t acc_stride(const Program& program) { return (program.cols.num + 15) / 16 * 16; }

std::size_t acc_bytes(const Program& program, std::int64_t tokens) {
  const std::int64_t floats = rows_of(program, tokens) * acc_stride(program);
  return static_cast<std::size_t>((floats * 4 + 255) / 256 * 256);
}

/// The epilogue as a step: acc is bound apart, so its slice names no buffer of its own.
Step epilogue_step(const Step& step) {
  Step epilogue = step;
  epilogue.program = std::make_shared<Program>(epilogue_of(*step.program));
  epilogue.slices.push_back(step.slices.front());
  return epilogue;
}

MatrixBlock block_of(const TensorView& view) {
  return {reinterpret_cast<DevicePointer>(view.data), view.rows, view.cols, view.stride};
}

class SplitStep final : public StepKernel {
 public:
  SplitStep(const Step& step, const Plan& plan, const StepContext& context)
      : program_(step.program),
        acc_(context.workspace),
        context_(context),
        rows_(epilogue_step(step), plan) {}

  std::vector<KernelSource> sources() const override { return rows_.sources(); }

  void bind(std::span<const TensorView> views, std::int64_t tokens) override {
    const Program& p = *program_;
    const TensorView acc{reinterpret_cast<void*>(acc_), DType::f32, rows_of(p, tokens), p.cols.num,
                         acc_stride(p)};
    bind_gemm(views, tokens, acc);
    std::vector<TensorView> all(views.begin(), views.end());
    all.push_back(acc);
    auto* workspace = reinterpret_cast<float*>(acc_ + acc_bytes(p, context_.max_tokens));
    launches_ =
        rows_.launches(all, tokens, workspace, reinterpret_cast<unsigned*>(context_.error_flag));
    kernels_.clear();
    for (const RowsLaunch& launch : launches_) {
      kernels_.push_back(KernelStore::get().load(*launch.source));
    }
  }

  void launch(const Stream& stream) override {
    for (const Gemm& gemm : gemms_) gemm.launch(stream, Start::in_order);
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      RowsLaunch& l = launches_[i];
      kernels_[i].launch(stream, l.grid, l.block, 1, {l.parameter.data()}, l.grid_y);
    }
  }

 private:
  void bind_gemm(std::span<const TensorView> views, std::int64_t tokens, const TensorView& acc) {
    const coda::Gemm& gemm = program_->gemm;
    const TensorView& a = views[static_cast<std::size_t>(gemm.a)];
    GemmShape shape;
    shape.m = acc.rows;
    shape.n = acc.cols;
    shape.k = gemm.k.symbol == Dim::Symbol::M ? tokens : gemm.k.num;
    shape.a = gemm.transpose_a ? Major::mn : Major::k;
    shape.b = gemm.transpose_b ? Major::k : Major::mn;
    shape.operand = a.dtype;
    shape.output = DType::f32;
    shape.accumulate = false;
    GemmOperands operands;
    operands.a = block_of(a);
    for (const std::int32_t b : gemm.b) {
      operands.b.push_back(block_of(views[static_cast<std::size_t>(b)]));
    }
    operands.c = {block_of(acc)};
    gemms_.clear();
    if (shape.b == Major::k || operands.b.size() == 1 || cuda::Gemm::fits_tma(shape, operands)) {
      gemms_.emplace_back(shape, operands, *context_.gemm);
      return;
    }
    // Row blocks along K that one launch cannot take: block by block, into the same acc.
    const std::vector<MatrixBlock> blocks = operands.b;
    std::int64_t first = 0;
    for (const MatrixBlock& b : blocks) {
      shape.k = b.rows;
      operands.b = {b};
      operands.a = block_of(a);
      operands.a.pointer += static_cast<DevicePointer>(first) * size_of(a.dtype);
      operands.a.columns = b.rows;
      gemms_.emplace_back(shape, operands, *context_.gemm);
      shape.accumulate = true;
      first += b.rows;
    }
  }

  std::shared_ptr<const Program> program_;
  DevicePointer acc_;
  StepContext context_;
  RowsProgram rows_;
  std::vector<cuda::Gemm> gemms_;
  std::vector<RowsLaunch> launches_;
  std::vector<Kernel> kernels_;
};

}  // namespace

bool can_split(const Program& program) {
  return std::none_of(program.values.begin(), program.values.end(),
                      [](const Value& v) { return v.op == Op::rows || v.op == Op::cat_rows; });
}

Program epilogue_of(const Program& program) {
  Program epilogue = program;
  epilogue.form = Form::rows;
  epilogue.gemm = {};
  Operand acc;
  acc.name = "acc";
  acc.rows = program.rows;
  acc.cols = program.cols;
  epilogue.operands.push_back(acc);
  for (Value& v : epilogue.values) {
    if (v.op != Op::acc) continue;
    v.op = Op::load_tile;
    v.operand = static_cast<std::int32_t>(epilogue.operands.size() - 1);
  }
  return epilogue;
}

std::unique_ptr<StepKernel> make_split_kernel(const Step& step, const Plan& plan,
                                              const StepContext& context) {
  return std::make_unique<SplitStep>(step, plan, context);
}

std::size_t split_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens) {
  return acc_bytes(*step.program, max_tokens) +
         RowsProgram(epilogue_step(step), plan).workspace_bytes(max_tokens);
}

}  // namespace coda::cuda
