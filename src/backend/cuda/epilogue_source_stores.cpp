#include "backend/cuda/epilogue_source_stores.h"

#include "backend/cuda/epilogue_source_layout.h"

namespace coda::cuda {

using lowering::LoweredSection;
using lowering::Sink;

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Can 64 columns at a time of this store leave by TMA?
bool is_stageable(const EpiloguePlan& plan, const Program& program, const FragmentLayout& layout,
                  const Sink& sink) {
  if (sink.op != Op::store_tile) return false;
  const Operand& to = program.operands[at(sink.operand)];
  const int own = layout.layout[at(sink.node)];
  const std::int64_t columns = layout.chunk * layout.acc_scale / plan.lowered.scale[at(sink.node)];
  return (to.dtype == DType::bf16 || to.dtype == DType::f16) && !to.accumulate &&
         (own == 2 || own == kAnyLayout) && columns % 64 == 0 && sink.col % 8 == 0;
}

}  // namespace

int store_map(const EpiloguePlan& plan, const Program& program, const LoweredSection& section,
              const Sink& sink) {
  for (std::size_t m = 0; m < plan.maps.size(); ++m)
    if (plan.maps[m].operand == sink.operand && plan.maps[m].column == sink.col) {
      const auto layout = fragment_layout(plan.lowered, section);
      return is_stageable(plan, program, *layout, sink) ? static_cast<int>(m) : -1;
    }
  return -1;
}

namespace {

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

/// Columns of a node in a chunk, if it is a tile operand that can come in boxes of 64 columns; or
/// 0.
std::int64_t box_columns(const EpiloguePlan& plan, const Program& program,
                         const FragmentLayout& layout, std::int32_t index) {
  const lowering::Node& node = plan.lowered.nodes[at(index)];
  const int own = layout.layout[at(index)];
  if (node.op != Op::load_tile || !is_16_bit(program.operands[at(node.operand)].dtype) ||
      (own != 2 && own != kAnyLayout) || node.col % 8 != 0)
    return 0;
  const std::int64_t columns = layout.chunk * layout.acc_scale / plan.lowered.scale[at(index)];
  return columns % 64 == 0 ? columns : 0;
}

}  // namespace

std::vector<EpilogueMap> ring_loads(const Program& program, const EpiloguePlan& plan) {
  std::vector<EpilogueMap> loads;
  for (const LoweredSection& section : plan.lowered.sections) {
    const auto layout = fragment_layout(plan.lowered, section);
    if (!layout) continue;
    for (const std::int32_t index : section.nodes) {
      if (box_columns(plan, program, *layout, index) == 0) continue;
      const lowering::Node& node = plan.lowered.nodes[at(index)];
      loads.push_back({node.operand, node.col, node.width, node.row});
    }
  }
  return loads;
}

bool ring_fits(const Program& program, const EpiloguePlan& plan, const EpilogueLaunch& launch,
               const GemmConfig& config) {
  const LoweredSection& section = plan.lowered.sections[at(launch.blocks[0].section)];
  const auto layout = fragment_layout(plan.lowered, section);
  std::int64_t boxes = 0;  // of a chunk
  for (const std::int32_t index : section.nodes)
    boxes += box_columns(plan, program, *layout, index) / 64;
  const std::int64_t slots = (config.tile_m() + config.tile_n) * 128 / (2 * 8192);
  return boxes > 0 && boxes <= slots;  // epilogue_fragment.cuh
}

std::vector<EpilogueMap> staged_stores(const Program& program, const EpiloguePlan& plan) {
  std::vector<EpilogueMap> maps;
  for (const LoweredSection& section : plan.lowered.sections) {
    const auto layout = fragment_layout(plan.lowered, section);
    if (!layout) continue;
    for (const Sink& sink : section.sinks)
      if (is_stageable(plan, program, *layout, sink))
        maps.push_back({sink.operand, sink.col, plan.lowered.nodes[at(sink.node)].width});
  }
  return maps;
}

}  // namespace coda::cuda
