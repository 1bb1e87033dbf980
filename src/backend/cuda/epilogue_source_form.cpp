// How a launch moves its tiles on a configuration, and what that costs.
#include <algorithm>
#include <set>

#include "backend/cuda/epilogue_source_deferral.h"
#include "backend/cuda/epilogue_source_section.h"
#include "backend/cuda/epilogue_source_stores.h"

namespace coda::cuda {

namespace {

using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

/// A section of a launch on a configuration.
struct Piece {
  const LoweredSection& section;
  FragmentLayout layout;
  Deferral deferral;
  i64 chunks;  ///< of a lane's accumulators
};

std::vector<Piece> pieces_of(const Program& program, const EpiloguePlan& plan,
                             const EpilogueLaunch& launch, const GemmConfig& config) {
  std::vector<Piece> pieces;
  std::set<i32> seen;
  for (const EpilogueBlock& block : launch.blocks) {
    if (!seen.insert(block.section).second) continue;
    const LoweredSection& section = plan.lowered.sections[at(block.section)];
    const FragmentLayout layout = *fragment_layout(plan.lowered, section);
    const i64 chunks = config.wg_blocks * (config.tile_n / launch.parts / layout.chunk);
    pieces.push_back({section, layout, defer_section(program, plan, section, layout), chunks});
  }
  return pieces;
}

/// Nodes that a node is made of, itself included.
void add_nodes(const EpiloguePlan& plan, i32 index, std::set<i32>& nodes) {
  if (!nodes.insert(index).second) return;
  for (const Ref& arg : plan.lowered.nodes[at(index)].args)
    if (arg.kind == Ref::Kind::tile) add_nodes(plan, arg.index, nodes);
}

}  // namespace

EpilogueForm best_form(const Program& program, const EpiloguePlan& plan,
                       const EpilogueLaunch& launch, const GemmConfig& config, i64 k_blocks) {
  const std::vector<Piece> pieces = pieces_of(program, plan, launch, config);
  EpilogueForm form;
  form.staged = !plan.maps.empty() && !config.split_tail;
  // Stages that a ping-pong warpgroup has not read yet would stop the other one's.
  form.ring = !plan.loads.empty() && !config.split_tail && !config.ping_pong &&
              pieces.size() == 1 && ring_fits(program, plan, launch, config);
  const bool waits = std::any_of(pieces.begin(), pieces.end(),
                                 [](const Piece& p) { return !p.deferral.steps.empty(); });
  // Half of 128 accumulators' registers; more leave no room for the rest of the loop.
  const bool fits = std::all_of(pieces.begin(), pieces.end(), [&](const Piece& p) {
    return p.chunks * held_registers(plan, p.deferral, p.layout) <= 64;
  });
  form.deferred = form.staged && config.defer && waits && fits &&
                  deferred_steps(program, plan, launch, config) < k_blocks;
  return form;
}

i64 deferred_steps(const Program& program, const EpiloguePlan& plan, const EpilogueLaunch& launch,
                   const GemmConfig& config) {
  i64 most = 0;
  for (const Piece& p : pieces_of(program, plan, launch, config))
    most = std::max(most, p.chunks * static_cast<i64>(p.deferral.steps.size()));
  return most;
}

double epilogue_cycles(const Program& program, const EpiloguePlan& plan,
                       const EpilogueLaunch& launch, const GemmConfig& config, i64 k_blocks) {
  constexpr double kLoad = 6000, kRingLoad = 800, kStore = 2000, kRotate = 3000, kOp = 200;
  constexpr double kWaiting = 60;  // what comes of a node that waits
  const EpilogueForm form = best_form(program, plan, launch, config, k_blocks);
  double most = 0;
  for (const Piece& piece : pieces_of(program, plan, launch, config)) {
    const bool defers = form.deferred && !piece.deferral.steps.empty();
    std::set<i32> early(piece.section.nodes.begin(), piece.section.nodes.end());
    if (defers) {
      early.clear();
      for (const i32 index : piece.deferral.held) add_nodes(plan, index, early);
    }
    double cycles = 0;
    for (const i32 index : piece.section.nodes) {
      const Node& node = plan.lowered.nodes[at(index)];
      if (node.op == Op::acc) continue;
      const bool rotation = node.op == Op::rotate || node.op == Op::unrotate;
      const double load = form.ring ? kRingLoad : config.ping_pong ? 2 * kLoad : kLoad;
      const double own = node.op == Op::load_tile ? load : rotation ? kRotate : kOp;
      cycles += early.count(index) > 0 ? own : kWaiting;
    }
    double stores = -1;
    for (const auto& sink : piece.section.sinks)
      stores += sink.op == Op::store_tile ? 1 : is_online(sink.op) ? 2 : 0.2;
    if (defers) stores *= 0.05;
    most = std::max(most, cycles + kStore * std::max(stores, 0.0));
  }
  return most;
}

}  // namespace coda::cuda
