#include "backend/cuda/epilogue_source_layout.h"

#include <numeric>

#include "base/check.h"
#include "coda/program.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

using lowering::Lowered;
using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using i64 = std::int64_t;
using i32 = std::int32_t;

constexpr i64 kWidestChunk = 256;  ///< of a node, and of the accumulator

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

bool is_interleaved(const Node& node) { return node.attrs.layout == PairLayout::interleaved; }
bool is_rotation(Op op) { return op == Op::rotate || op == Op::unrotate; }

/// Thrown where columns would have to move between lanes.
struct NoFragment {};

class Layouts {
 public:
  Layouts(const Lowered& lowered, const LoweredSection& section)
      : lowered_(lowered), section_(section) {
    out_.layout.assign(lowered.nodes.size(), kAnyLayout);
  }

  FragmentLayout run() {
    if (lowered_.whole) throw NoFragment{};
    find_scale();
    for (const i32 index : section_.nodes) out_.layout[at(index)] = natural(node(index));
    for (const auto& sink : section_.sinks) settle(sink.node, wanted(sink.node));
    find_chunk();
    return std::move(out_);
  }

 private:
  const Node& node(i32 index) const { return lowered_.nodes[at(index)]; }
  i64 scale(i32 index) const { return lowered_.scale[at(index)]; }
  int wanted(i32 index) const {
    return out_.layout[at(index)] == kAnyLayout ? 2 : out_.layout[at(index)];
  }

  void find_scale() {
    i64 found = 0;
    i64 row = 0;
    for (const i32 index : section_.nodes) {
      if (node(index).op != Op::acc) continue;
      if (found != 0 && (found != scale(index) || row != node(index).row)) throw NoFragment{};
      found = scale(index);
      row = node(index).row;
    }
    if (found == 0) throw NoFragment{};
    out_.acc_scale = found;
  }

  /// The layout that follows from a node's arguments, which have theirs already.
  int natural(const Node& n) const {
    int from_args = kAnyLayout;
    for (const Ref& arg : n.args) {
      if (arg.kind != Ref::Kind::tile) continue;
      const int own = out_.layout[at(arg.index)];
      if (own == kAnyLayout) continue;
      if (from_args != kAnyLayout && from_args != own) throw NoFragment{};
      from_args = own;
    }
    switch (n.op) {
      case Op::acc:
        return 2;
      case Op::load_tile:
      case Op::broadcast:
      case Op::onehot:
      case Op::segment_broadcast:
        return kAnyLayout;
      case Op::segment_sum:
        return 0;
      case Op::first_of_pair:
      case Op::second_of_pair:
        if (!is_interleaved(n) || from_args <= 0) return from_args;
        if (from_args == 1) throw NoFragment{};
        return from_args / 2;
      case Op::join:
        if (!is_interleaved(n) || from_args <= 0) return from_args;
        if (from_args == 4) throw NoFragment{};
        return from_args * 2;
      default:
        return from_args;
    }
  }

  /// Gives nodes that had no preference the layout that their reader wants, and checks the others.
  void settle(i32 index, int layout) {
    const Node& n = node(index);
    int& own = out_.layout[at(index)];
    const bool is_leaf = n.op == Op::load_tile || n.op == Op::broadcast || n.op == Op::onehot;
    if (is_leaf) {
      if (own == kAnyLayout) own = layout;
      if (own != layout) throw NoFragment{};
      return;
    }
    if (own != kAnyLayout && own != layout) throw NoFragment{};
    own = layout;
    for (const Ref& arg : n.args)
      if (arg.kind == Ref::Kind::tile) settle(arg.index, layout_of_arg(n, arg.index, layout));
    check_periods(n, layout);
  }

  int layout_of_arg(const Node& n, i32 arg, int layout) const {
    const bool first_or_second = n.op == Op::first_of_pair || n.op == Op::second_of_pair;
    if (first_or_second && is_interleaved(n) && layout > 0) {
      if (layout == 4) throw NoFragment{};
      return layout * 2;
    }
    if (n.op == Op::join && is_interleaved(n) && layout > 0) {
      if (layout == 1) throw NoFragment{};
      return layout / 2;
    }
    if (n.op == Op::segment_sum) return wanted(arg);
    if (n.op == Op::segment_broadcast) return 0;
    return layout;
  }

  /// Pairs and segments must be whole groups of columns.
  void check_periods(const Node& n, int layout) const {
    const i64 group = group_columns(layout);
    const bool pairs = n.op == Op::first_of_pair || n.op == Op::second_of_pair || n.op == Op::join;
    if (pairs && !is_interleaved(n) && n.attrs.period / 2 % group != 0) throw NoFragment{};
    if (is_rotation(n.op)) {
      if (is_interleaved(n) ? layout != 2 && layout != 4 : n.attrs.period / 2 % group != 0)
        throw NoFragment{};
      if (layout == 0 || n.attrs.period % (2 * group) != 0) throw NoFragment{};
    }
    if (n.op == Op::segment_broadcast && n.attrs.period % group != 0) throw NoFragment{};
    if (n.op == Op::segment_sum) {
      const int arg = out_.layout[at(n.args[0].index)];
      if (n.attrs.period % group_columns(arg) != 0) throw NoFragment{};
    }
  }

  /// The columns that no pair, segment or head crosses; for chunks, no granule either.
  void find_chunk() {
    i64 unit = out_.acc_scale * 8;
    const auto whole = [&](i64 own, i32 index) { unit = std::lcm(unit, own * scale(index)); };
    for (const i32 index : section_.nodes) {
      const Node& n = node(index);
      const i64 period = is_interleaved(n) ? 2 : n.attrs.period;
      if (n.op == Op::join) whole(period, index);
      if (n.op == Op::first_of_pair || n.op == Op::second_of_pair) whole(period / 2, index);
      if (is_rotation(n.op) || n.op == Op::segment_broadcast) whole(n.attrs.period, index);
      whole(group_columns(wanted(index)), index);
      if (unit > 4 * kWidestChunk) throw NoFragment{};
    }
    // A log-sum-exp needs its granule twice: the maximum first.
    for (const auto& sink : section_.sinks)
      if (is_online(sink.op)) whole(kColumnGranule, sink.node);
    const i64 step = unit;
    unit = std::lcm(unit, i64{64});
    for (const auto& sink : section_.sinks)
      if (sink.op != Op::store_tile && sink.op != Op::col_sum) whole(kColumnGranule, sink.node);
    out_.step = step / out_.acc_scale;
    out_.chunk = unit / out_.acc_scale;
    if (unit % out_.acc_scale != 0 || out_.chunk > kWidestChunk) throw NoFragment{};
    for (const i32 index : section_.nodes)
      if (step / scale(index) > kWidestChunk) throw NoFragment{};
    // Steps and granules must nest.
    for (const auto& sink : section_.sinks) {
      const i64 columns = step / scale(sink.node);
      const bool reduction = sink.op != Op::store_tile && sink.op != Op::col_sum;
      if (reduction && columns % kColumnGranule != 0 && kColumnGranule % columns != 0)
        throw NoFragment{};
    }
  }

  const Lowered& lowered_;
  const LoweredSection& section_;
  FragmentLayout out_;
};

}  // namespace

std::optional<FragmentLayout> fragment_layout(const Lowered& lowered,
                                              const LoweredSection& section) {
  try {
    return Layouts(lowered, section).run();
  } catch (const NoFragment&) {
    return std::nullopt;
  }
}

}  // namespace coda::cuda
