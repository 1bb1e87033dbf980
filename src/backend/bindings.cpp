#include "backend/bindings.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/opaque.h"

namespace coda {

namespace {

std::string extent_text(std::int64_t extent) {
  return extent == kTokens ? "M" : fmt::format("{}", extent);
}

std::string buffer_text(const Buffer& buffer) {
  switch (buffer.kind) {
    case Kind::col:
      return fmt::format("{}[{}]", name_of(buffer.dtype), extent_text(buffer.rows));
    case Kind::row:
      return fmt::format("{}[{}]", name_of(buffer.dtype), buffer.cols);
    case Kind::scalar:
      return fmt::format("{}[]", name_of(buffer.dtype));
    case Kind::list:
      return fmt::format("{}[any]", name_of(buffer.dtype));
    default:
      return fmt::format("{}[{}, {}]", name_of(buffer.dtype), extent_text(buffer.rows),
                         buffer.cols);
  }
}

std::string view_text(const TensorView& view) {
  return fmt::format("{}[{}, {}]", name_of(view.dtype), view.rows, view.cols);
}

bool is_user(const Buffer& buffer) {
  return buffer.role == Role::input || buffer.role == Role::output;
}

/// The bytes from the first to the last element of a view.
struct ByteRange {
  std::uintptr_t first = 0, last = 0;  ///< [first, last)
};
ByteRange bytes_of(const TensorView& view) {
  if (view.rows == 0 || view.cols == 0) return {};
  const auto first = reinterpret_cast<std::uintptr_t>(view.data);
  const auto count = static_cast<std::size_t>((view.rows - 1) * view.stride + view.cols);
  return {first, first + count * size_of(view.dtype)};
}

/// Whether two views share an element. Column ranges of one matrix interleave without sharing.
bool share_elements(const TensorView& a, const TensorView& b) {
  const ByteRange x = bytes_of(a), y = bytes_of(b);
  if (x.first >= y.last || y.first >= x.last) return false;
  const auto row_a = static_cast<std::size_t>(a.stride) * size_of(a.dtype);
  const auto row_b = static_cast<std::size_t>(b.stride) * size_of(b.dtype);
  if (row_a != row_b || a.rows <= 1 || b.rows <= 1) return true;
  const std::size_t shift = (std::max(x.first, y.first) - std::min(x.first, y.first)) % row_a;
  const TensorView& low = x.first <= y.first ? a : b;
  const TensorView& high = x.first <= y.first ? b : a;
  const auto width = [](const TensorView& v) {
    return static_cast<std::size_t>(v.cols) * size_of(v.dtype);
  };
  return shift < width(low) || shift + width(high) > row_a;
}

}  // namespace

Bindings::Bindings(std::shared_ptr<const Plan> plan, std::int64_t max_tokens, Options options)
    : plan_(std::move(plan)), max_tokens_(max_tokens), options_(options) {
  if (!plan_) {
    throw_error<UsageError>("prepare: expected a plan, got null. Give it what compile() returned.");
  }
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
  if (max_tokens < 0 || max_tokens > kMostTokens) {
    throw_error<UsageError>(
        "prepare: expected at least 0 tokens and at most {}, got {}. Reserve the largest number of "
        "rows that a run will have.",
        kMostTokens, max_tokens);
  }
  for (const Buffer& buffer : plan_->buffers) {
    if (buffer.dtype != DType::f64 || options.holds_f64) continue;
    throw_error<UsageError>(
        "prepare: {}: expected f32, bf16, f16, i32 or i64, got f64. Only the reference backend "
        "holds it: make the input with another type.",
        buffer.name);
  }
  arena_ = layout_arena(*plan_, max_tokens, options.reuse, options.widen);
  if (options.backend != nullptr) {
    memory_ = options.backend->allocate(arena_.bytes);
  } else {
    const auto memory =
        std::make_shared<HostTensor>(DType::f64, 1, static_cast<std::int64_t>(arena_.bytes / 8));
    memory_ = {memory, memory->view().data};
  }
  if (options.poison && arena_.bytes > 0) {
    std::memset(memory_.get(), 0xff, arena_.bytes);  // NaN in every float type
  }
  bound_.resize(plan_->buffers.size());
  is_bound_.assign(plan_->buffers.size(), 0);
  for (const int phase : {0, 1}) {
    const std::vector<Step>& steps = phase == 0 ? plan_->forward : plan_->backward;
    used_[phase].assign(plan_->buffers.size(), 0);
    updated_[phase].assign(plan_->buffers.size(), 0);
    for (const Step& step : steps) {
      if (!step.program) {
        for (const int input : row_of(step.opaque).updates) {
          const Slice& slice = step.slices[static_cast<std::size_t>(input)];
          updated_[phase][static_cast<std::size_t>(slice.buffer)] = 1;
        }
      }
      for (const Slice& slice : step.slices) {
        used_[phase][static_cast<std::size_t>(slice.buffer)] = 1;
      }
    }
    ranges_[phase] = range_checks(*plan_, steps);
  }
}

std::int32_t Bindings::index_of(std::string_view name) const {
  for (std::size_t i = 0; i < plan_->buffers.size(); ++i) {
    if (plan_->buffers[i].name == name) return static_cast<std::int32_t>(i);
  }
  return -1;
}

void Bindings::bind(std::string_view name, const TensorView& view) {
  const std::int32_t index = index_of(name);
  if (index < 0 || !is_user(plan_->buffers[static_cast<std::size_t>(index)])) {
    std::string known;
    for (const Buffer& buffer : plan_->buffers) {
      if (is_user(buffer)) known += (known.empty() ? "" : ", ") + buffer.name;
    }
    throw_error<UsageError>(
        "bind: expected an input or output of the plan ({}), got \"{}\". "
        "Correct the name.",
        known, name);
  }
  const auto slot = static_cast<std::size_t>(index);
  const Buffer& buffer = plan_->buffers[slot];
  const auto fail = [&](const std::string& fix) {
    throw_error<UsageError>("bind: {}: expected {}, got {} with stride {}. {}.", name,
                            buffer_text(buffer), view_text(view), view.stride, fix);
  };
  const bool wide = options_.widen && view.dtype == DType::f64 && is_float(buffer.dtype);
  if (view.dtype != buffer.dtype && !wide) fail("Convert it to the type that the plan expects");
  if (view.rows < 0 || view.cols < 0) fail("Extents are at least 0");
  if (buffer.kind == Kind::list) {
    if (view.rows * view.cols < 1 || (view.rows != 1 && view.stride != 1)) {
      fail("Give a contiguous list with at least one entry");
    }
  } else {
    const Extents extents = extents_of(buffer, view.rows);
    if (view.rows != extents.rows || view.cols != extents.cols) {
      fail("Give a tensor with these extents");
    }
    const bool contiguous = buffer.kind == Kind::col && view.rows > 1;
    if (contiguous ? view.stride != 1 : view.rows > 1 && view.stride < view.cols) {
      fail(contiguous ? "A column vector is contiguous: stride 1"
                      : "Rows must not overlap: stride >= columns");
    }
  }
  if (view.data == nullptr && view.rows > 0 && view.cols > 0) fail("Give memory, not null");
  bound_[slot] = view;
  is_bound_[slot] = 1;
}

void Bindings::check_bound(std::int32_t index, std::int64_t tokens) const {
  const auto slot = static_cast<std::size_t>(index);
  const Buffer& buffer = plan_->buffers[slot];
  if (!is_bound_[slot]) {
    throw_error<UsageError>(
        "run: {}: expected {} to be bound, got nothing. Call bind(\"{}\", ...) "
        "first.",
        buffer.name, buffer_text(buffer), buffer.name);
  }
  if (buffer.kind != Kind::list && buffer.rows == kTokens && bound_[slot].rows != tokens) {
    throw_error<UsageError>(
        "run: {}: expected {} with M = {} rows, got {}. Bind a tensor with one row a token.",
        buffer.name, buffer_text(buffer), tokens, view_text(bound_[slot]));
  }
}

bool Bindings::used(Phase phase, std::int32_t buffer) const {
  return used_[static_cast<std::size_t>(phase)][static_cast<std::size_t>(buffer)] != 0;
}

bool Bindings::written(Phase phase, std::int32_t buffer) const {
  const bool output = plan_->buffers[static_cast<std::size_t>(buffer)].role == Role::output;
  const auto slot = static_cast<std::size_t>(buffer);
  return (output && used(phase, buffer)) || updated_[static_cast<std::size_t>(phase)][slot] != 0;
}

void Bindings::check_overlap(Phase phase) const {
  const auto count = static_cast<std::int32_t>(bound_.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const Buffer& output = plan_->buffers[static_cast<std::size_t>(i)];
    if (!written(phase, i)) continue;
    for (std::int32_t j = 0; j < count; ++j) {
      const Buffer& other = plan_->buffers[static_cast<std::size_t>(j)];
      const bool pair_seen = written(phase, j) && j <= i;
      if (!is_user(other) || pair_seen || !used(phase, j)) continue;
      if (share_elements(bound_[static_cast<std::size_t>(i)],
                         bound_[static_cast<std::size_t>(j)])) {
        throw_error<UsageError>(
            "run: {} {}: expected memory of its own, got memory shared with {}. Bind them to "
            "tensors that do not overlap.",
            output.role == Role::output ? "output" : "input", output.name, other.name);
      }
    }
  }
}

void Bindings::begin(Phase phase, std::int64_t tokens) {
  if (tokens < 0 || tokens > max_tokens_) {
    throw_error<UsageError>(
        "run: expected between 0 and {} tokens (as reserved), got {}. Prepare the plan for more "
        "tokens.",
        max_tokens_, tokens);
  }
  if (phase == Phase::backward && forward_tokens_ != tokens) {
    throw_error<UsageError>(
        "run: backward of {} tokens: expected a forward run of as many before it, got {}. Run "
        "forward on the same rows first.",
        tokens, forward_tokens_ < 0 ? "none" : fmt::format("one of {}", forward_tokens_));
  }
  const auto count = static_cast<std::int32_t>(plan_->buffers.size());
  for (std::int32_t i = 0; i < count; ++i) {
    if (used(phase, i) && is_user(plan_->buffers[static_cast<std::size_t>(i)])) {
      check_bound(i, tokens);
    }
  }
  check_overlap(phase);
  if (options_.backend == nullptr || options_.backend->on_host()) {
    for (const RangeCheck& check : ranges_[static_cast<std::size_t>(phase)]) {
      const auto slot = static_cast<std::size_t>(check.buffer);
      const TensorView offsets =
          check.offsets < 0 ? TensorView{} : bound_[static_cast<std::size_t>(check.offsets)];
      check_range(check, plan_->buffers[slot].name, bound_[slot], tokens, offsets);
    }
  }
  tokens_ = tokens;
  if (phase == Phase::forward) forward_tokens_ = -1;  // until it is complete
}

void Bindings::check_ranges(Phase phase, const CopyToHost& copy) const {
  for (const RangeCheck& check : ranges_[static_cast<std::size_t>(phase)]) {
    const auto slot = static_cast<std::size_t>(check.buffer);
    const TensorView& bound = bound_[slot];
    const HostTensor values(bound.dtype, bound.rows, bound.cols);  // cols, lists: contiguous
    copy(values.view().data, bound.data, values.view().bytes());
    check_range(check, plan_->buffers[slot].name, values.view(), tokens_);
  }
}

void Bindings::end(Phase phase) {
  if (phase == Phase::forward) forward_tokens_ = tokens_;
}

TensorView Bindings::view(std::int32_t index) const {
  const auto slot = static_cast<std::size_t>(index);
  const Buffer& buffer = plan_->buffers[slot];
  if (is_user(buffer)) return bound_[slot];
  const Placement& placement = arena_.placements[slot];
  const Extents extents = extents_of(buffer, tokens_);
  const DType dtype = options_.widen && is_float(buffer.dtype) ? DType::f64 : buffer.dtype;
  auto* base = static_cast<std::byte*>(memory_.get());
  return {base + placement.offset, dtype, extents.rows, extents.cols, placement.stride};
}

TensorView Bindings::view(std::string_view name) const {
  const std::int32_t index = index_of(name);
  if (index < 0) {
    throw_error<UsageError>(
        "buffer: expected a buffer of the plan, got \"{}\". Print the plan to "
        "see their names.",
        name);
  }
  return view(index);
}

namespace {

void move(TensorView& view, std::int64_t row, std::int64_t col) {
  if (view.data == nullptr) return;
  const auto offset = static_cast<std::size_t>(row * view.stride + col);
  view.data = static_cast<std::byte*>(view.data) + offset * size_of(view.dtype);
}

}  // namespace

TensorView Bindings::view(const Slice& slice, Piece piece) const {
  TensorView view = rows_of_view(slice.buffer, piece);
  const Buffer& buffer = plan_->buffers[static_cast<std::size_t>(slice.buffer)];
  if (buffer.kind == Kind::list || buffer.kind == Kind::scalar) return view;
  const bool by_columns = buffer.kind != Kind::col;
  const bool by_rows = !buffer.partial && buffer.kind != Kind::row && slice.rows != kTokens;
  move(view, by_rows ? slice.row : 0, by_columns ? slice.col : 0);
  if (by_rows) view.rows = slice.rows;
  if (by_columns) view.cols = slice.cols;
  return view;
}

/// A whole buffer, but of what has M rows those of the piece.
TensorView Bindings::rows_of_view(std::int32_t index, Piece piece) const {
  TensorView whole = view(index);
  const Buffer& buffer = plan_->buffers[static_cast<std::size_t>(index)];
  const RowRange range = rows_of(piece, tokens_);
  if (piece.count == 1 || buffer.piece == piece) return whole;
  if (buffer.partial && buffer.granules == kTokens) {
    move(whole, range.first / kRowGranule, 0);
    whole.rows = (range.rows + kRowGranule - 1) / kRowGranule;
  } else if (buffer.partial && buffer.rows == kTokens) {  // a row for each partial
    move(whole, 0, range.first);
    whole.cols = range.rows;
  } else if (buffer.rows == kTokens && buffer.kind != Kind::row) {
    move(whole, range.first, 0);
    whole.rows = range.rows;
  }
  return whole;
}

}  // namespace coda
