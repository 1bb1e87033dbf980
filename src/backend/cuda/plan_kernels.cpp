#include "backend/cuda/plan_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "backend/bindings.h"
#include "backend/cuda/attention_cudnn.h"
#include "backend/cuda/cubin.h"
#include "backend/cuda/device_sources.h"
#include "backend/cuda/program_gemm.h"
#include "backend/cuda/program_rows.h"
#include "backend/cuda/program_split.h"
#include "backend/cuda/step_kernel.h"
#include "base/check.h"
#include "ops/opaque.h"

namespace coda::cuda {
namespace {

constexpr unsigned kMainloopThreads = 384;  // tile_config.cuh

/// Hands out addresses, and no memory: nothing here reads or writes any.
class NoMemory final : public Backend {
 public:
  std::string_view name() const override { return "cuda, explained"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan>, std::int64_t) override {
    throw_error<InternalError>("plan_kernels: expected no session, got one");
  }
  bool on_host() const override { return false; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    next_ += (bytes + 4095) / 4096 * 4096 + 4096;
    return {reinterpret_cast<void*>(next_ - (bytes + 4095) / 4096 * 4096), [](void*) {}};
  }

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 30;
};

/// Views of every step's operands, as a run of `tokens` rows would have them.
class Views {
 public:
  Views(const std::shared_ptr<const Plan>& plan, std::int64_t tokens)
      : bindings_(plan, tokens, {.backend = &memory_}) {
    for (const Buffer& b : plan->buffers) {
      if (b.role != Role::input && b.role != Role::output) continue;
      const Extents extents = b.kind == Kind::list ? Extents{1, 2} : extents_of(b, tokens);
      const auto count = static_cast<std::size_t>(extents.rows * extents.cols);
      const auto at = memory_.allocate(count * size_of(b.dtype));
      bindings_.bind(b.name, {at.get(), b.dtype, extents.rows, extents.cols, extents.cols});
    }
    bindings_.begin(Phase::forward, tokens);
  }
  std::vector<TensorView> of(const Step& step) const {
    std::vector<TensorView> views;
    for (const Slice& slice : step.slices) views.push_back(bindings_.view(slice, step.piece));
    return views;
  }
  char* workspace() { return static_cast<char*>(memory_.allocate(std::size_t{1} << 40).get()); }

 private:
  NoMemory memory_;
  Bindings bindings_;
};

KernelReport report_of(const KernelSource& source) {
  KernelReport report;
  report.name = source.name;
  report.entry = source.entry;
  report.source = source.text;
  report.shared_bytes = source.shared_bytes;
  return report;
}

KernelReport report_of(const ProgramLaunch& launch) {
  KernelReport report = report_of(launch.source);
  report.grid = launch.grid;
  report.block = launch.block;
  report.cluster = launch.cluster;
  return report;
}

std::string text_of(const GemmConfig& c) {
  std::string text = fmt::format("{}: tiles of {} x {}, {} stages, {}", c.name, c.tile_m(),
                                 c.tile_n, c.stages, c.ping_pong ? "ping-pong" : "cooperative");
  if (c.cluster() > 1) text += fmt::format(", clusters of {} x {}", c.cluster_m, c.cluster_n);
  return text;
}

/// One launch of a GEMM program on the mainloop.
KernelReport mainloop_report(const ProgramGemm& program, const EpilogueLaunch& launch,
                             const ProgramGemm::Run& run, const GemmShape& shape, int sm_count) {
  const GemmConfig& config = program.choose(launch, shape, sm_count);
  KernelReport report = report_of(program.source(launch, config, program.paired(run),
                                                 program.form(launch, config, run, shape.k)));
  report.configuration = text_of(config);
  report.block = kMainloopThreads;
  report.cluster = config.cluster();
  // As ProgramGemmKernel lays out its schedule (program_gemm_step.cpp).
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles_m = up(shape.m, config.tile_m() * config.cluster_m);
  std::int64_t tiles_n = 0, k_blocks = 0;
  for (const EpilogueBlock& block : launch.blocks) {
    tiles_n += up(launch.parts * block.columns, config.tile_n * config.cluster_n);
  }
  if (shape.b == Major::k) {
    k_blocks = up(shape.k, 64);
  } else {
    for (const std::int32_t b : program.program().gemm.b) {
      k_blocks += up(run.views[static_cast<std::size_t>(b)].rows, 64);
    }
  }
  const TileSplit split =
      split_tiles(tiles_m * tiles_n, k_blocks, sm_count / config.cluster(), config.split_tail);
  const int cluster = config.cluster();
  report.grid = split.workers * cluster;
  report.order =
      split.split_tiles == 0
          ? fmt::format("K = {} in one piece, ascending", shape.k)
          : fmt::format(
                "K = {} in one piece, ascending, for {} of {} tiles; the last {} are cut "
                "along K into {} shares, added in ascending order",
                shape.k, split.whole_tiles * cluster,
                (split.whole_tiles + split.split_tiles) * cluster, split.split_tiles * cluster,
                split.split_workers * cluster);
  return report;
}

void add_gemms(std::vector<KernelReport>& kernels, const ProgramGemm& program,
               const ProgramGemm::Run& run, int sm_count) {
  for (const EpilogueLaunch& launch : program.plan().launches) {
    GemmShape shape;
    MatrixBlock a;
    std::vector<MatrixBlock> b;
    const bool fits = program.operands(launch, run, shape, a, b);
    if (shape.m == 0) continue;
    if (program.is_one_row(launch, run)) {
      kernels.push_back(report_of(program.plain(launch, run)));
      kernels.back().configuration =
          "one row: a warp sums columns of its own, 16 bytes a lane at a time";
      kernels.back().order =
          fmt::format("K = {} by 32 lanes, each ascending, then as a tree", shape.k);
      continue;
    }
    if (fits) {
      kernels.push_back(mainloop_report(program, launch, run, shape, sm_count));
      continue;
    }
    kernels.push_back(report_of(program.plain(launch, run)));
    kernels.back().configuration =
        shape.operand == DType::f32
            ? "plain: fp32 operands, on the ordinary arithmetic units"
            : "plain: operands that TMA cannot read (rows at multiples of 16 bytes)";
    kernels.back().order = fmt::format("K = {} in pieces of 32, ascending", shape.k);
  }
}

std::vector<KernelReport> gemm_kernels(const Step& step, const std::vector<TensorView>& views,
                                       std::int64_t tokens, char* workspace, int sm_count) {
  const ProgramGemm program(step.program);
  const auto encode = [](const MatrixBlock&, DType, int) { return coda_device::TensorMap{}; };
  const ProgramGemm::Run run{views, tokens, workspace, encode};
  std::vector<KernelReport> kernels;
  // Stages of one kernel are one entry.
  const auto add_once = [&](const std::vector<ProgramLaunch>& launches) {
    for (const ProgramLaunch& launch : launches) {
      if (launch.grid == 0) continue;
      if (kernels.empty() || kernels.back().source != launch.source.text)
        kernels.push_back(report_of(launch));
    }
  };
  add_once(program.vectors(run));
  add_gemms(kernels, program, run, sm_count);
  return kernels;
}

std::vector<KernelReport> rows_kernels(const Step& step, const Plan& plan,
                                       const std::vector<TensorView>& views, std::int64_t tokens,
                                       char* workspace) {
  RowsProgram program(step, plan);
  std::vector<KernelReport> kernels;
  for (const RowsLaunch& launch :
       program.launches(views, tokens, reinterpret_cast<float*>(workspace), nullptr)) {
    kernels.push_back(report_of(*launch.source));
    kernels.back().grid = launch.grid;
    kernels.back().grid_y = launch.grid_y;
    kernels.back().block = launch.block;
  }
  return kernels;
}

/// A program in two: the product's, then those of the epilogue's row programs.
std::vector<KernelReport> split_kernels(const Step& step, const Plan& plan,
                                        const std::vector<TensorView>& views, std::int64_t tokens,
                                        char* workspace, int sm_count) {
  const ProgramSplit split(step);
  const auto product = split.product_views(views, tokens, workspace);
  std::vector<KernelReport> kernels =
      gemm_kernels(split.product(), product, tokens, workspace, sm_count);
  for (const ProgramSplit::Part& part : split.parts()) {
    for (KernelReport& kernel : rows_kernels(part.step, plan, split.part_views(part, product),
                                             tokens, workspace + split.acc_bytes(tokens))) {
      kernels.push_back(std::move(kernel));
    }
  }
  return kernels;
}

/// Registers and shared memory that CTAs of a kernel share on an SM of sm_90.
void count_ctas(KernelReport& report) {
  constexpr std::int64_t kRegisters = 65536, kSharedBytes = 233472, kReserved = 1024, kWarps = 64;
  const std::int64_t warps = (report.block + 31) / 32;
  const std::int64_t registers = (report.registers * 32 + 255) / 256 * 256 * warps;
  const std::int64_t shared = (report.shared_bytes + kReserved + 127) / 128 * 128;
  std::int64_t ctas = std::min<std::int64_t>(32, kWarps / warps);
  if (registers > 0) ctas = std::min(ctas, kRegisters / registers);
  ctas = std::min(ctas, kSharedBytes / shared);
  report.ctas_per_sm = static_cast<int>(ctas);
  report.occupancy = static_cast<double>(ctas * warps) / kWarps;
}

void compile_kernels(std::vector<StepKernels>& steps) {
  std::map<std::string, std::vector<KernelReport*>> by_text;
  for (StepKernels& step : steps) {
    for (KernelReport& kernel : step.kernels) {
      by_text[kernel.entry + '\n' + kernel.source].push_back(&kernel);
    }
  }
  std::vector<std::vector<KernelReport*>> same;
  for (auto& [text, kernels] : by_text) same.push_back(std::move(kernels));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < same.size(); i = next++) {
      const KernelReport& first = *same[i].front();
      CubinResources resources;
      std::string problem;
      try {
        const KernelSource source{first.name, first.entry, first.source, 0};
        resources = read_cubin(KernelStore::get().cubin(source), first.entry);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      for (KernelReport* kernel : same[i]) {
        kernel->problem = problem;
        if (!problem.empty()) continue;
        kernel->compiled = true;
        kernel->registers = resources.registers;
        kernel->frame_bytes = resources.frame_bytes;
        kernel->shared_bytes += resources.shared_bytes;
        if (kernel->block == 0) kernel->block = resources.max_threads;
        if (kernel->block > 0) count_ctas(*kernel);
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t threads =
      std::min<std::size_t>(same.size(), std::max(1u, std::thread::hardware_concurrency()));
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

StepKernels step_kernels(const Step& step, const Plan& plan, Views& views, std::int64_t tokens,
                         int sm_count) {
  StepKernels made;
  if (!step.program) {
    made.name = row_of(step.opaque).name;
    made.form = "opaque";
    try {
      made.note = attention_text(step, plan);
      for (const KernelSource& source : make_step_kernel(step, plan, {})->sources()) {
        made.kernels.push_back(report_of(source));
      }
    } catch (const Error& error) {
      made.note = error.what();
    }
    return made;
  }
  made.name = step.program->name;
  const bool gemm = step.program->form == Form::gemm;
  made.form = gemm ? "gemm" : step.program->form == Form::rows ? "rows" : "vectors";
  if (gemm && needs_split(step)) {
    made.note =
        "pairs or heads that no fragment can hold: a bare GEMM into fp32 memory, then row programs";
    made.kernels = split_kernels(step, plan, views.of(step), tokens, views.workspace(), sm_count);
  } else if (gemm) {
    made.kernels = gemm_kernels(step, views.of(step), tokens, views.workspace(), sm_count);
  } else {
    made.kernels = rows_kernels(step, plan, views.of(step), tokens, views.workspace());
  }
  return made;
}

}  // namespace

std::vector<StepKernels> plan_kernels(const std::shared_ptr<const Plan>& plan, std::int64_t tokens,
                                      int sm_count) {
  Views views(plan, tokens);
  std::vector<StepKernels> steps;
  for (const auto* phase : {&plan->forward, &plan->backward}) {
    for (const Step& step : *phase) {
      const std::int64_t rows = rows_of(step.piece, tokens).rows;
      steps.push_back(step_kernels(step, *plan, views, rows, sm_count));
      steps.back().phase = phase == &plan->forward ? "forward" : "backward";
    }
  }
  if (Nvrtc::why_not().empty()) {
    compile_kernels(steps);
  } else {
    for (StepKernels& step : steps) {
      for (KernelReport& kernel : step.kernels) kernel.problem = Nvrtc::why_not();
    }
  }
  return steps;
}

int explained_sm_count() {
  constexpr int kOfH200 = 132;
  return why_no_gpu().empty() ? Device::get().sm_count() : kOfH200;
}

std::string order_of_sums() {
  return fmt::format(
      "epilogues compute on the fp32 accumulators of a tile, none on rounded ones; a row's sum is "
      "one partial for each {} columns, a column's one for each {} rows, finished in ascending "
      "order; so configurations and clusters change no bits, only what is said to be cut along K",
      kColumnGranule, kRowGranule);
}

std::string generated_part(const std::string& source) {
  const std::string mark = "#line 1 \"";
  std::string text;
  for (std::size_t at = 0; at < source.size();) {
    if (source.compare(at, mark.size(), mark) == 0) {
      const std::size_t name = at + mark.size(), end = source.find('"', name);
      const std::size_t body = source.find('\n', end) + 1;
      const std::string file = source.substr(name, end - name);
      for (const DeviceSource* s = kDeviceSources; s->name; ++s) {
        if (file != s->name) continue;
        const char* content = device_source(s->name);
        if (source.compare(body, std::strlen(content), content) != 0) continue;
        text += fmt::format("// here: device/{}\n", file);
        at = body + std::strlen(content);
        break;
      }
      if (at >= body) continue;
    }
    const std::size_t end = source.find('\n', at);
    const std::size_t next = end == std::string::npos ? source.size() : end + 1;
    text += source.substr(at, next - at);
    at = next;
  }
  return text;
}

std::string to_string(const StepKernels& step, bool sources) {
  std::string text = fmt::format("  {:<8}{:<9}{}\n", step.form, step.phase, step.name);
  if (!step.note.empty()) text += fmt::format("    {}\n", step.note);
  for (const KernelReport& k : step.kernels) {
    text += fmt::format("    {}\n", k.name);
    if (!k.configuration.empty()) text += fmt::format("      {}\n", k.configuration);
    if (!k.order.empty()) text += fmt::format("      sums: {}\n", k.order);
    std::string launch;
    if (k.grid > 0)
      launch = k.grid_y > 1 ? fmt::format("{} x {}", k.grid, k.grid_y) : fmt::format("{}", k.grid);
    if (k.grid > 0) launch += fmt::format(" CTAs of {} threads, ", k.block);
    text += fmt::format("      {}{} bytes of {}shared memory", launch, k.shared_bytes,
                        k.compiled ? "" : "dynamic ");
    if (k.compiled) {
      text += fmt::format(", {} registers", k.registers);
      if (k.frame_bytes > 0) text += fmt::format(", a stack frame of {} bytes", k.frame_bytes);
      if (k.ctas_per_sm > 0)
        text += fmt::format(", {} an SM: {:.0f} % of its warps", k.ctas_per_sm, k.occupancy * 100);
    }
    text += "\n";
    if (!sources) continue;
    const std::string source = generated_part(k.source);
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t end = source.find('\n', at);
      text += fmt::format("      | {}\n", source.substr(at, end - at));
      at = end == std::string::npos ? source.size() : end + 1;
    }
  }
  return text;
}

}  // namespace coda::cuda
