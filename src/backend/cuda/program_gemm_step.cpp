// Form::gemm steps on the GPU: binding and launching what ProgramGemm describes.
#include <algorithm>
#include <limits>

#include "backend/cuda/gpc_map.h"
#include "backend/cuda/program_gemm.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

using i64 = std::int64_t;
constexpr unsigned kMainloopThreads = 384;  // tile_config.cuh

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  return {first, first + sizeof(T)};
}

/// Vectors and products start before the kernel before them has ended. False: one after the other.
constexpr bool kStartsEarly = true;

/// Sessions of so few rows continue sequences, mostly one token at a time.
constexpr i64 kFewRows = 256;

class ProgramGemmKernel : public StepKernel {
 public:
  ProgramGemmKernel(std::shared_ptr<const Program> program, const StepContext& context)
      : program_(std::move(program)), context_(context) {}

  /// Which kernels run depends on alignment and sizes; these are the most likely ones.
  std::vector<KernelSource> sources() const override {
    std::vector<KernelSource> sources;
    if (program_.plan().stage_count > 0)
      sources.push_back(vectors_source(program_.program(), program_.plan()));
    for (const EpilogueLaunch& launch : program_.plan().launches) {
      GemmShape shape = program_.shape(launch, context_.max_tokens);
      if (shape.m > 0 && shape.m <= kFewRows && ProgramGemm::may_be_one_row(launch, shape)) {
        sources.push_back(program_.plain_source(launch, true, {.staged = true}, true));
        if (shape.m == 1) continue;
      }
      if (shape.operand == DType::f32 || shape.m == 0 || shape.k == 0) {
        sources.push_back(program_.plain_source(launch));
      } else {
        const GemmConfig& config = program_.choose(launch, shape, Device::get().sm_count());
        sources.push_back(
            program_.source(launch, config, true,
                            chosen(best_form(program_.program(), program_.plan(), launch, config,
                                             ceil_div(shape.k, 64)))));
      }
    }
    return sources;
  }

  void bind(std::span<const TensorView> views, i64 tokens) override {
    const ProgramGemm::Run run{views, tokens, reinterpret_cast<char*>(context_.workspace),
                               encode_operand};
    launches_.clear();
    for (ProgramLaunch& launch : program_.vectors(run)) {
      launch.early = true;
      add(std::move(launch));
    }
    add_gemms(program_, run);
  }

  void launch(const Stream& stream) override {
    for (const Ready& ready : launches_) {
      std::vector<void*> arguments;
      for (const auto& bytes : ready.launch.parameters)
        arguments.push_back(const_cast<std::byte*>(bytes.data()));
      const bool early = ready.launch.early && kStartsEarly;
      ready.kernel.launch(stream, ready.launch.grid, ready.launch.block, ready.launch.cluster,
                          arguments, 1, early ? Start::early : Start::in_order);
    }
  }

 private:
  struct Ready {
    Kernel kernel;
    ProgramLaunch launch;
  };

  /// Kernels of the mainloop start early. Of a program with vectors only the one right after them
  /// may: it multiplies while they are being made (kVectorsFirst in gemm_sm90.cuh), and they have
  /// waited for all that came before.
  void add_gemms(const ProgramGemm& program, const ProgramGemm::Run& run) {
    const bool has_vectors = program.plan().stage_count > 0;
    const std::size_t vectors = launches_.size();
    for (const EpilogueLaunch& launch : program.plan().launches) {
      GemmShape shape;
      MatrixBlock a;
      std::vector<MatrixBlock> b;
      const bool fits = program.operands(launch, run, shape, a, b);
      if (shape.m == 0) continue;
      if (fits && !program.is_one_row(launch, run)) {
        ProgramLaunch gemm = mainloop(program, launch, run, shape, a, b);
        gemm.early = !has_vectors || (vectors > 0 && launches_.size() == vectors);
        add(std::move(gemm));
      } else {
        add(program.plain(launch, run));
      }
    }
  }

  EpilogueForm chosen(EpilogueForm form) const {
    if (context_.simple_epilogues) form.ring = form.deferred = false;
    return form;
  }

  void add(ProgramLaunch launch) {
    if (launch.grid == 0) return;
    Kernel kernel = KernelStore::get().load(launch.source);
    launches_.push_back({std::move(kernel), std::move(launch)});
  }

  ProgramLaunch mainloop(const ProgramGemm& program, const EpilogueLaunch& launch,
                         const ProgramGemm::Run& run, const GemmShape& shape, const MatrixBlock& a,
                         const std::vector<MatrixBlock>& b) const {
    const GemmConfig& config = program.choose(launch, shape, Device::get().sm_count());
    ProgramLaunch made;
    const EpilogueForm form = chosen(program.form(launch, config, run, shape.k));
    made.source = program.source(launch, config, program.paired(run), form);
    const Kernel kernel = KernelStore::get().load(made.source);

    // Operands. M/N-major ones come in boxes of 64 rows of K.
    coda_device::OperandParams operands{};
    const int slice_a = config.tile_m() / (config.cluster_n > 1 ? config.cluster() : 1);
    const int shared_b = launch.parts == 1 && config.cluster_m > 1 ? config.cluster() : 1;
    const int slice_b = config.tile_n / launch.parts / shared_b;
    operands.a = encode_operand(a, shape.operand, shape.a == Major::k ? slice_a : 64);
    for (std::size_t i = 0; i < b.size(); ++i)
      operands.b[i] = encode_operand(b[i], shape.operand, shape.b == Major::k ? slice_b : 64);

    // The schedule: blocks of columns, and along K the row blocks of an N-major B.
    coda_device::Schedule schedule{};
    schedule.m = static_cast<int>(shape.m);
    schedule.n = static_cast<int>(shape.n);
    schedule.k = static_cast<int>(shape.k);
    schedule.axis_m.first[1] =
        static_cast<int>(ceil_div(shape.m, config.tile_m() * config.cluster_m));
    schedule.axis_m.offset[1] = schedule.m;
    const i64 cluster_columns = config.tile_n * config.cluster_n;
    for (std::size_t i = 0; i < launch.blocks.size(); ++i) {
      const i64 columns = launch.parts * launch.blocks[i].columns;
      schedule.axis_n.first[i + 1] =
          schedule.axis_n.first[i] + static_cast<int>(ceil_div(columns, cluster_columns));
      schedule.axis_n.offset[i + 1] = schedule.axis_n.offset[i] + static_cast<int>(columns);
    }
    const auto lists = shape.b == Major::k ? 1 : program.program().gemm.b.size();
    for (std::size_t i = 0; i < lists; ++i) {
      const i64 length = shape.b == Major::k ? shape.k : b[i].rows;
      schedule.axis_k.first[i + 1] =
          schedule.axis_k.first[i] + static_cast<int>(ceil_div(length, 64));
      schedule.axis_k.offset[i + 1] = schedule.axis_k.offset[i] + static_cast<int>(length);
    }
    schedule.tiles_m = schedule.axis_m.first[1];
    schedule.tiles_n = schedule.axis_n.first[launch.blocks.size()];
    schedule.k_blocks = schedule.axis_k.first[lists];
    deal_tiles(schedule, config, kernel.max_active_clusters(kMainloopThreads, config.cluster()),
               *context_.gemm);
    if (form.deferred) {
      const i64 steps = deferred_steps(program.program(), program.plan(), launch, config);
      schedule.flush_period =
          static_cast<int>(std::clamp<i64>(schedule.k_blocks / (steps + 1), 1, 4));
    }

    made.grid = static_cast<unsigned>(schedule.workers * config.cluster());
    made.block = kMainloopThreads;
    made.cluster = static_cast<unsigned>(config.cluster());
    made.parameters = {bytes_of(operands), program.epilogue_parameters(launch, run, form),
                       bytes_of(schedule)};
    return made;
  }

  ProgramGemm program_;
  StepContext context_;
  std::vector<Ready> launches_;
};

}  // namespace

std::unique_ptr<StepKernel> make_gemm_kernel(const Step& step, const Plan&,
                                             const StepContext& context) {
  return std::make_unique<ProgramGemmKernel>(step.program, context);
}

std::size_t gemm_workspace_bytes(const Step& step, const Plan&, i64 max_tokens) {
  return ProgramGemm(step.program).workspace_bytes(max_tokens);
}

}  // namespace coda::cuda
