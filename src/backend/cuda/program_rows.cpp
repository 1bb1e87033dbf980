#include "backend/cuda/program_rows.h"

#include <algorithm>

#include "backend/arena.h"
#include "backend/cuda/device/rows_params.cuh"
#include "backend/cuda/step_kernel.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

using coda_device::FinishJob;
using coda_device::RowsHeader;
using coda_device::RowsOperand;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t padded(std::int64_t floats) { return ceil_div(floats, 64) * 64; }

std::vector<std::int64_t> granules_of(const Step& step, const Plan& plan) {
  std::vector<std::int64_t> granules;
  for (const Slice& slice : step.slices) {
    granules.push_back(plan.buffers[static_cast<std::size_t>(slice.buffer)].granules);
  }
  return granules;
}

/// Elements of the vector that a partial operand becomes.
std::int64_t finished_count(const Program& program, const PartialLoad& load, std::int64_t tokens) {
  const Operand& operand = program.operands[static_cast<std::size_t>(load.operand)];
  switch (operand.kind) {
    case Kind::col:
      return program.rows.symbol == Dim::Symbol::M ? tokens : program.rows.num;
    case Kind::row:
      return operand.cols.num;
    default:
      return 1;
  }
}

/// Floats of the workspace for one finished vector.
std::int64_t finished_floats(const Program& program, const PartialLoad& load, std::int64_t tokens) {
  if (load.inside) return 0;
  return padded(finished_count(program, load, tokens)) * (is_online(load.finish) ? 2 : 1);
}

}  // namespace

/// A kernel's parameter: a header, then operands, then finished vectors.
class RowsProgram::Parameter {
 public:
  explicit Parameter(std::size_t operands)
      : bytes_(sizeof(RowsHeader) + operands * sizeof(RowsOperand)) {}
  RowsHeader& header() { return *reinterpret_cast<RowsHeader*>(bytes_.data()); }
  RowsOperand& operand(std::size_t i) {
    return reinterpret_cast<RowsOperand*>(bytes_.data() + sizeof(RowsHeader))[i];
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

namespace {

/// Columns of which the narrowest tile has 16 bytes.
int most_columns(const Program& program) {
  std::size_t narrowest = 4;
  for (const Operand& operand : program.operands) {
    if (operand.kind == Kind::tile) narrowest = std::min(narrowest, size_of(operand.dtype));
  }
  return static_cast<int>(16 / narrowest);
}

/// Whether chunks of so many columns begin where one instruction can move them.
bool aligned(const Program& program, std::span<const TensorView> views, int columns) {
  for (std::size_t i = 0; i < program.operands.size(); ++i) {
    const Operand& operand = program.operands[i];
    if (operand.partial || operand.kind == Kind::col || operand.kind == Kind::scalar) continue;
    const std::size_t element = size_of(operand.dtype);
    const std::size_t unit = std::min<std::size_t>(16, static_cast<std::size_t>(columns) * element);
    const auto address = reinterpret_cast<std::uintptr_t>(views[i].data);
    const auto row = static_cast<std::size_t>(views[i].stride) * element;
    if (address % 16 != 0 || (views[i].rows > 1 && row % unit != 0)) return false;
  }
  return true;
}

}  // namespace

RowsProgram::RowsProgram(const Step& step, const Plan& plan)
    : program_(step.program), partials_(partial_loads(*program_, granules_of(step, plan))) {
  if (program_->form == Form::rows) {
    wide_ = rows_kernel(*program_, partials_, most_columns(*program_));
  } else {
    vectors_ = vector_kernels(*program_, partials_);
  }
  for (const PartialLoad& load : partials_) jobs_ += load.inside ? 0 : 1;
}

std::vector<KernelSource> RowsProgram::sources() const {
  std::vector<KernelSource> all;
  if (jobs_ > 0) all.push_back(finish_source(jobs_));
  for (const KernelSource* source : {&wide_.source, &vectors_.sums, &vectors_.stores}) {
    if (!source->text.empty()) all.push_back(*source);
  }
  return all;
}

std::size_t RowsProgram::workspace_bytes(std::int64_t max_tokens) const {
  std::int64_t floats = padded(vectors_.sum_count);
  for (const PartialLoad& load : partials_) floats += finished_floats(*program_, load, max_tokens);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

std::vector<RowsLaunch> RowsProgram::launches(std::span<const TensorView> views,
                                              std::int64_t tokens, float* workspace,
                                              unsigned* error_flag) {
  const std::int64_t rows = program_->rows.symbol == Dim::Symbol::M ? tokens : program_->rows.num;
  Parameter parameter(program_->operands.size() + partials_.size());
  parameter.header() = {rows, workspace, error_flag};
  for (std::size_t i = 0; i < program_->operands.size(); ++i) {
    parameter.operand(i) = {views[i].data, views[i].stride};
  }
  std::vector<RowsLaunch> all;
  if (jobs_ > 0) add_finish(all, parameter, views, tokens, workspace);
  const auto add = [&](const KernelSource& source, std::int64_t blocks, int threads,
                       std::size_t stores = 1) {
    if (source.text.empty() || blocks == 0) return;
    all.push_back({&source, static_cast<unsigned>(blocks), static_cast<unsigned>(stores),
                   static_cast<unsigned>(threads), parameter.bytes()});
  };
  if (program_->form == Form::rows) {
    const bool fits = aligned(*program_, views, wide_.columns);
    if (!fits && narrow_.source.text.empty()) narrow_ = rows_kernel(*program_, partials_, 1);
    const RowsKernel& kernel = fits ? wide_ : narrow_;
    add(kernel.source, ceil_div(rows, kernel.rows), kernel.threads);
    return all;
  }
  std::int64_t longest = 0;
  for (const std::int32_t operand : vectors_.stored) {
    const Operand& o = program_->operands[static_cast<std::size_t>(operand)];
    longest = std::max(longest, o.kind == Kind::col ? rows : o.cols.num);
  }
  add(vectors_.sums, 1, VectorKernels::kSumThreads);
  add(vectors_.stores, ceil_div(longest, VectorKernels::kStoreThreads),
      VectorKernels::kStoreThreads, vectors_.stored.size());
  return all;
}

/// Partials become vectors behind the sums in the workspace.
void RowsProgram::add_finish(std::vector<RowsLaunch>& all, Parameter& parameter,
                             std::span<const TensorView> views, std::int64_t tokens,
                             float* workspace) {
  float* next = workspace + padded(vectors_.sum_count);
  std::vector<FinishJob> jobs;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < partials_.size(); ++i) {
    const PartialLoad& load = partials_[i];
    if (load.inside) continue;
    const TensorView& view = views[static_cast<std::size_t>(load.operand)];
    const std::int64_t count = finished_count(*program_, load, tokens);
    const bool online = is_online(load.finish);
    FinishJob job{};
    job.data = view.as<const float>();
    job.out = next;
    job.stride = view.stride;
    job.plane = padded(count);
    job.count = count;
    job.granules = static_cast<int>(online ? view.rows / 2 : view.rows);
    job.kind = online                       ? coda_device::kFinishOnline
               : load.finish == Finish::max ? coda_device::kFinishMax
                                            : coda_device::kFinishSum;
    jobs.push_back(job);
    parameter.operand(program_->operands.size() + i) = {next, job.plane};
    next += finished_floats(*program_, load, tokens);
    longest = std::max(longest, count);
  }
  if (finish_.text.empty()) finish_ = finish_source(jobs_);
  if (longest == 0) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(jobs.data());
  all.push_back({&finish_,
                 static_cast<unsigned>(ceil_div(longest, coda_device::kFinishColumns)),
                 static_cast<unsigned>(jobs_),
                 static_cast<unsigned>(coda_device::kFinishColumns * coda_device::kFinishSlices),
                 {bytes, bytes + jobs.size() * sizeof(FinishJob)}});
}

namespace {

class RowsStep final : public StepKernel {
 public:
  RowsStep(const Step& step, const Plan& plan, const StepContext& context)
      : rows_(step, plan), context_(context) {}

  std::vector<KernelSource> sources() const override { return rows_.sources(); }

  void bind(std::span<const TensorView> views, std::int64_t tokens) override {
    launches_ = rows_.launches(views, tokens, reinterpret_cast<float*>(context_.workspace),
                               reinterpret_cast<unsigned*>(context_.error_flag));
    kernels_.clear();
    for (const RowsLaunch& launch : launches_) {
      kernels_.push_back(KernelStore::get().load(*launch.source));
    }
  }

  void launch(const Stream& stream) override {
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      RowsLaunch& l = launches_[i];
      kernels_[i].launch(stream, l.grid, l.block, 1, {l.parameter.data()}, l.grid_y);
    }
  }

 private:
  RowsProgram rows_;
  StepContext context_;
  std::vector<RowsLaunch> launches_;
  std::vector<Kernel> kernels_;
};

}  // namespace

std::size_t rows_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens) {
  return RowsProgram(step, plan).workspace_bytes(max_tokens);
}

std::unique_ptr<StepKernel> make_rows_kernel(const Step& step, const Plan& plan,
                                             const StepContext& context) {
  return std::make_unique<RowsStep>(step, plan, context);
}

}  // namespace coda::cuda
