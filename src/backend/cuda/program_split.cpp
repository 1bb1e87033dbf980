#include "backend/cuda/program_split.h"

#include <algorithm>

#include "base/check.h"

namespace coda::cuda {

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

i64 rows_of(const Program& program, i64 tokens) {
  return program.rows.symbol == Dim::Symbol::M ? tokens : program.rows.num;
}

/// Floats from a row of acc to the next: rows begin at multiples of 64 bytes.
i64 acc_stride(const Program& program) { return (program.cols.num + 15) / 16 * 16; }

Operand acc_operand(const Program& program, bool output) {
  Operand acc;
  acc.name = "acc";
  acc.rows = program.rows;
  acc.cols = program.cols;
  acc.output = output;
  return acc;
}

/// The product alone, stored in fp32 as one more operand.
Program product_of(const Program& program) {
  Program product;
  product.name = program.name + "_product";
  product.form = Form::gemm;
  product.gemm = program.gemm;
  product.rows = program.rows;
  product.cols = program.cols;
  product.operands = program.operands;
  product.operands.push_back(acc_operand(program, true));
  const auto add = [&](Op op, std::vector<i32> args, i64 lo, i64 hi) {
    Value v;
    v.op = op;
    v.args = std::move(args);
    v.attrs.lo = op == Op::cols ? lo : 0;
    v.attrs.hi = op == Op::cols ? hi : 0;
    v.cols = Dim::number(hi - lo);
    v.name = fmt::format("product_{}", product.values.size());
    product.values.push_back(v);
    return static_cast<i32>(product.values.size()) - 1;
  };
  const i64 width = program.cols.num;
  i32 all = add(Op::acc, {}, 0, width);
  // Each row block of B by itself: a tile of C never crosses from one to the next.
  if (program.gemm.transpose_b && program.gemm.b.size() > 1) {
    std::vector<i32> blocks;
    i64 lo = 0;
    for (const i32 b : program.gemm.b) {
      const i64 hi = lo + program.operands[at(b)].rows.num;
      blocks.push_back(add(Op::cols, {0}, lo, hi));
      lo = hi;
    }
    all = add(Op::cat_cols, blocks, 0, width);
  }
  add(Op::store_tile, {all}, 0, width);
  product.values.back().operand = static_cast<i32>(product.operands.size()) - 1;
  product.values.back().name.clear();
  return product;
}

bool is_store(Op op) {
  return op == Op::store_tile || op == Op::store_partial || op == Op::store_vector;
}

/// Rows [first, first + count) of acc; count -1: all.
struct Window {
  i64 first = 0, count = -1;
  bool operator==(const Window&) const = default;
};

/// Of each value: the window that it, or what it is made of, was cut to.
std::vector<Window> windows_of(const Program& program) {
  std::vector<Window> windows(program.values.size());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Value& v = program.values[i];
    for (const i32 arg : v.args) {
      if (windows[at(arg)].count >= 0) windows[i] = windows[at(arg)];
    }
    if (v.op != Op::rows) continue;
    internal_check(windows[i].count < 0, "cuda: {}: rows of rows", program.name);
    windows[i] = {v.attrs.lo, v.attrs.hi - v.attrs.lo};
  }
  return windows;
}

/// What the program stores of one window, as a row program.
Program epilogue_of(const Program& program, const std::vector<Window>& windows, Window window) {
  Program epilogue = program;
  epilogue.form = Form::rows;
  epilogue.gemm = {};
  if (window.count >= 0) epilogue.rows = Dim::number(window.count);
  epilogue.operands.push_back(acc_operand(program, false));
  Value nothing;
  nothing.op = Op::constant;
  nothing.kind = Kind::scalar;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    Value& v = epilogue.values[i];
    for (i32& arg : v.args) {
      if (program.values[at(arg)].op == Op::rows) arg = program.values[at(arg)].args[0];
    }
    if (v.op == Op::acc) {
      v.op = Op::load_tile;
      v.operand = static_cast<i32>(epilogue.operands.size() - 1);
    }
    if (v.op == Op::rows || (is_store(v.op) && windows[i] != window)) v = nothing;
  }
  return epilogue;
}

Step step_of(const Step& step, Program program) {
  Step made = step;
  made.program = std::make_shared<Program>(std::move(program));
  made.slices.push_back(step.slices.front());  // acc is bound apart and has no buffer of its own
  return made;
}

class SplitStep final : public StepKernel {
 public:
  SplitStep(const Step& step, const Plan& plan, const StepContext& context)
      : split_(step), acc_(context.workspace) {
    product_ = make_gemm_kernel(split_.product(), plan, context);  // which needs no workspace
    StepContext behind = context;
    behind.workspace += split_.acc_bytes(context.max_tokens);
    for (const ProgramSplit::Part& part : split_.parts()) {
      parts_.push_back(make_rows_kernel(part.step, plan, behind));
    }
  }

  std::vector<KernelSource> sources() const override {
    std::vector<KernelSource> all = product_->sources();
    for (const auto& part : parts_) {
      for (KernelSource& source : part->sources()) all.push_back(std::move(source));
    }
    return all;
  }

  void bind(std::span<const TensorView> views, i64 tokens) override {
    const auto all = split_.product_views(views, tokens, reinterpret_cast<void*>(acc_));
    product_->bind(all, tokens);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i]->bind(split_.part_views(split_.parts()[i], all), tokens);
    }
  }

  void launch(const Stream& stream) override {
    product_->launch(stream);
    for (const auto& part : parts_) part->launch(stream);
  }

 private:
  ProgramSplit split_;
  DevicePointer acc_;
  std::unique_ptr<StepKernel> product_;
  std::vector<std::unique_ptr<StepKernel>> parts_;
};

}  // namespace

ProgramSplit::ProgramSplit(const Step& step)
    : program_(step.program), product_(step_of(step, product_of(*step.program))) {
  const std::vector<Window> windows = windows_of(*program_);
  std::vector<Window> stored;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (!is_store(program_->values[i].op)) continue;
    if (std::find(stored.begin(), stored.end(), windows[i]) != stored.end()) continue;
    stored.push_back(windows[i]);
    parts_.push_back(
        {step_of(step, epilogue_of(*program_, windows, windows[i])), windows[i].first});
  }
}

std::size_t ProgramSplit::acc_bytes(i64 tokens) const {
  const i64 floats = rows_of(*program_, tokens) * acc_stride(*program_);
  return static_cast<std::size_t>((floats * 4 + 255) / 256 * 256);
}

std::vector<TensorView> ProgramSplit::product_views(std::span<const TensorView> views, i64 tokens,
                                                    void* memory) const {
  std::vector<TensorView> all(views.begin(), views.end());
  all.push_back(
      {memory, DType::f32, rows_of(*program_, tokens), program_->cols.num, acc_stride(*program_)});
  return all;
}

std::vector<TensorView> ProgramSplit::part_views(const Part& part,
                                                 std::span<const TensorView> product_views) const {
  std::vector<TensorView> views(product_views.begin(), product_views.end());
  const Program& program = *part.step.program;
  if (program.rows == program_->rows) return views;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const Operand& operand = program.operands[i];
    if (operand.output || operand.rows != program_->rows) continue;
    TensorView& view = views[i];
    view.data = view.as<std::byte>() +
                static_cast<std::size_t>(part.first_row * view.stride) * size_of(view.dtype);
    view.rows = program.rows.num;
  }
  return views;
}

std::unique_ptr<StepKernel> make_split_kernel(const Step& step, const Plan& plan,
                                              const StepContext& context) {
  return std::make_unique<SplitStep>(step, plan, context);
}

std::size_t split_workspace_bytes(const Step& step, const Plan& plan, i64 max_tokens) {
  const ProgramSplit split(step);
  std::size_t rows = 0;
  for (const ProgramSplit::Part& part : split.parts()) {
    rows = std::max(rows, rows_workspace_bytes(part.step, plan, max_tokens));
  }
  return split.acc_bytes(max_tokens) + rows;
}

}  // namespace coda::cuda
