// N becomes a number. Halves of the whole width are then columns: in a row program cols and
// cat_cols; in a GEMM program the tiles that are split (or joined) are cut into column blocks all
// the way up to acc and to the operands, so that each block is a column range of acc
// (ir/sections.h). An operand z that is cut becomes z.0 and z.<first column of the second half>.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "ir/infer.h"
#include "ops/op_table.h"

namespace coda {

namespace {

bool is_tile(const Value& value) { return value.kind == Kind::tile || value.kind == Kind::weight; }

/// Columns of a value whose widths are numbers already.
std::int64_t width_of(const Value& value) { return value.cols.num; }

/// first/second_of_pair over the whole width of its operand, or join into it.
bool is_whole_halves(const Program& program, const Value& value) {
  const bool split = value.op == Op::first_of_pair || value.op == Op::second_of_pair;
  if ((!split && value.op != Op::join) || value.attrs.layout != PairLayout::halves) return false;
  const Value& arg = program.values[static_cast<std::size_t>(value.args[0])];
  const std::int64_t whole = split ? width_of(arg) : 2 * width_of(arg);
  return value.attrs.period == 0 || value.attrs.period == whole;
}

Dim substituted(const Program& program, Dim dim, std::int64_t n) {
  if (dim.symbol != Dim::Symbol::N) return dim;
  const Dim result = scaled(Dim::number(n), dim.num, dim.den);
  if (!is_whole(result)) {
    throw_error<ProgramError>(
        "program {}: N = {}: expected a number of columns that {} divides, got {}. Choose N as a "
        "multiple of {}.",
        program.name, n, dim.den, to_string(result), dim.den);
  }
  return result;
}

class Cutter {
 public:
  explicit Cutter(const Program& program) : old_(program) {
    new_.name = program.name;
    new_.form = program.form;
    new_.gemm = program.gemm;
    new_.rows = program.rows;
    new_.cols = program.cols;
    operands_.assign(program.operands.size(), -1);
    if (program.gemm.a >= 0) {
      new_.gemm.a = whole_operand(program.gemm.a);
      for (std::int32_t& b : new_.gemm.b) b = whole_operand(b);
    }
    mark_cut();
  }

  Program run() {
    for (std::size_t i = 0; i < old_.values.size(); ++i) {
      const Value& value = old_.values[i];
      if (!is_store(value.op)) continue;
      const std::int32_t arg = value.args[0];
      if (value.op == Op::store_tile && cut_[static_cast<std::size_t>(arg)]) {
        const std::int64_t width = width_of(old(arg));
        store(value, part(arg, 0, width / 2), cut_operand(value.operand, 0, width / 2));
        store(value, part(arg, width / 2, width), cut_operand(value.operand, width / 2, width));
      } else {
        const std::int32_t stored = emit(arg);
        store(value, stored, whole_operand(value.operand));
      }
    }
    sort_operands();
    return new_;
  }

 private:
  const Value& old(std::int32_t i) const { return old_.values[static_cast<std::size_t>(i)]; }

  /// Tiles that are split at half their width, and what they are computed from; joined tiles and
  /// what is computed from those.
  void mark_cut() {
    cut_.assign(old_.values.size(), 0);
    const auto same_width = [&](const Value& value, std::int32_t arg) {
      return is_tile(old(arg)) && width_of(old(arg)) == width_of(value) && !is_store(value.op);
    };
    for (std::size_t i = 0; i < cut_.size(); ++i) {
      const Value& value = old_.values[i];
      if (value.op == Op::join && is_whole_halves(old_, value)) cut_[i] = 1;
      for (const std::int32_t arg : value.args) {
        if (same_width(value, arg)) cut_[i] |= cut_[static_cast<std::size_t>(arg)];
      }
    }
    for (std::size_t i = cut_.size(); i-- > 0;) {
      const Value& value = old_.values[i];
      const bool splits = value.op != Op::join && is_whole_halves(old_, value);
      for (const std::int32_t arg : value.args) {
        if (splits || (cut_[i] && same_width(value, arg))) cut_[static_cast<std::size_t>(arg)] = 1;
      }
    }
  }

  std::int32_t add(Value value) {
    new_.values.push_back(std::move(value));
    return static_cast<std::int32_t>(new_.values.size()) - 1;
  }

  void store(const Value& value, std::int32_t arg, std::int32_t operand) {
    Value copy = value;
    copy.args = {arg};
    copy.operand = operand;
    copy.cols = new_.values[static_cast<std::size_t>(arg)].cols;
    add(std::move(copy));
  }

  std::int32_t whole_operand(std::int32_t operand) {
    std::int32_t& slot = operands_[static_cast<std::size_t>(operand)];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(new_.operands.size());
      new_.operands.push_back(old_.operands[static_cast<std::size_t>(operand)]);
      origin_.push_back(operand);
    }
    return slot;
  }

  std::int32_t cut_operand(std::int32_t operand, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(operand, lo, hi);
    if (const auto found = cut_operands_.find(key); found != cut_operands_.end()) {
      return found->second;
    }
    Operand copy = old_.operands[static_cast<std::size_t>(operand)];
    copy.name += fmt::format(".{}", lo);
    copy.cols = Dim::number(hi - lo);
    new_.operands.push_back(copy);
    origin_.push_back(operand);
    return cut_operands_[key] = static_cast<std::int32_t>(new_.operands.size()) - 1;
  }

  /// Operands in the order of the original, blocks by column.
  void sort_operands() {
    std::vector<std::int32_t> order(new_.operands.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return origin_[static_cast<std::size_t>(a)] < origin_[static_cast<std::size_t>(b)];
    });
    std::vector<Operand> sorted;
    std::vector<std::int32_t> position(order.size());
    for (const std::int32_t i : order) {
      position[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(sorted.size());
      sorted.push_back(new_.operands[static_cast<std::size_t>(i)]);
    }
    const auto moved = [&](std::int32_t& operand) {
      if (operand >= 0) operand = position[static_cast<std::size_t>(operand)];
    };
    moved(new_.gemm.a);
    for (std::int32_t& b : new_.gemm.b) moved(b);
    for (Value& value : new_.values) moved(value.operand);
    new_.operands = std::move(sorted);
  }

  std::int32_t emit(std::int32_t index) {
    const Value& value = old(index);
    return part(index, 0, is_tile(value) || value.kind == Kind::row ? width_of(value) : 1);
  }

  /// Columns [lo, hi) of an old value, as a new one. Vectors along rows and scalars come whole.
  std::int32_t part(std::int32_t index, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(index, lo, hi);
    if (const auto found = parts_.find(key); found != parts_.end()) return found->second;
    const std::int32_t made = make_part(index, lo, hi);
    return parts_[key] = made;
  }

  std::int32_t make_part(std::int32_t index, std::int64_t lo, std::int64_t hi) {
    const Value& value = old(index);
    const bool wide = is_tile(value) || value.kind == Kind::row;
    const bool whole = !wide || (lo == 0 && hi == width_of(value));
    if (is_whole_halves(old_, value)) return make_half(index, lo, hi, whole);
    Value copy = value;
    if (whole) {
      for (std::int32_t& arg : copy.args) arg = emit(arg);
      if (copy.operand >= 0) copy.operand = whole_operand(copy.operand);
      return add(std::move(copy));
    }
    if (!value.name.empty()) copy.name += fmt::format(".{}", lo);
    copy.cols = Dim::number(hi - lo);
    switch (row_of(value.op).op_class) {
      case OpClass::elementwise:
        if (value.op == Op::broadcast) copy.attrs.hi = hi - lo;
        for (std::int32_t& arg : copy.args) arg = part_or_whole(arg, lo, hi);
        return add(std::move(copy));
      case OpClass::pairs:
      case OpClass::segment:
        return make_grouped(index, std::move(copy), lo, hi);
      default:
        break;
    }
    if (value.op == Op::load_tile) {
      copy.operand = cut_operand(value.operand, lo, hi);
      return add(std::move(copy));
    }
    if (value.op == Op::acc || value.kind == Kind::row) {
      copy.op = Op::cols;
      copy.args = {emit(index)};
      copy.operand = -1;
      copy.attrs = Attrs{};
      copy.attrs.lo = lo;
      copy.attrs.hi = hi;
      return add(std::move(copy));
    }
    if (value.op == Op::cols) return part(value.args[0], value.attrs.lo + lo, value.attrs.lo + hi);
    if (value.op == Op::rows) {
      copy.args[0] = part(value.args[0], lo, hi);
      return add(std::move(copy));
    }
    refuse(index, "this op's result cannot be cut into columns");
  }

  std::int32_t part_or_whole(std::int32_t arg, std::int64_t lo, std::int64_t hi) {
    const bool wide = is_tile(old(arg)) || old(arg).kind == Kind::row;
    return wide ? part(arg, lo, hi) : emit(arg);
  }

  /// A split or join at half the width: the operand's columns themselves.
  std::int32_t make_half(std::int32_t index, std::int64_t lo, std::int64_t hi, bool whole) {
    const Value& value = old(index);
    if (value.op != Op::join) {
      const std::int64_t offset = value.op == Op::second_of_pair ? width_of(value) : 0;
      return part(value.args[0], offset + lo, offset + hi);
    }
    const std::int64_t half = width_of(value) / 2;
    if (hi <= half) return part(value.args[0], lo, hi);
    if (lo >= half) return part(value.args[1], lo - half, hi - half);
    refuse(index, whole ? "halves that are joined can only be stored or combined elementwise"
                        : "columns across both halves were asked for");
  }

  /// Pairs, rotations and segments keep their groups: the cut must fall between groups.
  std::int32_t make_grouped(std::int32_t index, Value copy, std::int64_t lo, std::int64_t hi) {
    const Value& value = old(index);
    std::int64_t up = 1, down = 1;  // operand columns per result column
    std::int64_t group = value.attrs.layout == PairLayout::interleaved ? 2 : value.attrs.period;
    switch (value.op) {
      case Op::first_of_pair:
      case Op::second_of_pair:
        up = 2;
        group /= 2;
        break;
      case Op::join:
        down = 2;
        break;
      case Op::segment_sum:
        up = value.attrs.period;
        group = 1;
        break;
      case Op::segment_broadcast:
        down = group = value.attrs.period;
        break;
      default:  // rotate, unrotate: the frequencies are as wide as a head
        group = width_of(old(value.args[2]));
    }
    if (group > 0 && (lo % group != 0 || hi % group != 0)) {
      refuse(index, fmt::format("the cut at column {} falls into a group of {} columns",
                                lo % group != 0 ? lo : hi, group));
    }
    for (std::int32_t& arg : copy.args) {
      arg = is_tile(old(arg)) ? part(arg, lo * up / down, hi * up / down) : emit(arg);
    }
    return add(std::move(copy));
  }

  [[noreturn]] void refuse(std::int32_t index, const std::string& why) const {
    throw_error<ProgramError>(
        "program {}: {}: expected halves of the whole width that become column blocks, got a use "
        "that cannot: {}. Use interleaved pairs, or treat the halves apart.",
        old_.name, call_text(old_, index), why);
  }

  const Program& old_;
  Program new_;
  std::vector<char> cut_;
  std::vector<std::int32_t> operands_;  ///< old operand -> new one, uncut
  std::vector<std::int32_t> origin_;    ///< new operand -> old one
  std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, std::int32_t> cut_operands_;
  std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, std::int32_t> parts_;
};

/// Row programs may slice any tile.
void rewrite_halves_as_cols(Program& program) {
  for (Value& value : program.values) {
    if (!is_whole_halves(program, value)) continue;
    const std::int64_t width = width_of(value);
    const bool second = value.op == Op::second_of_pair;
    value.op = value.op == Op::join ? Op::cat_cols : Op::cols;
    value.attrs = Attrs{};
    if (value.op == Op::cols) {
      value.attrs.lo = second ? width : 0;
      value.attrs.hi = value.attrs.lo + width;
    }
  }
}

}  // namespace

Program instantiate(const Program& program, std::int64_t n) {
  if (n < 0) {
    throw_error<ProgramError>(
        "program {}: N: expected at least 0 columns, got {}. Give the columns "
        "of the accumulator.",
        program.name, n);
  }
  verify(program);
  Program fixed = program;
  fixed.cols = substituted(program, program.cols, n);
  fixed.gemm.k = substituted(program, program.gemm.k, n);
  for (Operand& operand : fixed.operands) {
    operand.rows = substituted(program, operand.rows, n);
    operand.cols = substituted(program, operand.cols, n);
  }
  for (Value& value : fixed.values) {
    value.cols = substituted(program, value.cols, n);
    if ((value.op == Op::broadcast || value.op == Op::onehot) && value.attrs.hi == 0) {
      value.attrs.hi = fixed.cols.num;
    }
  }
  bool halves = false;
  for (const Value& value : fixed.values) halves = halves || is_whole_halves(fixed, value);
  if (halves && fixed.form == Form::gemm) fixed = Cutter(fixed).run();
  if (halves && fixed.form == Form::rows) rewrite_halves_as_cols(fixed);
  verify(fixed);
  return fixed;
}

}  // namespace coda
