#include "backend/ranges.h"

#include <algorithm>

#include "base/check.h"

namespace coda {

namespace {

/// The input buffer that a load_col reads whole, or -1.
std::int32_t source_of(const Plan& plan, const Step& step, std::int32_t value) {
  const Value& load = step.program->values[static_cast<std::size_t>(value)];
  if (load.op != Op::load_col || load.operand < 0) return -1;
  const std::int32_t buffer = step.slices[static_cast<std::size_t>(load.operand)].buffer;
  return plan.buffers[static_cast<std::size_t>(buffer)].role == Role::input ? buffer : -1;
}

void add(std::vector<RangeCheck>& checks, const RangeCheck& check) {
  if (check.buffer < 0) return;
  if (std::find(checks.begin(), checks.end(), check) == checks.end()) checks.push_back(check);
}

void add_program(std::vector<RangeCheck>& checks, const Plan& plan, const Step& step) {
  using What = RangeCheck::What;
  for (const Value& value : step.program->values) {
    const auto arg = [&](std::size_t i) { return source_of(plan, step, value.args[i]); };
    if (value.op == Op::pick) {
      const Value& tile = step.program->values[static_cast<std::size_t>(value.args[0])];
      add(checks, {What::target, arg(1), tile.cols.num, value.attrs.ignore_index});
    } else if (value.op == Op::onehot) {
      add(checks, {What::target, arg(0), value.cols.num, value.attrs.ignore_index});
    } else if (value.op == Op::rotate || value.op == Op::unrotate) {
      add(checks, {What::position, arg(1), 0, 0});
    }
  }
}

void add_opaque(std::vector<RangeCheck>& checks, const Plan& plan, const Step& step) {
  using What = RangeCheck::What;
  const auto input = [&](std::size_t i) {
    const std::int32_t buffer = step.slices[i].buffer;
    return plan.buffers[static_cast<std::size_t>(buffer)].role == Role::input ? buffer : -1;
  };
  switch (step.opaque) {
    case Opaque::attention:
    case Opaque::attention_backward:
      add(checks, {What::offsets, input(3), 0, 0});
      return;
    case Opaque::embedding:
      add(checks, {What::id, input(1), step.slices[0].rows, 0});
      return;
    case Opaque::embedding_backward:
      add(checks, {What::id, input(0), step.slices[2].rows, 0});
      return;
    case Opaque::cached_attention: {
      add(checks, {What::offsets, input(5), 0, 0});
      const std::int64_t rows = step.attrs.index2 * step.attrs.hi;
      add(checks, {What::past, input(6), step.attrs.hi, 0, input(5), step.slices[3].rows / rows});
      return;
    }
    case Opaque::none:
      return;
  }
}

std::int64_t integer_at(const TensorView& view, std::int64_t i) {
  return view.dtype == DType::i64 ? view.as<const std::int64_t>()[i]
                                  : view.as<const std::int32_t>()[i];
}

void check_offsets(const std::string& name, const TensorView& view, std::int64_t tokens) {
  const std::int64_t count = std::max(view.rows, view.cols);
  const auto fail = [&](std::int64_t i, const std::string& expected) {
    throw_error<UsageError>(
        "{}: entry {}: expected {}, got {}. Give the first row of each sequence and, last, the "
        "number of rows.",
        name, i, expected, integer_at(view, i));
  };
  if (integer_at(view, 0) != 0) fail(0, "0");
  for (std::int64_t i = 1; i < count; ++i) {
    if (integer_at(view, i) < integer_at(view, i - 1)) {
      fail(i, fmt::format("at least {} (offsets never decrease)", integer_at(view, i - 1)));
    }
  }
  if (integer_at(view, count - 1) != tokens) fail(count - 1, fmt::format("{} (M)", tokens));
}

void check_past(const RangeCheck& check, const std::string& name, const TensorView& view,
                const TensorView& offsets) {
  const std::int64_t sequences = std::max(offsets.rows, offsets.cols) - 1;
  const std::int64_t count = std::max(view.rows, view.cols);
  if (sequences > check.sequences) {
    throw_error<UsageError>(
        "{}: expected at most {} sequences, for which the cache has room, got {}. "
        "Give fewer sequences, or a larger cache.",
        name, check.sequences, sequences);
  }
  if (count != sequences) {
    throw_error<UsageError>(
        "{}: expected one entry for each of the {} sequences, got {}. Give the number of rows that "
        "each sequence has in the cache.",
        name, sequences, count);
  }
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t past = integer_at(view, s);
    const std::int64_t added = integer_at(offsets, s + 1) - integer_at(offsets, s);
    if (past >= 0 && past <= check.limit - added) continue;
    throw_error<UsageError>(
        "{}: entry {}: expected at least 0 and, with the {} rows of this run, at most {} (the "
        "cache's capacity), got {}. Give a larger cache, or fewer rows.",
        name, s, added, check.limit, past);
  }
}

}  // namespace

std::vector<RangeCheck> range_checks(const Plan& plan, const std::vector<Step>& steps) {
  std::vector<RangeCheck> checks;
  for (const Step& step : steps) {
    if (step.program) {
      add_program(checks, plan, step);
    } else {
      add_opaque(checks, plan, step);
    }
  }
  return checks;
}

void check_range(const RangeCheck& check, const std::string& name, const TensorView& view,
                 std::int64_t tokens, const TensorView& offsets) {
  using What = RangeCheck::What;
  if (check.what == What::offsets) return check_offsets(name, view, tokens);
  if (check.what == What::past) return check_past(check, name, view, offsets);
  for (std::int64_t row = 0; row < tokens; ++row) {
    const std::int64_t value = integer_at(view, row);
    switch (check.what) {
      case What::target:
        if ((value < 0 || value >= check.limit) && value != check.ignore_index) {
          throw_error<UsageError>(
              "{}: row {}: expected a class in [0, {}) or ignore_index {}, got {}. Correct the "
              "target, or mark the row with ignore_index.",
              name, row, check.limit, check.ignore_index, value);
        }
        break;
      case What::id:
        if (value < 0 || value >= check.limit) {
          throw_error<UsageError>(
              "{}: row {}: expected a token id in [0, {}), got {}. Use the tokenizer that belongs "
              "to the model.",
              name, row, check.limit, value);
        }
        break;
      case What::position:
        if (value < 0) {
          throw_error<UsageError>(
              "{}: row {}: expected a position of at least 0, got {}. Positions count from the "
              "start of each sequence.",
              name, row, value);
        }
        break;
      case What::offsets:
      case What::past:
        break;
    }
  }
}

}  // namespace coda
