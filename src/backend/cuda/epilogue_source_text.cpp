// The text of `class Epilogue`.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/epilogue_source_layout.h"
#include "backend/cuda/epilogue_source_section.h"
#include "base/check.h"

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

/// A statement for tiles of block b.
std::string in_block(const EpilogueLaunch& launch, std::size_t b, const std::string& statement) {
  if (launch.blocks.size() == 1) return fmt::format("    {}\n", statement);
  return fmt::format("    if (tile.b_block == {}) {}\n", b, statement);
}

/// What the producer loads after the k-blocks of a tile: for each chunk its boxes, a slot each.
std::string load_text(const EpiloguePlan& plan, const EpilogueLaunch& launch,
                      const std::vector<RingBox>& boxes) {
  if (boxes.empty())
    return "  static constexpr int kRingLoads = 0;\n"
           "  static CODA_DEVICE void load(const Params&, const Tile&, int, u32, u32) {}\n\n";
  const auto& section = plan.lowered.sections[at(launch.blocks[0].section)];
  const auto layout = fragment_layout(plan.lowered, section);
  std::string text = fmt::format(
      "  static constexpr int kChunkBoxes = {0}, kChunks = kPartColumns / {1};\n"
      "  static constexpr int kTakes = kWgBlocks * kChunks * kChunkBoxes;\n"
      "  static constexpr int kRingLoads = (kTakes + kSlots - 1) / kSlots;\n"
      "  static_assert(!kPingPong, \"a stage that waits would stop the other warpgroup's\");\n"
      "  static CODA_DEVICE void load(const Params& p, const Tile& tile, int load, u32 full,\n"
      "                               u32 destination) {{\n"
      "    const int first = load * kSlots;\n"
      "    const int count = min(kSlots, kTakes - first);\n"
      "    mbarrier_arrive_expect(full, count * kSlotBytes);\n"
      "    int column0 = tile.c_column / kPartsN;\n",
      boxes.size(), layout->chunk);
  for (std::size_t b = 0; b < launch.blocks.size(); ++b)
    if (launch.blocks[b].column != 0)
      text += in_block(launch, b, fmt::format("column0 += {};", launch.blocks[b].column));
  text += fmt::format(
      "    for (int slot = 0; slot < count; ++slot) {{\n"
      "      const int take = first + slot;\n"
      "      const int chunk_column = column0 + take / kChunkBoxes % kChunks * {};\n"
      "      const int row = tile.c_row + take / (kChunkBoxes * kChunks) * 64;\n"
      "      const TensorMap* map = &p.loads[{}];\n"
      "      int x = {};\n",
      layout->chunk, boxes[0].map, boxes[0].column);
  for (std::size_t b = 1; b < boxes.size(); ++b)
    text += fmt::format("      if (take % kChunkBoxes == {}) map = &p.loads[{}], x = {};\n", b,
                        boxes[b].map, boxes[b].column);
  return text +
         "      for (int box = 0; box < kConsumers; ++box)\n"
         "        tma_load_2d(map, full, destination + slot * kSlotBytes + box * kBoxBytes, x,\n"
         "                    row + box * kWgRows);\n"
         "    }\n"
         "  }\n\n";
}

std::string prepare_text(const EpilogueLaunch& launch, const std::map<i32, SectionText>& sections) {
  std::string text;
  for (const auto& [index, section] : sections) {
    if (section.fetches.empty()) continue;
    std::string condition;
    for (std::size_t b = 0; b < launch.blocks.size(); ++b)
      if (launch.blocks[b].section == index)
        condition += fmt::format("{}tile.b_block == {}", condition.empty() ? "" : " || ", b);
    text += sections.size() == 1 ? "    {\n" : fmt::format("    if ({}) {{\n", condition);
    text +=
        "#pragma unroll\n"
        "      for (int i = 0; i < kWgBlocks; ++i) {\n"
        "        const Rows rows = rows_of(tile.c_row, i);\n" +
        section.fetches + "      }\n    }\n";
  }
  return text;
}

std::string leave_text(const EpilogueLaunch& launch, const std::map<i32, SectionText>& sections) {
  std::string text;
  for (std::size_t b = 0; b < launch.blocks.size(); ++b) {
    const EpilogueBlock& block = launch.blocks[b];
    if (sections.at(block.section).steps == 0) continue;
    const std::string call =
        fmt::format("leave_{}(number, {});", block.section, block.column + block.columns);
    text += launch.blocks.size() == 1 ? fmt::format("    {}\n", call)
                                      : fmt::format("    if (held_block_ == {}) {}\n", b, call);
  }
  return text;
}

}  // namespace

std::string epilogue_text(const Program& program, const EpiloguePlan& plan,
                          const EpilogueLaunch& launch, const EpilogueForm& wanted) {
  EpilogueForm form = wanted;
  form.staged = form.staged && !plan.maps.empty();
  std::map<i32, SectionText> sections;
  for (const EpilogueBlock& block : launch.blocks) {
    if (sections.count(block.section) > 0) continue;
    const auto layout = fragment_layout(plan.lowered, plan.lowered.sections[at(block.section)]);
    const bool ragged = std::any_of(launch.blocks.begin(), launch.blocks.end(), [&](const auto& b) {
      return b.section == block.section && b.columns % layout->chunk != 0;
    });
    sections[block.section] = section_text(program, plan, block.section, ragged, form);
  }
  const SectionText& first = sections.begin()->second;
  const std::vector<RingBox>& boxes = first.boxes;
  internal_check(sections.size() == 1 || boxes.empty(),
                 "epilogue: {}: ring loads of several sections", program.name);

  std::string text = commented(to_string(program));
  text += fmt::format(
      "namespace coda_device {{\n\n"
      "constexpr int kPartColumns = kTileN / kPartsN;\n"
      "static_assert(kPartColumns % {} == 0, \"a part of a tile is whole chunks\");\n\n",
      launch.chunk);
  // A loop is small and costs moves. What is held lies in registers whose numbers must be
  // constants.
  text += fmt::format("constexpr bool kMoves = {};\nconstexpr int kUnrolled = kMoves ? 1 : 16;\n",
                      form.deferred ? "false" : "!kSplitTail");
  // Column sums take half of a warp's staging.
  text += fmt::format(
      "constexpr int kStoreBuffers = {};\n"
      "constexpr u32 kSlabOffset = {};\n"
      "constexpr u32 kSlabBytes = 2 * kStagingBytes - kSlabOffset;\n",
      launch.column_sums ? 1 : 2, form.staged && launch.column_sums ? "kStagingBytes" : "0");
  if (launch.column_sums)
    text += "static_assert(kTileM % 128 == 0, \"a tile holds whole granules of rows\");\n\n";
  std::string most = "1";
  for (const auto& [index, section] : sections) {
    if (section.steps == 0) continue;
    const auto layout = fragment_layout(plan.lowered, plan.lowered.sections[at(index)]);
    text += fmt::format("constexpr int kHeld_{} = {};   // registers of a chunk\n", index,
                        section.held_registers);
    most = fmt::format("kLarger<{}, kWgBlocks * (kPartColumns / {}) * kHeld_{}>", most,
                       layout->chunk, index);
  }
  text += fmt::format(
      "class Epilogue {{\n public:\n"
      "  struct Params {{\n"
      "{}{}"
      "    EpilogueOperand operands[{}];\n"
      "    int rows;\n"
      "  }};\n",
      form.staged ? fmt::format("    TensorMap maps[{}];\n", plan.maps.size()) : "",
      form.ring ? fmt::format("    TensorMap loads[{}];\n", plan.loads.size()) : "",
      operand_count(program, plan));
  text += load_text(plan, launch, boxes);
  text +=
      "  CODA_DEVICE Epilogue(const Params& params, const Schedule& schedule, u32 staging,\n"
      "                       int warp_row, int lane)\n"
      "      : p_(params), schedule_(schedule), staging_(staging), warp_row_(warp_row), "
      "lane_(lane) "
      "{}\n\n";
  text += "  CODA_DEVICE void prepare(const Tile& tile) {\n" + prepare_text(launch, sections) +
          "  }\n"
          "  CODA_DEVICE void finish(Accumulators& acc, const Tile& tile, const Shared& shared,\n"
          "                          RingPosition& ring) {\n"
          "    const int column = tile.c_column / kPartsN;\n";
  for (std::size_t b = 0; b < launch.blocks.size(); ++b) {
    const EpilogueBlock& block = launch.blocks[b];
    const std::string call = fmt::format("section_{}(acc, tile, {} + column, {}, shared, ring);",
                                         block.section, block.column, block.column + block.columns);
    text += in_block(launch, b, call);
    if (sections.at(block.section).steps == 0) continue;
    text += in_block(launch, b, fmt::format("hold(tile, {} + column);", block.column));
    if (sections.at(block.section).fetches_late)
      text += in_block(launch, b, fmt::format("fetch_{}();", block.section));
  }
  text +=
      "  }\n"
      "  CODA_DEVICE void overlap() {\n";
  const std::string leaves = leave_text(launch, sections);
  if (!leaves.empty())
    text +=
        "    if (--countdown_ == 0) {\n"
        "      countdown_ = schedule_.flush_period;\n"
        "      if (next_step_ != kNothing) leave();\n"
        "    }\n";
  text += "  }\n  CODA_DEVICE void flush() {   // a tile has left by then (best_form)\n";
  text +=
      "  }\n"
      "  CODA_DEVICE void drain() {\n" +
      std::string(leaves.empty() ? "" : "    while (next_step_ != kNothing) leave();\n") +
      "    bulk_wait_group_read<0>();\n"
      "  }\n\n"
      " private:\n"
      "  CODA_DEVICE Rows rows_of(int tile_row, int i) const {\n"
      "    const int row = tile_row + warp_row_ + 64 * i + lane_ / 4;\n"
      "    return {row, {row < p_.rows, row + 8 < p_.rows}};\n"
      "  }\n"
      "  CODA_DEVICE int warp_of(const Shared& shared) const {\n"
      "    return static_cast<int>((staging_ - shared.staging(0)) / (2 * kStagingBytes));\n"
      "  }\n\n";
  if (!boxes.empty())
    text +=
        "  CODA_DEVICE u32 open_box(const Shared& shared, const RingPosition& ring, int slot,\n"
        "                           int ahead) const {\n"
        "    return open_slot(shared, ring, slot, ahead, warp_of(shared));\n"
        "  }\n\n";
  if (!leaves.empty())
    text +=
        "  CODA_DEVICE void hold(const Tile& tile, int column) {\n"
        "    held_row_ = tile.c_row;\n"
        "    held_column_ = column;\n" +
        std::string(launch.blocks.size() > 1 ? "    held_block_ = tile.b_block;\n" : "") +
        "    next_step_ = 0;\n"
        "    // The warpgroups of a tile take turns, so that one of them always multiplies.\n"
        "    const bool second = !kPingPong && warp_row_ >= kWgRows;\n"
        "    countdown_ = schedule_.flush_period + (second ? schedule_.flush_period / 2 : 0);\n"
        "  }\n"
        "  CODA_DEVICE void leave() {\n"
        "    const int number = next_step_++;\n" +
        leaves + "  }\n\n";
  for (const auto& [index, section] : sections) text += section.functions;
  if (form.staged)
    text +=
        "  /// A staging buffer whose last tile has left.\n"
        "  CODA_DEVICE u32 next_buffer() {\n"
        "    const u32 buffer = staging_ + (buffer_ % kStoreBuffers) * kStagingBytes;\n"
        "    ++buffer_;\n"
        "    bulk_wait_group_read<kStoreBuffers - 1>();\n"
        "    __syncwarp();\n"
        "    return buffer;\n"
        "  }\n"
        "  /// Sends 64 columns of the warp's 16 rows.\n"
        "  CODA_DEVICE void send(const u32* packed, int map, int column, int row) {\n"
        "    const u32 buffer = next_buffer();\n"
        "    stage_box(buffer, packed, lane_);\n"
        "    send_buffer(buffer, map, column, row);\n"
        "  }\n"
        "  CODA_DEVICE void send_buffer(u32 buffer, int map, int column, int row) {\n"
        "    fence_proxy_async();\n"
        "    __syncwarp();\n"
        "    warp_tma_store_2d(&p_.maps[map], buffer, column, row + warp_row_);\n"
        "  }\n\n";
  text +=
      "  const Params& p_;\n"
      "  const Schedule& schedule_;\n"
      "  u32 staging_;\n"
      "  int warp_row_;\n"
      "  int lane_;\n"
      "  int buffer_ = 0;\n";
  // One tile is of one section: what several fetch is one member.
  std::set<std::string> members;
  for (const auto& [index, section] : sections) {
    std::istringstream lines(section.members);
    for (std::string line; std::getline(lines, line);)
      if (members.insert(line).second) text += line + "\n";
  }
  if (!leaves.empty())
    text += fmt::format(
        "\n  // A tile that waits.\n"
        "  static constexpr int kNothing = -1;\n"
        "  u32 held_[{}];\n"
        "  int held_row_ = 0, held_column_ = 0{};\n"
        "  int next_step_ = kNothing;\n"
        "  int countdown_ = 1 << 30;\n",
        most, launch.blocks.size() > 1 ? ", held_block_ = 0" : "");
  text +=
      "};\n\n"
      "using EpilogueParams = Epilogue::Params;\n\n"
      "}  // namespace coda_device\n";
  return text;
}

}  // namespace coda::cuda
