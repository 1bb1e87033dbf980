// The text of `class Epilogue`.
#include <fmt/format.h>

#include <set>

#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/epilogue_source_layout.h"
#include "backend/cuda/epilogue_source_section.h"

namespace coda::cuda {

namespace {

using i32 = std::int32_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

std::string commented(const std::string& text) {
  std::string out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    // A backslash at the end would continue the comment.
    std::string line = text.substr(begin, end - begin);
    while (!line.empty() && (line.back() == '\\' || line.back() == ' ')) line.pop_back();
    out += "// " + line + "\n";
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string epilogue_text(const Program& program, const EpiloguePlan& plan,
                          const EpilogueLaunch& launch, bool staged) {
  staged = staged && !plan.maps.empty();
  std::string text = commented(to_string(program));
  text += fmt::format(
      "namespace coda_device {{\n\n"
      "constexpr int kPartColumns = kTileN / kPartsN;\n"
      "static_assert(kPartColumns % {} == 0, \"a part of a tile is whole chunks\");\n\n",
      launch.chunk);
  // A loop is small and costs moves; a kernel with a split tail, which has its epilogue twice, has
  // no registers for them (C7511).
  text += "constexpr bool kMoves = !kSplitTail;\nconstexpr int kUnrolled = kMoves ? 1 : 16;\n";
  // Column sums take half of a warp's staging.
  text += fmt::format(
      "constexpr int kStoreBuffers = {};\n"
      "constexpr u32 kSlabOffset = {};\n"
      "constexpr u32 kSlabBytes = 2 * kStagingBytes - kSlabOffset;\n",
      launch.column_sums ? 1 : 2, staged && launch.column_sums ? "kStagingBytes" : "0");
  if (launch.column_sums)
    text += "static_assert(kTileM % 128 == 0, \"a tile holds whole granules of rows\");\n\n";
  text += fmt::format(
      "class Epilogue {{\n public:\n"
      "  struct Params {{\n"
      "{}"
      "    EpilogueOperand operands[{}];\n"
      "    int rows;\n"
      "  }};\n"
      "  static constexpr int kRingLoads = 0;\n"
      "  static CODA_DEVICE void load(const Params&, const Tile&, int, u32, u32) {{}}\n\n"
      "  CODA_DEVICE Epilogue(const Params& params, const Schedule&, u32 staging, int warp_row,\n"
      "                       int lane)\n"
      "      : p_(params), staging_(staging), warp_row_(warp_row), lane_(lane) {{}}\n\n"
      "  CODA_DEVICE void finish(Accumulators& acc, const Tile& tile, const Shared& shared,\n"
      "                          RingPosition&) {{\n"
      "    const int column = tile.c_column / kPartsN;\n",
      staged ? fmt::format("    TensorMap maps[{}];\n", plan.maps.size()) : "",
      operand_count(program, plan));
  std::set<i32> sections;
  for (std::size_t b = 0; b < launch.blocks.size(); ++b) {
    const EpilogueBlock& block = launch.blocks[b];
    sections.insert(block.section);
    const std::string call = fmt::format("section_{}(acc, tile, {} + column, {}, shared);",
                                         block.section, block.column, block.column + block.columns);
    if (launch.blocks.size() == 1)
      text += fmt::format("    {}\n", call);
    else
      text += fmt::format("    if (tile.b_block == {}) {}\n", b, call);
  }
  text +=
      "  }\n"
      "  CODA_DEVICE void overlap() {}\n"
      "  CODA_DEVICE void flush() {}\n"
      "  CODA_DEVICE void drain() {\n"
      "    bulk_wait_group_read<0>();\n"
      "  }\n\n"
      " private:\n"
      "  CODA_DEVICE Rows rows_of(const Tile& tile, int i) const {\n"
      "    const int row = tile.c_row + warp_row_ + 64 * i + lane_ / 4;\n"
      "    return {row, {row < p_.rows, row + 8 < p_.rows}};\n"
      "  }\n"
      "  CODA_DEVICE int warp_of(const Shared& shared) const {\n"
      "    return static_cast<int>((staging_ - shared.staging(0)) / (2 * kStagingBytes));\n"
      "  }\n\n";
  for (const i32 section : sections) {
    const auto layout = fragment_layout(plan.lowered, plan.lowered.sections[at(section)]);
    bool ragged = false;
    for (const EpilogueBlock& block : launch.blocks)
      ragged = ragged || (block.section == section && block.columns % layout->chunk != 0);
    text += section_text(program, plan, section, ragged, staged);
  }
  if (staged)
    text +=
        "  /// Sends 64 columns of the warp's 16 rows.\n"
        "  CODA_DEVICE void send(const u32* packed, int map, int column, int row) {\n"
        "    const u32 buffer = staging_ + (buffer_ % kStoreBuffers) * kStagingBytes;\n"
        "    ++buffer_;\n"
        "    bulk_wait_group_read<kStoreBuffers - 1>();\n"
        "    __syncwarp();\n"
        "    stage_box(buffer, packed, lane_);\n"
        "    fence_proxy_async();\n"
        "    __syncwarp();\n"
        "    warp_tma_store_2d(&p_.maps[map], buffer, column, row + warp_row_);\n"
        "  }\n\n";
  text +=
      "  const Params& p_;\n"
      "  u32 staging_;\n"
      "  int warp_row_;\n"
      "  int lane_;\n"
      "  int buffer_ = 0;\n"
      "};\n\n"
      "using EpilogueParams = Epilogue::Params;\n\n"
      "}  // namespace coda_device\n";
  return text;
}

}  // namespace coda::cuda
