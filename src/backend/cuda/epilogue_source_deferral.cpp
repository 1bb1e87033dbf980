#include "backend/cuda/epilogue_source_deferral.h"

#include <algorithm>
#include <set>

#include "backend/cuda/epilogue_source_stores.h"

namespace coda::cuda {

namespace {

using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;
using i32 = std::int32_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

class Search {
 public:
  Search(const EpiloguePlan& plan, const FragmentLayout& layout) : plan_(plan), layout_(layout) {}

  /// Adds the casts that a node begins at, the first on each way from the product or from a tile in
  /// memory; false if there is a way without one.
  bool begins(i32 index, std::set<i32>& casts) const {
    const Node& node = plan_.lowered.nodes[at(index)];
    if (node.op == Op::acc || node.op == Op::load_tile) return false;
    std::set<i32> before = casts;
    const bool all = std::all_of(node.args.begin(), node.args.end(), [&](const Ref& arg) {
      return arg.kind != Ref::Kind::tile || begins(arg.index, before);
    });
    if (all) {
      casts = std::move(before);
    } else if (can_hold(index)) {
      casts.insert(index);
    }
    return all || can_hold(index);
  }

 private:
  bool can_hold(i32 index) const {
    const Node& node = plan_.lowered.nodes[at(index)];
    const int own = layout_.layout[at(index)];
    return node.op == Op::cast && node.attrs.dtype != DType::f32 && (own == 2 || own == kAnyLayout);
  }

  const EpiloguePlan& plan_;
  const FragmentLayout& layout_;
};

/// So many that none takes longer than the multiplies beside it.
void add_steps(Deferral& deferral, std::size_t sink, int count) {
  for (int number = 0; number < count; ++number) deferral.steps.push_back({sink, number, count});
}

}  // namespace

Deferral defer_section(const Program& program, const EpiloguePlan& plan,
                       const LoweredSection& section, const FragmentLayout& layout) {
  const Search search(plan, layout);
  Deferral deferral;
  std::set<i32> held;
  std::vector<std::size_t> beside;  // waits, but sends no tile
  for (std::size_t s = 0; s < section.sinks.size(); ++s) {
    const Sink& sink = section.sinks[s];
    std::set<i32> casts;
    // Sums of columns meet those of other warps, which are elsewhere by then; and beside what
    // cannot wait there are no registers to hold the rest.
    const bool waits = sink.op != Op::col_sum && search.begins(sink.node, casts) && !casts.empty();
    const bool sends = store_map(plan, program, section, sink) >= 0;
    if (!waits || (sink.op == Op::store_tile && !sends)) return {};
    held.insert(casts.begin(), casts.end());
    if (sends) {
      add_steps(deferral, s, 1);
    } else {
      beside.push_back(s);
    }
  }
  if (deferral.steps.empty()) return {};
  for (const std::size_t s : beside) add_steps(deferral, s, is_online(section.sinks[s].op) ? 2 : 1);
  deferral.held.assign(held.begin(), held.end());
  return deferral;
}

std::int64_t held_registers(const EpiloguePlan& plan, const Deferral& deferral,
                            const FragmentLayout& layout) {
  std::int64_t registers = 0;
  for (const i32 index : deferral.held)
    registers += layout.chunk * layout.acc_scale / plan.lowered.scale[at(index)] / 4;
  return registers;
}

}  // namespace coda::cuda
