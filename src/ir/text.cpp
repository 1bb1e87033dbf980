// How dims, shapes, values and calls are written, in programs and in errors.
#include <numeric>
#include <set>

#include "base/check.h"
#include "ir/infer.h"
#include "ops/op_table.h"

namespace coda {

Dim scaled(Dim dim, std::int64_t factor, std::int64_t divisor) {
  dim.num *= factor;
  dim.den *= divisor;
  const std::int64_t common = std::gcd(dim.num, dim.den);
  if (common > 1) {
    dim.num /= common;
    dim.den /= common;
  }
  if (dim.symbol == Dim::Symbol::none && dim.num == 0) dim.den = 1;
  return dim;
}

bool is_whole(Dim dim) { return dim.symbol != Dim::Symbol::none || dim.den == 1; }

std::string to_string(Dim dim) {
  std::string text;
  if (dim.symbol == Dim::Symbol::none) {
    text = fmt::format("{}", dim.num);
  } else {
    if (dim.num != 1) text = fmt::format("{}", dim.num);
    text += dim.symbol == Dim::Symbol::M ? "M" : "N";
  }
  if (dim.den != 1) text += fmt::format("/{}", dim.den);
  return text;
}

std::string shape_text(const Program& program, Kind kind, Dim cols) {
  switch (kind) {
    case Kind::tile:
    case Kind::weight:
      return fmt::format("[{}, {}]", to_string(program.rows), to_string(cols));
    case Kind::col:
      return fmt::format("[{}]", to_string(program.rows));
    case Kind::row:
      return fmt::format("[{}]", to_string(cols));
    case Kind::scalar:
    case Kind::list:
      return "[]";
  }
  return "[]";
}

std::string_view type_name(Kind kind) {
  switch (kind) {
    case Kind::tile:
      return "Tile";
    case Kind::weight:
      return "weight";
    case Kind::col:
      return "ColVec";
    case Kind::row:
      return "RowVec";
    case Kind::scalar:
      return "Scalar";
    case Kind::list:
      return "list";
  }
  return "?";
}

std::string type_text(const Program& program, const ValueType& type) {
  return fmt::format("{} {}", type.partial ? "partial" : type_name(type.kind),
                     shape_text(program, type.kind, type.cols));
}

std::string name_text(const Program& program, std::int32_t index) {
  const Value& value = program.values[static_cast<std::size_t>(index)];
  if (!value.name.empty()) return "%" + value.name;
  // Unnamed values are numbered in order; a number that somebody took as a name is skipped.
  std::set<std::string> taken;
  for (const Value& other : program.values) {
    if (!other.name.empty()) taken.insert(other.name);
  }
  std::int64_t number = -1;
  for (std::int32_t i = 0; i <= index; ++i) {
    const Value& other = program.values[static_cast<std::size_t>(i)];
    if (!other.name.empty() || is_store(other.op)) continue;
    do {
      ++number;
    } while (taken.count(fmt::format("{}", number)));
  }
  return fmt::format("%{}", number);
}

bool is_store(Op op) {
  return op == Op::store_tile || op == Op::store_partial || op == Op::store_vector;
}

bool is_load(Op op) {
  return op == Op::load_tile || op == Op::load_row || op == Op::load_col || op == Op::load_scalar;
}

std::string call_text(const Program& program, std::int32_t index) {
  const Value& value = program.values[static_cast<std::size_t>(index)];
  std::string text = fmt::format("{}(", name_of(value.op));
  const char* comma = "";
  if (value.operand >= 0 && value.operand < static_cast<std::int32_t>(program.operands.size())) {
    text += program.operands[static_cast<std::size_t>(value.operand)].name;
    comma = ", ";
  }
  for (const std::int32_t arg : value.args) {
    text += comma;
    const bool known = arg >= 0 && arg < static_cast<std::int32_t>(program.values.size());
    text += known ? name_text(program, arg) : fmt::format("value {}", arg);
    comma = ", ";
  }
  return text + ")";
}

Dim rows_of(const Program& program, std::int32_t index) {
  const Value& value = program.values[static_cast<std::size_t>(index)];
  if (value.op == Op::rows) return Dim::number(value.attrs.hi - value.attrs.lo);
  for (const std::int32_t arg : value.args) {
    if (program.values[static_cast<std::size_t>(arg)].kind == Kind::tile ||
        program.values[static_cast<std::size_t>(arg)].kind == Kind::weight) {
      return rows_of(program, arg);
    }
  }
  if (value.operand >= 0 && value.op == Op::load_tile) {
    return program.operands[static_cast<std::size_t>(value.operand)].rows;
  }
  return program.rows;
}

}  // namespace coda
