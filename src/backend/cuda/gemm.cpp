#include "backend/cuda/gemm.h"

#include <algorithm>

#include "backend/cuda/gpc_map.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

using coda_device::BlockAxis;
using coda_device::kMaxBlocks;
using coda_device::kMaxGroups;
using coda_device::kMaxSms;
using coda_device::PlainParams;
using coda_device::TensorMap;

constexpr int kThreads = 384;  // tile_config.cuh
constexpr std::int64_t kTileK = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// TMA: 16-byte aligned start and rows. A single row has no stride to align.
bool fits_tma(const MatrixBlock& block, std::size_t element) {
  return block.pointer % 16 == 0 && (block.rows == 1 || block.stride * element % 16 == 0);
}

TensorMapType map_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return TensorMapType::bf16;
    case DType::f16:
      return TensorMapType::f16;
    case DType::f32:
      return TensorMapType::f32;
    default:
      throw_error<InternalError>("gemm: no tensor map for {}", name_of(dtype));
  }
}

/// Boxes of 128 bytes by box_rows with 128-byte swizzle; outside reads as zero, is not written.
TensorMap encode(const MatrixBlock& block, DType dtype, int box_rows) {
  const std::uint64_t element = size_of(dtype);
  const std::uint64_t dims[2] = {static_cast<std::uint64_t>(block.columns),
                                 static_cast<std::uint64_t>(block.rows)};
  const std::uint64_t row_bytes = block.stride * element;
  const std::uint64_t strides[1] = {block.rows == 1 ? (row_bytes + 15) / 16 * 16 : row_bytes};
  const std::uint32_t box[2] = {static_cast<std::uint32_t>(128 / element),
                                static_cast<std::uint32_t>(box_rows)};
  const std::uint32_t steps[2] = {1, 1};
  // Promotion to 128 bytes: a third fewer transfers between the L2 halves than 256.
  constexpr int kNoInterleave = 0, kSwizzle128 = 3, kPromote128 = 2, kFillZero = 0;
  TensorMap map;
  check(driver().tensor_map_encode_tiled(&map, static_cast<int>(map_type(dtype)), 2,
                                         reinterpret_cast<void*>(block.pointer), dims, strides, box,
                                         steps, kNoInterleave, kSwizzle128, kPromote128, kFillZero),
        "cuTensorMapEncodeTiled");
  return map;
}

/// Cuts an axis into the blocks' extents, tiles of `tile` elements each.
BlockAxis cut_axis(const std::vector<std::int64_t>& extents, std::int64_t tile) {
  BlockAxis axis{};
  for (std::size_t i = 0; i < extents.size(); ++i) {
    axis.first[i + 1] = axis.first[i] + static_cast<int>(ceil_div(extents[i], tile));
    axis.offset[i + 1] = axis.offset[i] + static_cast<int>(extents[i]);
  }
  return axis;
}

std::vector<std::int64_t> rows_of(const std::vector<MatrixBlock>& blocks) {
  std::vector<std::int64_t> rows;
  for (const auto& block : blocks) rows.push_back(block.rows);
  return rows;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::int64_t total = 0;
  for (const auto value : values) total += value;
  return total;
}

void expect(bool holds, const GemmShape& s, const std::string& what) {
  if (holds) return;
  throw_error<UsageError>("gemm({} M = {}, N = {}, K = {}): {}", s.layout(), s.m, s.n, s.k, what);
}

void check_matrix(const GemmShape& s, const char* name, std::int64_t rows, std::int64_t columns,
                  std::int64_t expected_rows, std::int64_t expected_columns) {
  expect(rows == expected_rows && columns == expected_columns, s,
         fmt::format("operand {}: expected [{}, {}], got [{}, {}]", name, expected_rows,
                     expected_columns, rows, columns));
}

void check_operands(const GemmShape& s, const GemmOperands& o) {
  const bool a_k = s.a == Major::k, b_k = s.b == Major::k;
  constexpr std::int64_t kLongest = 1ll << 30;
  expect(s.m >= 0 && s.n >= 0 && s.k >= 0 && s.m < kLongest && s.n < kLongest && s.k < kLongest, s,
         "expected sizes from 0 to 2^30");
  check_matrix(s, "A", o.a.rows, o.a.columns, a_k ? s.m : s.k, a_k ? s.k : s.m);
  expect(!o.b.empty() && o.b.size() <= kMaxBlocks && !o.c.empty() && o.c.size() <= kMaxBlocks, s,
         fmt::format("expected 1 to {} blocks, got {} of B and {} of C", kMaxBlocks, o.b.size(),
                     o.c.size()));
  check_matrix(s, "B", sum(rows_of(o.b)), o.b[0].columns, b_k ? s.n : s.k, b_k ? s.k : s.n);
  for (const auto& block : o.b) {
    expect(block.columns == o.b[0].columns, s, "operand B: expected blocks of equal width");
  }
  const bool beside = b_k && o.b.size() > 1;
  if (beside) {
    expect(o.c.size() == 1 || o.c.size() == o.b.size(), s,
           "output C: expected one block, or one for each block of B");
  }
  if (o.c.size() > 1 && beside) {
    for (std::size_t i = 0; i < o.c.size(); ++i) {
      check_matrix(s, "C", o.c[i].rows, o.c[i].columns, s.m, o.b[i].rows);
    }
  } else {
    check_matrix(s, "C", sum(rows_of(o.c)), o.c[0].columns, s.m, s.n);
  }
  expect(!s.accumulate || s.output == DType::f32, s,
         fmt::format("accumulating: expected an f32 output, got {}", name_of(s.output)));
}

/// C as one block for each block of a K-major list B.
std::vector<MatrixBlock> column_blocks(const GemmShape& s, const GemmOperands& o) {
  if (s.b != Major::k || o.b.size() == o.c.size()) return o.c;
  std::vector<MatrixBlock> blocks;
  std::int64_t column = 0;
  for (const auto& b : o.b) {
    MatrixBlock block = o.c[0];
    block.pointer += column * size_of(s.output);
    block.columns = b.rows;
    column += b.rows;
    blocks.push_back(block);
  }
  return blocks;
}

/// Deals worker ids to the GPC groups: full teams first, then a team and single workers made of
/// what is left over. Needs every cluster of the chip, since a claim may name any of them.
void place_teams(coda_device::Schedule& s, int cluster) {
  const GpcMap& map = gpc_map();
  if (map.group_sms.empty() || map.group_of_sm.size() > kMaxSms) return;
  s.claim_groups = static_cast<int>(map.group_sms.size());
  int places = 0;
  for (int group = 0; group < s.claim_groups; ++group) {
    const bool last = group + 1 == s.claim_groups;
    const int fair = std::min(map.group_sms[group] / cluster, s.workers - places);
    s.group_first[group] = static_cast<unsigned short>(places);
    s.group_size[group] = static_cast<unsigned short>(last ? s.workers - places : fair);
    places += s.group_size[group];
  }
  for (std::size_t sm = 0; sm < map.group_of_sm.size(); ++sm) {
    s.sm_group[sm] = static_cast<unsigned char>(map.group_of_sm[sm]);
  }
  constexpr int kTeam = coda_device::kTeam;
  int next = 0;
  for (int group = 0; group < s.claim_groups; ++group) {
    for (int place = 0; place < s.group_size[group] / kTeam * kTeam; ++place) {
      s.worker_at[s.group_first[group] + place] = static_cast<unsigned char>(next++);
    }
  }
  for (int group = 0; group < s.claim_groups; ++group) {
    for (int place = s.group_size[group] / kTeam * kTeam; place < s.group_size[group]; ++place) {
      s.worker_at[s.group_first[group] + place] = static_cast<unsigned char>(next++);
    }
  }
  s.team_workers = std::max(s.workers / kTeam, 1) * kTeam;
  // Workers outside teams take as many tiles each as the others, one a wave; none, if the teams
  // need no more waves without them.
  const auto waves_of = [&](int workers) { return (s.whole_tiles + workers - 1) / workers; };
  const int waves = waves_of(s.workers);
  const int others = waves_of(s.team_workers) > waves ? s.workers - s.team_workers : 0;
  s.team_tiles = std::max(0, s.whole_tiles - waves * others);
}

/// The tensor cores round every 16 terms of a sum towards zero. With a few hundred terms that is
/// all the error an fp32 C has, and more than cuBLAS's kernels for small products make, which sum
/// in slices. So a small product is computed in two halves of K, the second added to the first
/// (rounded to nearest): about 0.6 times the error. Returns the K of the first half; all of K if it
/// stays whole.
std::int64_t first_half(const GemmShape& s, const GemmOperands& o) {
  constexpr std::int64_t kSmall = 1 << 20, kMostK = 1024;
  const bool halve = s.output == DType::f32 && !s.accumulate && o.b.size() == 1 &&
                     s.m * s.n <= kSmall && s.k > kTileK && s.k <= kMostK;
  return halve ? ceil_div(s.k, kTileK) / 2 * kTileK : s.k;
}

std::pair<GemmOperands, GemmOperands> cut_along_k(const GemmShape& s, const GemmOperands& o,
                                                  std::int64_t first) {
  GemmOperands begin = o, end = o;
  const std::int64_t element = size_of(s.operand);
  const auto cut = [&](MatrixBlock& head, MatrixBlock& tail, Major major) {
    (major == Major::k ? head.columns : head.rows) = first;
    (major == Major::k ? tail.columns : tail.rows) = s.k - first;
    tail.pointer += (major == Major::k ? first : first * tail.stride) * element;
  };
  cut(begin.a, end.a, s.a);
  cut(begin.b[0], end.b[0], s.b);
  return {begin, end};
}

}  // namespace

// ---- Workspace

namespace {
constexpr std::size_t kMaxCtas = kMaxSms;
constexpr std::size_t kFlagCount = kMaxCtas * 2;      // a consumer warpgroup
constexpr std::size_t kLargestSplitTile = 128 * 256;  // of a CTA
}  // namespace

GemmWorkspace::GemmWorkspace(const Stream& stream)
    : counters_((kMaxGroups + 2 + kFlagCount) * sizeof(unsigned)),
      partials_(kMaxCtas * kLargestSplitTile * sizeof(float)) {
  counters_.fill(0, stream);
}
unsigned* GemmWorkspace::claims() const { return reinterpret_cast<unsigned*>(counters_.pointer()); }
unsigned* GemmWorkspace::flags() const { return claims() + kMaxGroups + 2; }
float* GemmWorkspace::partials() const { return reinterpret_cast<float*>(partials_.pointer()); }

coda_device::TensorMap encode_operand(const MatrixBlock& block, DType dtype, int box_rows) {
  return encode(block, dtype, box_rows);
}

// ---- Gemm

bool Gemm::fits_tma(const GemmShape& shape, const GemmOperands& operands) {
  if (shape.operand == DType::f32 || shape.k == 0) return false;
  const std::size_t element = size_of(shape.operand);
  bool fits = cuda::fits_tma(operands.a, element);
  for (std::size_t i = 0; i < operands.b.size(); ++i) {
    const auto& block = operands.b[i];
    fits = fits && cuda::fits_tma(block, element) && block.rows > 0;
    // A k-block may not straddle two row blocks of a list along K.
    const bool last = i + 1 == operands.b.size();
    if (shape.b == Major::mn && !last) fits = fits && block.rows % kTileK == 0;
  }
  return fits;
}

GemmVariant Gemm::variant_of(const GemmShape& shape, const GemmOperands& operands) {
  GemmVariant variant;
  variant.operand = shape.operand;
  variant.output = shape.output;
  variant.accumulate = shape.accumulate;
  variant.a = shape.a;
  variant.b = shape.b;
  const int b_blocks = static_cast<int>(operands.b.size());
  (shape.b == Major::k ? variant.blocks_n : variant.blocks_k) = b_blocks;
  if (variant.blocks_n == 1) variant.blocks_m = static_cast<int>(operands.c.size());
  for (const auto& block : column_blocks(shape, operands)) {
    if (!cuda::fits_tma(block, size_of(shape.output))) variant.store = StorePath::direct;
  }
  return variant;
}

Gemm::Gemm(const GemmShape& shape, const GemmOperands& operands, const GemmWorkspace& workspace,
           const GemmConfig* config) {
  check_operands(shape, operands);
  Device::get().use();
  if (shape.m == 0 || shape.n == 0) return;
  if (!fits_tma(shape, operands)) {
    prepare_plain(shape, operands);
    return;
  }
  config_ = config ? config : &choose_config(shape, Device::get().sm_count());
  const std::int64_t first = first_half(shape, operands);
  if (first < shape.k) {
    const auto [begin, end] = cut_along_k(shape, operands, first);
    GemmShape rest = shape;
    rest.k = shape.k - first;
    rest.accumulate = true;
    second_half_ = std::make_shared<Gemm>(rest, end, workspace, config_);
    GemmShape half = shape;
    half.k = first;
    prepare_mainloop(half, begin, workspace);
    return;
  }
  prepare_mainloop(shape, operands, workspace);
}

void deal_tiles(coda_device::Schedule& s, const GemmConfig& c, int max_workers,
                const GemmWorkspace& workspace) {
  const std::int64_t tiles = static_cast<std::int64_t>(s.tiles_m) * s.tiles_n;
  internal_check(tiles < (1ll << 31), "gemm: {} tiles", tiles);
  const TileSplit split = split_tiles(tiles, s.k_blocks, max_workers, c.split_tail);
  s.workers = split.workers;
  s.whole_tiles = static_cast<int>(split.whole_tiles);
  s.split_tiles = static_cast<int>(split.split_tiles);
  s.split_workers = split.split_workers;
  // About 2048 columns of B (rows of A) stay in L2 while the other operand passes by; whole teams.
  constexpr int kTeam = coda_device::kTeam;
  constexpr int kGroupExtent = 2048;
  const int extent = c.teams_down() ? c.tile_m() * c.cluster_m : c.tile_n * c.cluster_n;
  s.group = std::max<int>(1, kGroupExtent / extent / kTeam) * kTeam;
  // A tile leaves in four steps; spread them, but finish within the next tile's k-blocks.
  s.flush_period = std::clamp(s.k_blocks / 4, 1, 4);
  s.claims = workspace.claims();
  s.flags = workspace.flags();
  s.partials = workspace.partials();

  s.team_workers = s.workers;
  s.team_tiles = s.whole_tiles;
  // Teams need every cluster of the chip, since a claim may name any: worth it if most have work.
  if (4 * s.workers >= 3 * max_workers && max_workers >= kTeam) {
    s.workers = max_workers;
    place_teams(s, c.cluster());
  }
}

void Gemm::prepare_mainloop(const GemmShape& shape, const GemmOperands& operands,
                            const GemmWorkspace& workspace) {
  const GemmConfig& c = *config_;
  const GemmVariant variant = variant_of(shape, operands);
  const KernelSource source = gemm_source(c, variant);
  kernel_ = KernelStore::get().load(source);

  // Tensor maps. M/N-major operands come in boxes of 64 rows of K.
  const int slice_a = c.tile_m() / (c.cluster_n > 1 ? c.cluster() : 1);
  const int slice_b = c.tile_n / (c.cluster_m > 1 ? c.cluster() : 1);
  operand_params_.a = encode(operands.a, shape.operand, shape.a == Major::k ? slice_a : 64);
  for (std::size_t i = 0; i < operands.b.size(); ++i) {
    operand_params_.b[i] = encode(operands.b[i], shape.operand, shape.b == Major::k ? slice_b : 64);
  }
  const auto outputs = column_blocks(shape, operands);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& block = outputs[i];
    if (variant.store == StorePath::tma && block.rows > 0 && block.columns > 0) {
      store_params_.c[i] = encode(block, shape.output, 16);
    }
    store_params_.pointer[i] = reinterpret_cast<void*>(block.pointer);
    store_params_.row_stride[i] = block.stride;
    store_params_.rows[i] = static_cast<int>(block.rows);
    store_params_.columns[i] = static_cast<int>(block.columns);
  }

  // The schedule.
  auto& s = schedule_;
  s.m = static_cast<int>(shape.m);
  s.n = static_cast<int>(shape.n);
  s.k = static_cast<int>(shape.k);
  const std::int64_t cluster_rows = c.tile_m() * c.cluster_m;
  const std::int64_t cluster_columns = c.tile_n * c.cluster_n;
  s.axis_m =
      cut_axis(variant.blocks_m > 1 ? rows_of(operands.c) : std::vector{shape.m}, cluster_rows);
  s.axis_n =
      cut_axis(variant.blocks_n > 1 ? rows_of(operands.b) : std::vector{shape.n}, cluster_columns);
  s.axis_k = cut_axis(variant.blocks_k > 1 ? rows_of(operands.b) : std::vector{shape.k}, kTileK);
  s.tiles_m = s.axis_m.first[variant.blocks_m];
  s.tiles_n = s.axis_n.first[variant.blocks_n];
  s.k_blocks = static_cast<int>(ceil_div(shape.k, kTileK));
  const std::int64_t tiles = static_cast<std::int64_t>(s.tiles_m) * s.tiles_n;
  expect(tiles < (1ll << 31), shape, fmt::format("expected fewer than 2^31 tiles, got {}", tiles));
  deal_tiles(s, c, kernel_.max_active_clusters(kThreads, c.cluster()), workspace);
  grid_ = static_cast<unsigned>(s.workers * c.cluster());
}

void Gemm::prepare_plain(const GemmShape& shape, const GemmOperands& operands) {
  const bool a_k = shape.a == Major::k, b_k = shape.b == Major::k;
  expect(b_k || operands.b.size() == 1, shape,
         "operand B: a list of row blocks along K needs blocks of a multiple of 64 rows, 16-bit "
         "elements and 16-byte aligned rows");
  kernel_ = KernelStore::get().load(
      plain_gemm_source(shape.operand, shape.output, shape.accumulate, DType::f32));
  const auto outputs = column_blocks(shape, operands);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& c = outputs[i];
    const auto& b = operands.b[operands.b.size() > 1 ? i : 0];
    PlainParams p{};
    p.a_row = a_k ? operands.a.stride : 1;
    p.a_column = a_k ? 1 : operands.a.stride;
    p.b_row = b_k ? b.stride : 1;
    p.b_column = b_k ? 1 : b.stride;
    p.a = reinterpret_cast<void*>(operands.a.pointer + row * p.a_row * size_of(shape.operand));
    p.b = reinterpret_cast<void*>(b.pointer);
    p.c = reinterpret_cast<void*>(c.pointer);
    p.c_row = c.stride;
    p.m = static_cast<int>(c.rows);
    p.n = static_cast<int>(c.columns);
    p.k = static_cast<int>(shape.k);
    if (operands.b.size() == 1) row += c.rows;
    if (p.m > 0 && p.n > 0) plain_params_.push_back(p);
  }
}

void Gemm::launch(const Stream& stream, Start start) const {
  const auto pointer = [](const auto& value) {
    return const_cast<void*>(static_cast<const void*>(&value));
  };
  if (config_) {
    kernel_.launch(stream, grid_, kThreads, config_->cluster(),
                   {pointer(operand_params_), pointer(store_params_), pointer(schedule_)}, 1,
                   start);
  }
  if (second_half_) second_half_->launch(stream, start);
  for (const auto& p : plain_params_) {
    constexpr unsigned kTile = 64;  // plain_gemm.cuh
    const std::int64_t grid = ceil_div(p.m, kTile) * ceil_div(p.n, kTile);
    kernel_.launch(stream, static_cast<unsigned>(grid), 256, 1, {pointer(p)});
  }
}

std::string Gemm::kernel_name() const { return config_ ? config_->name : "plain"; }

}  // namespace coda::cuda
