#include "plan/plan.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "ops/op_table.h"
#include "ops/opaque.h"

namespace coda {
namespace {

std::string_view name_of(Role role) {
  switch (role) {
    case Role::input:
      return "input";
    case Role::output:
      return "output";
    case Role::saved:
      return "saved";
    case Role::scratch:
      return "scratch";
    case Role::result:
      return "result";
  }
  return "?";
}

bool is_matrix(Kind kind) { return kind == Kind::tile || kind == Kind::weight; }

double extent(std::int64_t rows, std::int64_t tokens) {
  return static_cast<double>(rows == kTokens ? tokens : rows);
}

std::string rows_text(std::int64_t rows) { return rows == kTokens ? "M" : fmt::format("{}", rows); }

/// Does the part of a buffer that a step sees depend on M?
bool follows_rows(const Buffer& buffer, const Slice& slice) {
  return slice.rows == kTokens || (buffer.partial && buffer.granules == kTokens);
}

/// A rectangle of a buffer. Tokens count as kAllTokens rows, which pieces share equally.
struct Area {
  static constexpr std::int64_t kAllTokens = 5354228880;  // a multiple of all counts to 24
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;

  Area(const Slice& s, const Buffer& buffer, Piece piece = {})
      : row(s.row), col(s.col), rows(s.rows), cols(s.cols) {
    if (!follows_rows(buffer, s)) return;
    rows = kAllTokens / piece.count;
    row = buffer.piece == piece ? 0 : rows * piece.index;
  }
};

std::int64_t common(const Area& a, const Area& b) {
  const auto overlap = [](std::int64_t a, std::int64_t a_size, std::int64_t b,
                          std::int64_t b_size) {
    return std::max<std::int64_t>(0, std::min(a + a_size, b + b_size) - std::max(a, b));
  };
  return overlap(a.row, a.rows, b.row, b.rows) * overlap(a.col, a.cols, b.col, b.cols);
}

/// What has been written of a buffer; no two of them overlap.
using Written = std::vector<Area>;

bool covers(const Written& written, const Area& area) {
  std::int64_t sum = 0;
  for (const Area& one : written) sum += common(one, area);
  return !written.empty() && sum == area.rows * area.cols;
}

class PlanCheck {
 public:
  explicit PlanCheck(const Plan& plan) : plan_(plan), written_(plan.buffers.size()) {}

  void run() {
    std::set<std::string> names;
    for (const Buffer& buffer : plan_.buffers)
      internal_check(names.insert(buffer.name).second, "plan: two buffers named {}", buffer.name);
    for (const Step& step : plan_.forward) check(step, false);
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
      if (plan_.buffers[i].role == Role::scratch) written_[i].clear();
    for (const Step& step : plan_.backward) check(step, true);
    check_outputs();
  }

 private:
  void check(const Step& step, bool backward) {
    const std::string where =
        step.program ? step.program->name : std::string(row_of(step.opaque).name);
    if (step.program) {
      verify(*step.program);
      internal_check(step.slices.size() == step.program->operands.size(),
                     "plan: {}: {} slices for {} operands", where, step.slices.size(),
                     step.program->operands.size());
    }
    for (std::size_t i = 0; i < step.slices.size(); ++i)
      if (!is_output(step, i)) check_read(step, i, where);
    for (std::size_t i = 0; i < step.slices.size(); ++i)
      if (is_output(step, i)) check_write(step, i, where, backward);
  }

  static bool is_output(const Step& step, std::size_t i) {
    return step.program ? step.program->operands[i].output
                        : static_cast<std::int32_t>(i) >= step.n_inputs;
  }

  void check_fits(const Step& step, std::size_t i, const std::string& where) {
    const Slice& slice = step.slices[i];
    internal_check(
        slice.buffer >= 0 && slice.buffer < static_cast<std::int32_t>(plan_.buffers.size()),
        "plan: {}: slice {} has no buffer", where, i);
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(slice.buffer)];
    internal_check(buffer.piece.count == 1 || buffer.piece == step.piece,
                   "plan: {}: buffer {} holds other rows", where, buffer.name);
    const bool rows_fit = buffer.rows == kTokens
                              ? slice.row == 0 && slice.rows == kTokens
                              : slice.row >= 0 && slice.row + slice.rows <= buffer.rows;
    internal_check(rows_fit && slice.col >= 0 && slice.col + slice.cols <= buffer.cols,
                   "plan: {}: slice {} does not fit buffer {}", where, i, buffer.name);
    if (!step.program) return;
    const Operand& operand = step.program->operands[i];
    internal_check(operand.dtype == buffer.dtype && operand.partial == buffer.partial,
                   "plan: {}: operand {} and buffer {} differ in type", where, operand.name,
                   buffer.name);
    internal_check(operand.cols.symbol != Dim::Symbol::none || operand.cols.num == slice.cols,
                   "plan: {}: operand {} has {} columns, its slice {}", where, operand.name,
                   operand.cols.num, slice.cols);
  }

  void check_read(const Step& step, std::size_t i, const std::string& where) {
    check_fits(step, i, where);
    const Slice& slice = step.slices[i];
    const auto index = static_cast<std::size_t>(slice.buffer);
    const Buffer& buffer = plan_.buffers[index];
    if (buffer.role == Role::input) return;
    internal_check(covers(written_[index], Area(slice, buffer, step.piece)),
                   "plan: {}: reads {} before it is written", where, buffer.name);
  }

  void check_write(const Step& step, std::size_t i, const std::string& where, bool backward) {
    check_fits(step, i, where);
    const Slice& slice = step.slices[i];
    const auto index = static_cast<std::size_t>(slice.buffer);
    const Buffer& buffer = plan_.buffers[index];
    internal_check(buffer.role != Role::input, "plan: {}: writes the input {}", where, buffer.name);
    internal_check(!backward || buffer.role != Role::saved, "plan: {}: writes the saved {}", where,
                   buffer.name);
    const Area area(slice, buffer, step.piece);
    const bool adds = step.program ? step.program->operands[i].accumulate : step.accumulates;
    if (adds && covers(written_[index], area)) return;
    for (const Area& one : written_[index])
      internal_check(common(one, area) == 0, "plan: {}: writes {} a second time", where,
                     buffer.name);
    written_[index].push_back(area);
  }

  void check_outputs() {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& buffer = plan_.buffers[i];
      if (buffer.role != Role::output && buffer.role != Role::result) continue;
      const Area whole({static_cast<std::int32_t>(i), 0, 0, buffer.rows, buffer.cols}, buffer);
      internal_check(covers(written_[i], whole), "plan: output {} is never written whole",
                     buffer.name);
    }
  }

  const Plan& plan_;
  std::vector<Written> written_;  ///< of each buffer
};

std::string to_string(const Slice& slice, const Plan& plan) {
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(slice.buffer)];
  std::string text = buffer.name;
  const bool rows = slice.row != 0 || slice.rows != buffer.rows;
  const bool cols = slice.col != 0 || slice.cols != buffer.cols;
  if (rows || cols)
    text += fmt::format("[{}, {}:{}]",
                        rows ? fmt::format("{}:{}", slice.row, slice.row + slice.rows) : ":",
                        slice.col, slice.col + slice.cols);
  return text;
}

void print_step(std::string& text, const Step& step, const Plan& plan) {
  if (step.piece.count > 1)
    text += fmt::format("piece {} of {}: ", step.piece.index + 1, step.piece.count);
  if (!step.program) {
    const OpaqueRow& row = row_of(step.opaque);
    text += fmt::format("{}{}(", row.name, step.accumulates ? " added" : "");
    for (std::size_t i = 0; i < step.slices.size(); ++i) {
      const bool out = static_cast<std::int32_t>(i) == step.n_inputs;
      text += (i == 0 ? "" : out ? ") -> (" : ", ") + to_string(step.slices[i], plan);
    }
    text += ")\n";
    return;
  }
  text += to_string(*step.program);
  text += "  with";
  for (std::size_t i = 0; i < step.slices.size(); ++i)
    text += fmt::format("{} {} = {}", i ? "," : "", step.program->operands[i].name,
                        to_string(step.slices[i], plan));
  text += "\n";
  if (!step.note.empty()) text += fmt::format("  # {}\n", step.note);
}

}  // namespace

RowRange rows_of(Piece piece, std::int64_t tokens) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t each =
      piece.count == 1 ? tokens : up(up(tokens, piece.count), kRowGranule) * kRowGranule;
  const std::int64_t first = std::min(tokens, piece.index * each);
  return {first, std::min(each, tokens - first)};
}

std::int32_t Plan::find_buffer(const std::string& name) const {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].name == name) return static_cast<std::int32_t>(i);
  return -1;
}

void verify(const Plan& plan) { PlanCheck(plan).run(); }

std::string to_string(const Plan& plan) {
  std::string text = "buffers\n";
  for (const Buffer& buffer : plan.buffers) {
    text += fmt::format("  {} {}: {} {}[{}, {}]", name_of(buffer.role), buffer.name,
                        coda::name_of(buffer.kind), coda::name_of(buffer.dtype),
                        rows_text(buffer.rows), buffer.cols);
    if (buffer.partial)
      text += buffer.granules == kTokens ? fmt::format(" partials, one per {} rows", kRowGranule)
                                         : fmt::format(" partials, {}", buffer.granules);
    if (buffer.piece.count > 1)
      text += fmt::format(" piece {} of {}", buffer.piece.index + 1, buffer.piece.count);
    text += fmt::format(" steps {}..{}\n", buffer.first_step, buffer.last_step);
  }
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    if (steps->empty()) continue;
    text += steps == &plan.forward ? "forward\n" : "backward\n";
    for (const Step& step : *steps) print_step(text, step, plan);
  }
  return text;
}

Cost cost_of(const Step& step, const Plan& plan, std::int64_t all_tokens) {
  Cost cost;
  const std::int64_t tokens = rows_of(step.piece, all_tokens).rows;
  for (const Slice& slice : step.slices) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(slice.buffer)];
    const bool counts = step.program ? is_matrix(buffer.kind) : buffer.kind == Kind::tile;
    if (!counts) continue;
    cost.bytes += extent(slice.rows, tokens) * static_cast<double>(slice.cols) *
                  static_cast<double>(size_of(buffer.dtype));
  }
  if (step.program && step.program->form == Form::gemm) {
    const Program& program = *step.program;
    const auto size = [&](Dim dim) {
      return dim.symbol == Dim::Symbol::M ? static_cast<double>(tokens)
                                          : static_cast<double>(dim.num);
    };
    cost.flops = 2 * size(program.rows) * size(program.cols) * size(program.gemm.k);
  }
  return cost;
}

Cost cost_of(const Plan& plan, std::int64_t tokens) {
  Cost total;
  for (const auto* steps : {&plan.forward, &plan.backward})
    for (const Step& step : *steps) {
      const Cost cost = cost_of(step, plan, tokens);
      total.bytes += cost.bytes;
      total.flops += cost.flops;
    }
  return total;
}

double saved_bytes(const Plan& plan, std::int64_t tokens) {
  const auto used_by = [&](const std::vector<Step>& steps) {
    std::set<std::int32_t> used;
    for (const Step& step : steps)
      for (const Slice& slice : step.slices) used.insert(slice.buffer);
    return used;
  };
  const auto forward = used_by(plan.forward), backward = used_by(plan.backward);
  double bytes = 0;
  for (const std::int32_t index : forward) {
    if (!backward.count(index)) continue;
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(index)];
    if (buffer.rows != kTokens || !is_float(buffer.dtype)) continue;
    double rows = extent(buffer.rows, tokens);
    if (buffer.partial)
      rows *= static_cast<double>(buffer.granules) * (is_online(buffer.finish) ? 2 : 1);
    bytes += rows * static_cast<double>(buffer.cols) * static_cast<double>(size_of(buffer.dtype));
  }
  return bytes;
}

}  // namespace coda
