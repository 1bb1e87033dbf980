#include "backend/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda {

namespace {

constexpr std::size_t kAlignment = 256;  // of buffers; TMA and vector loads ask for less
constexpr std::size_t kRowAlignment = 64;

struct Interval {
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  std::int32_t last = -1;
  bool overlaps(const Interval& other) const { return first <= other.last && other.first <= last; }
};

/// First and last step that touches each buffer, counted through both phases. Results stay.
std::vector<Interval> lifetimes(const Plan& plan) {
  std::vector<Interval> intervals(plan.buffers.size());
  std::int32_t number = 0;
  for (const auto* phase : {&plan.forward, &plan.backward}) {
    for (const Step& step : *phase) {
      for (const Slice& slice : step.slices) {
        Interval& interval = intervals[static_cast<std::size_t>(slice.buffer)];
        interval.first = std::min(interval.first, number);
        interval.last = std::max(interval.last, number);
      }
      ++number;
    }
  }
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    if (plan.buffers[i].role == Role::result) intervals[i].last = number;
  }
  return intervals;
}

/// May `to` lie where `from` does, in a row program? Yes if whatever is made of `from` is made
/// element by element, and then stored to `to` or reduced along whole rows no later: backends run
/// the stores and reductions that wait for equally many reductions before them in one pass, which
/// reads an element once, before it overwrites it.
bool may_overwrite(const Program& program, std::size_t from, std::size_t to) {
  const auto count = program.values.size();
  std::vector<char> depends(count, 0);
  std::vector<int> stage(count, 0);  // reductions one behind the other
  int stored = -1, read = 0;         // stage of the store to `to`; the last that reads `from`
  for (std::size_t v = 0; v < count; ++v) {
    const Value& value = program.values[v];
    const bool reduces = row_of(value.op).op_class == OpClass::reduction;
    for (const std::int32_t arg : value.args) {
      const auto a = static_cast<std::size_t>(arg);
      const bool reduced = row_of(program.values[a].op).op_class == OpClass::reduction;
      stage[v] = std::max(stage[v], stage[a] + (reduced ? 1 : 0));
      depends[v] = depends[v] || depends[a];
    }
    if (value.op == Op::load_tile && value.operand == static_cast<std::int32_t>(from)) {
      depends[v] = 1;
    } else if (depends[v] && reduces && value.kind == Kind::col && !value.partial) {
      depends[v] = 0;
      read = std::max(read, stage[v]);
    } else if (depends[v] && value.op == Op::store_tile) {
      if (value.operand != static_cast<std::int32_t>(to)) return false;
      stored = stage[v];
    } else if (depends[v]) {
      const bool maps = row_of(value.op).op_class == OpClass::elementwise;
      if (!maps || value.kind != Kind::tile) return false;
    }
  }
  return stored >= 0 && read <= stored;
}

/// The operand that is bound to a whole tile buffer, which no other operand touches; -1: none.
std::int32_t operand_of(const Step& step, const Plan& plan, std::int32_t buffer) {
  const Buffer& b = plan.buffers[static_cast<std::size_t>(buffer)];
  if (b.partial || b.kind != Kind::tile || b.rows != kTokens) return -1;
  std::int32_t found = -1;
  for (std::size_t i = 0; i < step.slices.size(); ++i) {
    const Slice& slice = step.slices[i];
    if (slice.buffer != buffer) continue;
    const bool whole = slice.col == 0 && slice.cols == b.cols && slice.rows == kTokens;
    if (found >= 0 || !whole) return -1;
    found = static_cast<std::int32_t>(i);
  }
  return found;
}

bool is_owned(const Buffer& buffer) {
  return buffer.role != Role::input && buffer.role != Role::output;
}

/// For each buffer the one whose memory it takes over, or -1: a row program's result, of the
/// extents and type of a tile that dies with that step. The gradient of logits lies on the logits.
std::vector<std::int32_t> taken_over(const Plan& plan, const std::vector<Interval>& alive) {
  std::vector<std::int32_t> from(plan.buffers.size(), -1);
  std::vector<char> given(plan.buffers.size(), 0);
  std::int32_t number = -1;
  for (const auto* phase : {&plan.forward, &plan.backward}) {
    for (const Step& step : *phase) {
      ++number;
      if (!step.program || step.program->form != Form::rows) continue;
      for (const Slice& output : step.slices) {
        const auto to = static_cast<std::size_t>(output.buffer);
        const std::int32_t store = operand_of(step, plan, output.buffer);
        if (store < 0 || !step.program->operands[static_cast<std::size_t>(store)].output) continue;
        if (!is_owned(plan.buffers[to]) || alive[to].first != number || from[to] >= 0) continue;
        for (const Slice& input : step.slices) {
          const auto at = static_cast<std::size_t>(input.buffer);
          const std::int32_t load = operand_of(step, plan, input.buffer);
          if (load < 0 || at == to || given[at] || alive[at].last != number) continue;
          if (!is_owned(plan.buffers[at]) || plan.buffers[at].cols != plan.buffers[to].cols ||
              plan.buffers[at].dtype != plan.buffers[to].dtype) {
            continue;
          }
          if (!may_overwrite(*step.program, static_cast<std::size_t>(load),
                             static_cast<std::size_t>(store))) {
            continue;
          }
          from[to] = input.buffer;
          given[at] = 1;
          break;
        }
      }
    }
  }
  return from;
}

std::size_t checked_bytes(const Buffer& buffer, std::int64_t rows, std::int64_t stride,
                          std::size_t element) {
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 64;
  if (rows > 0 && stride > limit / rows) {
    throw_error<UsageError>(
        "plan: buffer {}: expected a size that fits memory, got [{}, {}]. Reserve fewer tokens.",
        buffer.name, rows, stride);
  }
  return static_cast<std::size_t>(rows * stride) * element;
}

}  // namespace

Extents extents_of(const Buffer& buffer, std::int64_t all_tokens) {
  const std::int64_t tokens = rows_of(buffer.piece, all_tokens).rows;
  const auto count = [&](std::int64_t extent) { return extent == kTokens ? tokens : extent; };
  if (!buffer.partial) {
    switch (buffer.kind) {
      case Kind::col:
        return {count(buffer.rows), 1};
      case Kind::row:
        return {1, buffer.cols};
      case Kind::scalar:
        return {1, 1};
      default:
        return {count(buffer.rows), buffer.cols};
    }
  }
  const std::int64_t granules =
      buffer.granules == kTokens ? (tokens + kRowGranule - 1) / kRowGranule : buffer.granules;
  const std::int64_t planes = is_online(buffer.finish) ? 2 : 1;
  switch (buffer.kind) {
    case Kind::col:
      return {granules * planes, count(buffer.rows)};
    case Kind::row:
      return {granules, buffer.cols};
    default:
      return {granules, 1};
  }
}

Arena layout_arena(const Plan& plan, std::int64_t max_tokens, bool reuse, bool widen) {
  Arena arena;
  arena.placements.resize(plan.buffers.size());
  std::vector<Interval> alive = lifetimes(plan);
  std::vector<std::int32_t> from(plan.buffers.size(), -1);
  if (reuse) from = taken_over(plan, alive);
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::int32_t at = from[i]; at >= 0; at = from[static_cast<std::size_t>(at)]) {
      Interval& whole = alive[static_cast<std::size_t>(at)];
      whole.last = std::max(whole.last, alive[i].last);
    }
  }
  std::vector<std::size_t> order;  // owned buffers, large ones first
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (!is_owned(buffer)) continue;
    const DType dtype = widen && is_float(buffer.dtype) ? DType::f64 : buffer.dtype;
    Buffer largest = buffer;  // of pieces the first; with fewer tokens another may be as large
    largest.piece.index = 0;
    const Extents extents = extents_of(largest, max_tokens);
    const bool contiguous = extents.cols == 1 || buffer.role == Role::result;
    const auto per_row = contiguous ? 1 : static_cast<std::int64_t>(kRowAlignment / size_of(dtype));
    Placement& placement = arena.placements[i];
    placement.stride = (extents.cols + per_row - 1) / per_row * per_row;
    placement.bytes = checked_bytes(buffer, extents.rows, placement.stride, size_of(dtype));
    placement.bytes = (placement.bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (from[i] < 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return arena.placements[a].bytes > arena.placements[b].bytes;
  });
  std::vector<std::size_t> placed;
  for (const std::size_t i : order) {
    Placement& placement = arena.placements[i];
    // The lowest gap between buffers that are alive at the same time.
    std::vector<const Placement*> busy;
    for (const std::size_t other : placed) {
      if (!reuse || alive[i].overlaps(alive[other])) busy.push_back(&arena.placements[other]);
    }
    std::sort(busy.begin(), busy.end(),
              [](const Placement* a, const Placement* b) { return a->offset < b->offset; });
    std::size_t offset = 0;
    for (const Placement* other : busy) {
      if (offset + placement.bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    placement.offset = offset;
    arena.bytes = std::max(arena.bytes, offset + placement.bytes);
    placed.push_back(i);
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) continue;
    auto first = static_cast<std::size_t>(from[i]);
    while (from[first] >= 0) first = static_cast<std::size_t>(from[first]);
    arena.placements[i].offset = arena.placements[first].offset;
  }
  return arena;
}

}  // namespace coda
