#include "backend/cuda/program_gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace coda::cuda {

namespace {

using coda_device::EpilogueOperand;
using coda_device::PlainOperand;
using coda_device::Schedule;
using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }
i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

i64 resolve(const Dim& dim, i64 tokens) {
  return dim.symbol == Dim::Symbol::M ? tokens * dim.num / dim.den : dim.num / dim.den;
}

/// Appends the bytes of plain data.
template <class T>
void put(std::vector<std::byte>& bytes, const T& value) {
  const std::size_t start = ceil_div(static_cast<i64>(bytes.size()), alignof(T)) * alignof(T);
  bytes.resize(start + sizeof(T));
  std::memcpy(bytes.data() + start, &value, sizeof(T));
}

char* element(const TensorView& view, i64 row, i64 column) {
  return static_cast<char*>(view.data) +
         (row * view.stride + column) * static_cast<i64>(size_of(view.dtype));
}

constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of(const EpilogueVector& vector, i64 rows) {
  const i64 length = vector.length < 0 ? rows : vector.length;
  return aligned(static_cast<std::size_t>(length * vector.period) * sizeof(float));
}

/// What an epilogue of `cycles` a 128 x 256 tile adds to predict_seconds. Ping-pong hides what is
/// shorter than the other warpgroup's mainloop.
double epilogue_seconds(double cycles, const GemmShape& shape, const GemmConfig& config,
                        int sm_count) {
  const i64 tiles = ceil_div(shape.m, config.tile_m()) * ceil_div(shape.n, config.tile_n);
  const auto waves = static_cast<double>(ceil_div(tiles, sm_count));
  const double area = config.tile_m() * config.tile_n / 32768.0;
  const double mainloop = static_cast<double>(shape.k) * config.tile_m() * config.tile_n / 2048.0;
  // A warpgroup of a ping-pong pair does alone what two share in a cooperative tile.
  const double own = config.ping_pong ? 2 * cycles * area : cycles * area;
  const double shown = config.ping_pong ? std::max(0.0, own - mainloop) / 2 : own;
  constexpr double kClock = 1.65e9;
  return waves * shown / kClock;
}

}  // namespace

GemmConfig plain_config(const EpilogueLaunch& launch, bool ring) {
  const auto tile_n = std::max<i64>(64, launch.parts * launch.chunk);
  return {"plain", static_cast<int>(tile_n), 1, ring ? 4 : 1, 1, 1, false, true, false};
}

ProgramGemm::ProgramGemm(std::shared_ptr<const Program> program)
    : program_(std::move(program)), plan_(plan_epilogue(*program_)) {}

i64 ProgramGemm::rows(i64 tokens) const { return resolve(program_->rows, tokens); }

std::size_t ProgramGemm::workspace_bytes(i64 max_tokens) const {
  std::size_t bytes = 0;
  for (const EpilogueVector& vector : plan_.vectors) bytes += bytes_of(vector, max_tokens);
  return bytes;
}

std::vector<EpilogueOperand> ProgramGemm::epilogue_operands(const Run& run) const {
  std::vector<EpilogueOperand> operands;
  for (const TensorView& view : run.views) operands.push_back({view.data, view.stride, view.rows});
  std::size_t offset = 0;
  for (const EpilogueVector& vector : plan_.vectors) {
    const i64 stride = vector.frequency >= 0 ? vector.period : 1;
    const i64 rows = vector.length < 0 ? run.tokens : vector.length;
    operands.push_back({run.workspace + offset, stride, rows});
    offset += bytes_of(vector, run.tokens);
  }
  return operands;
}

std::vector<std::byte> ProgramGemm::epilogue_parameters(const EpilogueLaunch& launch,
                                                        const Run& run,
                                                        const EpilogueForm& form) const {
  std::vector<std::byte> bytes;
  const auto put_maps = [&](const std::vector<EpilogueMap>& maps, int box_rows) {
    for (const EpilogueMap& map : maps) {
      const TensorView& view = run.views[at(map.operand)];
      MatrixBlock block;
      block.pointer = reinterpret_cast<DevicePointer>(element(view, map.row, map.column));
      block.rows = view.rows - map.row;
      block.columns = map.columns;
      block.stride = view.stride;
      put(bytes, run.encode(block, view.dtype, box_rows));
    }
  };
  if (form.staged) put_maps(plan_.maps, 16);
  if (form.ring) put_maps(plan_.loads, 64);
  for (const EpilogueOperand& operand : epilogue_operands(run)) put(bytes, operand);
  put(bytes, static_cast<int>(launch.rows < 0 ? rows(run.tokens) : launch.rows));
  bytes.resize(aligned(bytes.size()));  // at least what the kernel's struct takes
  return bytes;
}

std::vector<ProgramLaunch> ProgramGemm::vectors(const Run& run) const {
  std::vector<ProgramLaunch> launches;
  if (plan_.stage_count == 0) return launches;
  const KernelSource source = vectors_source(*program_, plan_);
  for (i32 stage = 0; stage < plan_.stage_count; ++stage) {
    ProgramLaunch launch;
    launch.source = source;
    launch.block = 128;
    launch.grid =
        static_cast<unsigned>(ceil_div(stage_length(*program_, plan_, stage, run.tokens), 128));
    std::vector<std::byte> bytes;
    for (const EpilogueOperand& operand : epilogue_operands(run)) put(bytes, operand);
    put(bytes, static_cast<int>(run.tokens));
    put(bytes, stage);
    launch.parameters = {bytes};
    launches.push_back(std::move(launch));
  }
  return launches;
}

bool ProgramGemm::fits(const EpilogueLaunch& launch, const GemmConfig& config, bool any_code) {
  const i64 part = config.tile_n / launch.parts;
  const bool whole = config.tile_n % launch.parts == 0 && part % launch.chunk == 0;
  const bool boxes = launch.parts == 1 || part % 64 == 0;
  const bool granules = !launch.column_sums || config.tile_m() % kRowGranule == 0;
  const bool shares =
      config.cluster_m == 1 || launch.parts == 1 || launch.parts % config.cluster_m == 0;
  const double slab = launch.slab_columns * static_cast<double>(part) * config.wg_blocks;
  // Column sums share a warp's staging with stores.
  // Light ones only: not in a loop, or beside more than 128 accumulators a thread.
  const bool once =
      any_code || launch.light || (!config.split_tail && config.tile_n * config.wg_blocks <= 256);
  return whole && boxes && granules && shares && once && slab <= 512;
}

const GemmConfig& ProgramGemm::choose(const EpilogueLaunch& launch, const GemmShape& shape,
                                      int sm_count) const {
  const i64 k_blocks = ceil_div(shape.k, 64);
  const GemmConfig* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  const auto search = [&](bool any_code) {
    for (const GemmConfig& config : gemm_candidates()) {
      if (!fits(launch, config, any_code) || config.at_once()) continue;
      const double seconds =
          predict_seconds(shape, config, sm_count) +
          epilogue_seconds(epilogue_cycles(*program_, plan_, launch, config, k_blocks), shape,
                           config, sm_count);
      if (seconds < least) {
        least = seconds;
        best = &config;
      }
    }
  };
  search(false);
  if (best == nullptr) search(true);  // many sums of columns: small tiles, whatever the code
  internal_check(best != nullptr, "cuda: {}: no configuration has tiles of {} parts of {} columns",
                 program_->name, launch.parts, launch.chunk);
  return *best;
}

bool ProgramGemm::paired(const Run& run) const {
  const auto even = [&](i32 operand, i64 column, i64 width) {
    const TensorView& view = run.views[at(operand)];
    const auto address = reinterpret_cast<std::uintptr_t>(view.data);
    return address % (2 * size_of(view.dtype)) == 0 && (view.stride % 2 == 0 || view.rows <= 1) &&
           column % 2 == 0 && width % 2 == 0;
  };
  bool all = true;
  for (const auto& node : plan_.lowered.nodes) {
    if (node.op == Op::load_tile) all = all && even(node.operand, node.col, node.width);
    for (const lowering::Ref& arg : node.args) {
      if (arg.kind != lowering::Ref::Kind::row) continue;
      const Value& vector = program_->values[at(arg.index)];
      const bool aligned = vector.operand < 0 || !is_direct(*program_, arg.index) ||
                           even(vector.operand, arg.offset, vector.cols.num);
      all = all && aligned && arg.offset % 2 == 0 && node.width % 2 == 0;
    }
  }
  for (const auto& section : plan_.lowered.sections)
    for (const auto& sink : section.sinks)
      if (sink.op == Op::store_tile)
        all = all && even(sink.operand, sink.col, plan_.lowered.nodes[at(sink.node)].width);
  return all;
}

bool ProgramGemm::addressable(const std::vector<EpilogueMap>& maps, const Run& run) {
  if (!run.encode || maps.empty()) return false;
  return std::all_of(maps.begin(), maps.end(), [&](const EpilogueMap& map) {
    const TensorView& view = run.views[at(map.operand)];
    const auto address = reinterpret_cast<std::uintptr_t>(element(view, map.row, map.column));
    return address % 16 == 0 && view.stride % 8 == 0 && view.rows > map.row && map.columns > 0;
  });
}

EpilogueForm ProgramGemm::form(const EpilogueLaunch& launch, const GemmConfig& config,
                               const Run& run, i64 k) const {
  EpilogueForm form = best_form(*program_, plan_, launch, config, ceil_div(k, 64));
  form.staged = form.staged && addressable(plan_.maps, run);
  form.deferred = form.deferred && form.staged;
  form.ring = form.ring && addressable(plan_.loads, run);
  return form;
}

GemmVariant ProgramGemm::variant(const EpilogueLaunch& launch, bool paired) const {
  const coda::Gemm& gemm = program_->gemm;
  GemmVariant variant;
  variant.operand = program_->operands[at(gemm.a)].dtype;
  variant.output = DType::f32;
  variant.a = gemm.transpose_a ? Major::mn : Major::k;
  variant.b = gemm.transpose_b ? Major::k : Major::mn;
  variant.store = StorePath::direct;
  variant.blocks_n = static_cast<int>(launch.blocks.size());
  variant.blocks_k = gemm.transpose_b ? 1 : static_cast<int>(gemm.b.size());
  variant.parts_n = launch.parts;
  variant.paired = paired;
  variant.vectors_first = plan_.stage_count > 0;
  return variant;
}

KernelSource ProgramGemm::source(const EpilogueLaunch& launch, const GemmConfig& config,
                                 bool paired, const EpilogueForm& form) const {
  return program_source(program_->name, config, variant(launch, paired),
                        epilogue_text(*program_, plan_, launch, form));
}

KernelSource ProgramGemm::source(const EpilogueLaunch& launch, const GemmConfig& config,
                                 i64 k) const {
  return source(launch, config, true, best_form(*program_, plan_, launch, config, ceil_div(k, 64)));
}

KernelSource ProgramGemm::plain_source(const EpilogueLaunch& launch, bool paired,
                                       const EpilogueForm& form, bool one_row) const {
  return plain_program_source(program_->name, plain_config(launch, form.ring),
                              variant(launch, paired),
                              program_->operands[at(program_->gemm.b[0])].dtype,
                              epilogue_text(*program_, plan_, launch, form), one_row);
}

namespace {

/// Columns [column, column + columns) of the accumulator as a part of B: for a K-major B a window
/// of rows of one row block; for an N-major B a window of columns of each block along K.
std::vector<MatrixBlock> part_of_b(const Program& program, std::span<const TensorView> views,
                                   i64 column, i64 columns) {
  std::vector<MatrixBlock> blocks;
  const bool by_rows = program.gemm.transpose_b;
  i64 start = 0;
  for (const i32 b : program.gemm.b) {
    const TensorView& view = views[at(b)];
    MatrixBlock block;
    block.stride = view.stride;
    block.rows = by_rows ? columns : view.rows;
    block.columns = by_rows ? view.cols : columns;
    const i64 inside = column - start;
    if (!by_rows || (inside >= 0 && inside < view.rows)) {
      block.pointer = reinterpret_cast<DevicePointer>(by_rows ? element(view, inside, 0)
                                                              : element(view, 0, column));
      blocks.push_back(block);
    }
    if (by_rows) start += view.rows;
  }
  return blocks;
}

}  // namespace

GemmShape ProgramGemm::shape(const EpilogueLaunch& launch, i64 tokens) const {
  const coda::Gemm& gemm = program_->gemm;
  GemmShape shape;
  shape.m = launch.rows < 0 ? rows(tokens) : launch.rows;
  shape.k = resolve(gemm.k, tokens);
  for (const EpilogueBlock& block : launch.blocks) shape.n += launch.parts * block.columns;
  shape.operand = program_->operands[at(gemm.a)].dtype;
  shape.output = DType::bf16;
  shape.a = gemm.transpose_a ? Major::mn : Major::k;
  shape.b = gemm.transpose_b ? Major::k : Major::mn;
  return shape;
}

bool ProgramGemm::operands(const EpilogueLaunch& launch, const Run& run, GemmShape& shape,
                           MatrixBlock& a, std::vector<MatrixBlock>& b) const {
  const coda::Gemm& gemm = program_->gemm;
  const TensorView& from = run.views[at(gemm.a)];
  shape = this->shape(launch, run.tokens);
  const i64 m = shape.m;
  a.stride = from.stride;
  a.rows = gemm.transpose_a ? from.rows : m;
  a.columns = gemm.transpose_a ? m : from.cols;
  a.pointer = reinterpret_cast<DevicePointer>(gemm.transpose_a ? element(from, 0, launch.row)
                                                               : element(from, launch.row, 0));
  b.clear();
  bool fits = from.dtype != DType::f32 && shape.k > 0;
  const std::size_t width = size_of(from.dtype);
  const auto addressable = [&](const MatrixBlock& block) {
    return block.pointer % 16 == 0 && (block.rows == 1 || block.stride * width % 16 == 0) &&
           block.rows > 0 && block.columns > 0;
  };
  fits = fits && addressable(a);
  for (const EpilogueBlock& block : launch.blocks) {
    for (const i64 start : block.starts) {
      const auto list = part_of_b(*program_, run.views, start + block.column, block.columns);
      for (std::size_t i = 0; i < list.size(); ++i) {
        fits = fits && addressable(list[i]);
        // A k-block may not straddle two row blocks of a list along K.
        if (shape.b == Major::mn && i + 1 < list.size()) fits = fits && list[i].rows % 64 == 0;
        b.push_back(list[i]);
      }
    }
  }
  for (const i32 operand : gemm.b) fits = fits && run.views[at(operand)].dtype == from.dtype;
  return fits && b.size() <= coda_device::kMaxBlocks;
}

bool ProgramGemm::may_be_one_row(const EpilogueLaunch& launch, const GemmShape& shape) {
  constexpr i64 kWidest = 128;  // columns of a tile whose accumulators leave registers to load with
  return shape.a == Major::k && shape.b == Major::k && shape.k > 0 && shape.k % 8 == 0 &&
         plain_config(launch).tile_n <= kWidest;
}

bool ProgramGemm::is_one_row(const EpilogueLaunch& launch, const Run& run) const {
  GemmShape shape = this->shape(launch, run.tokens);
  if (shape.m != 1 || !may_be_one_row(launch, shape)) return false;
  MatrixBlock a;
  std::vector<MatrixBlock> b;
  operands(launch, run, shape, a, b);
  const auto in_pieces = [](const MatrixBlock& block) {
    return block.pointer % 16 == 0 && (block.rows <= 1 || block.stride % 8 == 0);
  };
  return in_pieces(a) && std::all_of(b.begin(), b.end(), in_pieces);
}

ProgramLaunch ProgramGemm::plain(const EpilogueLaunch& launch, const Run& run, bool best) const {
  GemmShape shape;
  MatrixBlock a;
  std::vector<MatrixBlock> b;
  operands(launch, run, shape, a, b);
  const GemmConfig config = plain_config(launch);
  const auto view_of = [](const MatrixBlock& block, bool k_major) {
    PlainOperand operand{};
    operand.pointer = reinterpret_cast<void*>(block.pointer);
    operand.row = k_major ? block.stride : 1;
    operand.column = k_major ? 1 : block.stride;
    operand.rows = static_cast<int>(k_major ? block.rows : block.columns);
    operand.columns = static_cast<int>(k_major ? block.columns : block.rows);
    return operand;
  };
  std::vector<std::byte> matrices;
  put(matrices, view_of(a, shape.a == Major::k));
  for (const MatrixBlock& block : b) put(matrices, view_of(block, shape.b == Major::k));
  std::vector<int> k_first = {0};
  if (shape.b == Major::k) {
    k_first.push_back(static_cast<int>(shape.k));
  } else {
    for (const i32 list : program_->gemm.b)
      k_first.push_back(k_first.back() + static_cast<int>(run.views[at(list)].rows));
  }
  for (const int first : k_first) put(matrices, first);
  matrices.resize(aligned(matrices.size()));

  Schedule schedule{};
  schedule.m = static_cast<int>(shape.m);
  schedule.k = static_cast<int>(shape.k);
  schedule.tiles_m = static_cast<int>(ceil_div(shape.m, config.tile_m()));
  schedule.axis_m.first[1] = schedule.tiles_m;
  for (std::size_t i = 0; i < launch.blocks.size(); ++i) {
    const i64 columns = launch.parts * launch.blocks[i].columns;
    schedule.axis_n.first[i + 1] =
        schedule.axis_n.first[i] + static_cast<int>(ceil_div(columns, config.tile_n));
    schedule.axis_n.offset[i + 1] = schedule.axis_n.offset[i] + static_cast<int>(columns);
  }
  schedule.tiles_n = schedule.axis_n.first[launch.blocks.size()];
  schedule.group = 8;
  schedule.flush_period = 1;
  std::vector<std::byte> schedule_bytes;
  put(schedule_bytes, schedule);

  ProgramLaunch made;
  const bool one_row = is_one_row(launch, run);
  EpilogueForm form{.staged = addressable(plan_.maps, run)};
  // There is no next tile here: what waits is done at the end, however much it is.
  constexpr i64 kAnyK = 1 << 30;
  if (best && !one_row) form = this->form(launch, config, run, kAnyK);
  made.source = plain_source(launch, paired(run), form, one_row);
  made.grid = static_cast<unsigned>(schedule.tiles_m * schedule.tiles_n);
  made.block = 256;
  made.parameters = {matrices, epilogue_parameters(launch, run, form), schedule_bytes};
  return made;
}

}  // namespace coda::cuda
