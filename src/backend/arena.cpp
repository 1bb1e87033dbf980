#include "backend/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace coda {

namespace {

constexpr std::size_t kAlignment = 256;  // of buffers; TMA and vector loads ask for less
constexpr std::size_t kRowAlignment = 64;

struct Interval {
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  std::int32_t last = -1;
  bool overlaps(const Interval& other) const { return first <= other.last && other.first <= last; }
};

/// First and last step that touches each buffer, counted through both phases.
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
  return intervals;
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

Extents extents_of(const Buffer& buffer, std::int64_t tokens) {
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
  const std::vector<Interval> alive = lifetimes(plan);
  std::vector<std::size_t> order;  // owned buffers, large ones first
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.role == Role::input || buffer.role == Role::output) continue;
    const DType dtype = widen && is_float(buffer.dtype) ? DType::f64 : buffer.dtype;
    const Extents extents = extents_of(buffer, max_tokens);
    const auto per_row = static_cast<std::int64_t>(kRowAlignment / size_of(dtype));
    Placement& placement = arena.placements[i];
    placement.stride = extents.cols == 1 ? 1 : (extents.cols + per_row - 1) / per_row * per_row;
    placement.bytes = checked_bytes(buffer, extents.rows, placement.stride, size_of(dtype));
    placement.bytes = (placement.bytes + kAlignment - 1) / kAlignment * kAlignment;
    order.push_back(i);
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
  return arena;
}

}  // namespace coda
