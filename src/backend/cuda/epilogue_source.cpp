#include "backend/cuda/epilogue_source.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "backend/cuda/epilogue_source_layout.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

using lowering::Lowered;
using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

bool is_store(Op op) {
  return op == Op::store_tile || op == Op::store_partial || op == Op::store_vector;
}
bool is_vector(const Value& v) {
  return v.kind == Kind::col || v.kind == Kind::row || v.kind == Kind::scalar;
}
/// Reads elements of an argument other than its own.
bool reads_across(Op op) {
  return op == Op::sum || op == Op::cols || op == Op::repeat || op == Op::fold ||
         op == Op::cat_cols;
}

/// Columns at which operand B's row blocks begin along N, and its end; nothing in between for an
/// N-major B, whose blocks lie along K.
std::vector<i64> blocks_of_b(const Program& program) {
  std::vector<i64> starts = {0};
  if (!program.gemm.transpose_b) return {0, program.cols.num};
  for (const i32 b : program.gemm.b)
    starts.push_back(starts.back() + program.operands[at(b)].rows.num);
  return starts;
}

/// The accumulator blocks of a section, ascending: columns where they begin.
struct Parts {
  std::vector<i64> starts;
  i64 width = 0;
  i64 row = 0;
};

Parts parts_of(const Lowered& lowered, const LoweredSection& section) {
  Parts parts;
  for (const i32 index : section.nodes) {
    const Node& node = lowered.nodes[at(index)];
    if (node.op != Op::acc) continue;
    parts.starts.push_back(node.col);
    parts.width = node.width;
    parts.row = node.row;
  }
  if (parts.starts.empty()) return parts;  // a section of columns that the product does not reach
  std::sort(parts.starts.begin(), parts.starts.end());
  // Tiles are cut into 1, 2 or 4 parts: a third is followed by one that nobody reads.
  while (!std::has_single_bit(parts.starts.size())) parts.starts.push_back(parts.starts.back());
  return parts;
}

/// Cuts a section where one of its parts meets the edge of a block of B. False: at columns that a
/// chunk cannot be cut at.
bool cut_blocks(const Program& program, const Parts& parts, i64 chunk, EpilogueBlock block,
                std::vector<EpilogueBlock>& out) {
  std::set<i64> cuts = {0, parts.width};
  for (const i64 edge : blocks_of_b(program)) {
    for (const i64 start : parts.starts) {
      const i64 cut = edge - start;
      if (cut <= 0 || cut >= parts.width) continue;
      if (cut % chunk != 0) return false;
      cuts.insert(cut);
    }
  }
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    block.column = *cut;
    block.columns = *std::next(cut) - *cut;
    block.starts = parts.starts;
    out.push_back(block);
  }
  return true;
}

class Planner {
 public:
  explicit Planner(const Program& program) : program_(program) {}

  EpiloguePlan run() {
    plan_.lowered = lowering::lower(program_);
    for (std::size_t s = 0; s < plan_.lowered.sections.size(); ++s) place(static_cast<i32>(s));
    find_vectors();
    return std::move(plan_);
  }

 private:
  void place(i32 index) {
    const LoweredSection& section = plan_.lowered.sections[at(index)];
    const Parts parts = parts_of(plan_.lowered, section);
    const auto layout = fragment_layout(plan_.lowered, section);
    std::vector<EpilogueBlock> blocks;
    EpilogueBlock block;
    block.section = index;
    if (!layout || parts.starts.empty() || parts.starts.size() > 4 ||
        static_cast<i64>(parts.starts.size()) * layout->chunk > 256 ||
        !cut_blocks(program_, parts, layout->chunk, block, blocks)) {
      plan_.fits = false;
      return;
    }
    const auto n_parts = static_cast<int>(parts.starts.size());
    double slab = 0;
    for (const auto& sink : section.sinks)
      if (sink.op == Op::col_sum)
        slab += static_cast<double>(layout->acc_scale) /
                static_cast<double>(plan_.lowered.scale[at(sink.node)]);
    const i64 rows = section.rows;
    for (const EpilogueBlock& piece : blocks) {
      EpilogueLaunch& launch = launch_for(parts.row, rows, n_parts);
      launch.chunk = std::lcm(launch.chunk, layout->chunk);
      launch.column_sums |= slab > 0;
      launch.light = launch.light && section.nodes.size() <= 4 &&
                     std::all_of(section.sinks.begin(), section.sinks.end(),
                                 [](const auto& sink) { return sink.op == Op::store_tile; });
      launch.slab_columns = std::max(launch.slab_columns, slab);
      launch.blocks.push_back(piece);
    }
  }

  /// The launch that has room for one more block.
  EpilogueLaunch& launch_for(i64 row, i64 rows, int parts) {
    const bool along_k = !program_.gemm.transpose_b;
    const auto lists = along_k ? std::max<std::size_t>(1, program_.gemm.b.size()) : 1;
    const std::size_t room =
        std::max<std::size_t>(1, 8 / (lists * static_cast<std::size_t>(parts)));
    for (EpilogueLaunch& launch : plan_.launches) {
      if (launch.row == row && launch.rows == rows && launch.parts == parts &&
          launch.blocks.size() < room)
        return launch;
    }
    EpilogueLaunch launch;
    launch.row = row;
    launch.rows = rows;
    launch.parts = parts;
    plan_.launches.push_back(launch);
    return plan_.launches.back();
  }

  // --- vectors ---

  /// Everything that tiles read and that is not simply there, the program's own vector stores, and
  /// what those need; by stages, since a stage cannot see what its other threads make.
  void find_vectors() {
    std::set<i32> wanted;
    for (const LoweredSection& section : plan_.lowered.sections) {
      for (const i32 index : section.nodes) {
        const Node& node = plan_.lowered.nodes[at(index)];
        const bool rotation = node.op == Op::rotate || node.op == Op::unrotate;
        for (const Ref& arg : node.args) {
          if (arg.kind == Ref::Kind::tile || is_direct(program_, arg.index)) continue;
          wanted.insert(arg.index);
        }
        if (rotation) add_angles(node);
      }
    }
    std::vector<bool> needed(program_.values.size(), false);
    for (const i32 value : wanted) needed[at(value)] = true;
    for (std::size_t i = program_.values.size(); i-- > 0;) {
      const Value& v = program_.values[i];
      if (is_store(v.op)) {
        const Value& stored = program_.values[at(v.args[0])];
        const bool of_tile = !is_vector(stored) || lowering::is_tile_reduction(stored.op);
        if (!of_tile) needed[i] = true;
      }
      if (!needed[i]) continue;
      for (const i32 arg : v.args) needed[at(arg)] = true;
    }
    for (const EpilogueVector& vector : plan_.vectors)
      if (vector.frequency >= 0) needed[at(vector.frequency)] = true;
    choose_stages(needed);
    // A value has a slot if a tile or another stage reads it, or others of its elements are read.
    std::set<i32> slots = wanted;
    for (std::size_t i = 0; i < program_.values.size(); ++i) {
      const Value& v = program_.values[i];
      if (plan_.stages[i] < 0) continue;
      for (const i32 arg : v.args)
        if (plan_.stages[at(arg)] >= 0 &&
            (plan_.stages[at(arg)] != plan_.stages[i] || reads_across(v.op)))
          slots.insert(arg);
    }
    for (const EpilogueVector& vector : plan_.vectors)
      if (vector.frequency >= 0 && !is_direct(program_, vector.frequency))
        slots.insert(vector.frequency);
    for (const i32 value : slots) {
      const Value& v = program_.values[at(value)];
      EpilogueVector vector;
      vector.value = value;
      vector.length = v.kind == Kind::col ? -1 : v.kind == Kind::row ? v.cols.num : 1;
      plan_.vectors.push_back(vector);
    }
  }

  void add_angles(const Node& node) {
    EpilogueVector angles;
    angles.value = node.args[1].index;
    angles.frequency = node.args[2].index;
    angles.period = program_.values[at(angles.frequency)].cols.num;
    for (const EpilogueVector& known : plan_.vectors)
      if (known.value == angles.value && known.frequency == angles.frequency) return;
    plan_.vectors.push_back(angles);
  }

  void choose_stages(const std::vector<bool>& needed) {
    plan_.stages.assign(program_.values.size(), -1);
    const auto kind_of = [&](i32 i) {
      const Value& v = program_.values[at(i)];
      return is_store(v.op) ? program_.values[at(v.args[0])].kind : v.kind;
    };
    // Level first, then one stage for each kind of a level.
    std::vector<int> level(program_.values.size(), 0);
    std::set<std::pair<int, Kind>> stages;
    const auto runs = [&](i32 i) {
      return needed[at(i)] && (is_store(program_.values[at(i)].op) || !is_direct(program_, i));
    };
    for (i32 i = 0; i < static_cast<i32>(program_.values.size()); ++i) {
      if (!runs(i)) continue;
      const Value& v = program_.values[at(i)];
      for (const i32 arg : v.args) {
        if (!runs(arg)) continue;
        const bool same = kind_of(arg) == kind_of(i) && !reads_across(v.op);
        level[at(i)] = std::max(level[at(i)], level[at(arg)] + (same ? 0 : 1));
      }
      stages.insert({level[at(i)], kind_of(i)});
    }
    for (i32 i = 0; i < static_cast<i32>(program_.values.size()); ++i)
      if (runs(i))
        plan_.stages[at(i)] = static_cast<i32>(
            std::distance(stages.begin(), stages.find({level[at(i)], kind_of(i)})));
    plan_.stage_count = static_cast<i32>(stages.size());
    // Angles come last, in a stage of their own if their frequencies are made before.
    for (const EpilogueVector& v : plan_.vectors) {
      if (v.frequency < 0 || (plan_.stage_count > 0 && is_direct(program_, v.frequency))) continue;
      ++plan_.stage_count;
      break;
    }
  }

  const Program& program_;
  EpiloguePlan plan_;
};

}  // namespace

bool is_direct(const Program& program, i32 value) {
  const Value& v = program.values[at(value)];
  const bool load = v.op == Op::load_col || v.op == Op::load_row || v.op == Op::load_scalar;
  return v.op == Op::constant || (load && v.attrs.finish == Finish::none);
}

std::size_t operand_count(const Program& program, const EpiloguePlan& plan) {
  return program.operands.size() + plan.vectors.size();
}

EpiloguePlan plan_epilogue(const Program& program) {
  EpiloguePlan plan = Planner(program).run();
  plan.maps = staged_stores(program, plan);
  plan.loads = ring_loads(program, plan);
  return plan;
}

}  // namespace coda::cuda
