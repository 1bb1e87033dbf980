// The canonical text of a Program. The header is the contract: %name is an fp32 value in
// registers, a bare name is memory with its type; the body needs shapes only.
#include <algorithm>

#include "base/check.h"
#include "ir/infer.h"
#include "ops/op_table.h"

namespace coda {

namespace {

/// Shapes stand in columns: an expression is padded to a multiple of this many characters.
constexpr std::size_t kExpressionWidth = 17;

std::string operand_text(const Program& program, const Operand& operand) {
  std::string shape;
  switch (operand.kind) {
    case Kind::tile:
    case Kind::weight:
      shape = fmt::format("[{}, {}]", to_string(operand.rows), to_string(operand.cols));
      break;
    case Kind::col:
      shape = fmt::format("[{}]", to_string(operand.rows));
      break;
    default:
      shape = shape_text(program, operand.kind, operand.cols);
  }
  return fmt::format("{}: {}{}{}{}", operand.name, operand.accumulate ? "+= " : "",
                     operand.partial ? "partial " : "", name_of(operand.dtype), shape);
}

/// "nt x, [w_gate; w_up]"
std::string gemm_text(const Program& program) {
  const auto name = [&](std::int32_t operand) {
    return program.operands[static_cast<std::size_t>(operand)].name;
  };
  const Gemm& gemm = program.gemm;
  std::string b;
  for (const std::int32_t block : gemm.b) b += (b.empty() ? "" : "; ") + name(block);
  if (gemm.b.size() > 1) b = "[" + b + "]";
  const char* kind = gemm.transpose_a ? "tn" : gemm.transpose_b ? "nt" : "nn";
  return fmt::format("{} {}, {}", kind, name(gemm.a), b);
}

std::string pairs_text(const Attrs& attrs) {
  if (attrs.layout == PairLayout::interleaved) return "interleaved";
  return attrs.period == 0 ? "halves" : fmt::format("halves({})", attrs.period);
}

std::string finish_text(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "";
    case Finish::sum:
      return "finish_sum";
    case Finish::max:
      return "finish_max";
    case Finish::lse:
      return "finish_lse";
    case Finish::log_sum:
      return "finish_log_sum";
    case Finish::lse_max:
      return "finish_lse_max";
  }
  return "";
}

/// What stands between the op's name and its operands.
std::string attrs_text(const Value& value) {
  const Attrs& attrs = value.attrs;
  switch (value.op) {
    case Op::constant:
      return fmt::format("{}", attrs.value);
    case Op::cast:
      return std::string(name_of(attrs.dtype));
    case Op::first_of_pair:
    case Op::second_of_pair:
    case Op::join:
      return pairs_text(attrs);
    case Op::rotate:
    case Op::unrotate:
      return attrs.layout == PairLayout::interleaved ? "interleaved" : "halves";
    case Op::cols:
    case Op::rows:
      return fmt::format("{}:{}", attrs.lo, attrs.hi);
    case Op::segment_sum:
    case Op::segment_broadcast:
      return fmt::format("{}", attrs.period);
    case Op::broadcast:
    case Op::repeat:
    case Op::fold:
      return attrs.hi > 0 ? fmt::format("{}", attrs.hi) : "";
    case Op::pick:
    case Op::valid:
      return attrs.ignore_index == -100 ? "" : fmt::format("ignore({})", attrs.ignore_index);
    case Op::onehot: {
      std::string text = attrs.hi > 0 ? fmt::format("{}", attrs.hi) : "";
      if (attrs.ignore_index != -100) {
        text += fmt::format("{}ignore({})", text.empty() ? "" : " ", attrs.ignore_index);
      }
      return text;
    }
    default:
      return finish_text(attrs.finish);
  }
}

std::string expression_text(const Program& program, const Value& value) {
  std::string text(name_of(value.op));
  if (const std::string attrs = attrs_text(value); !attrs.empty()) text += " " + attrs;
  const char* separator = " ";
  if (value.operand >= 0) {
    text += separator + program.operands[static_cast<std::size_t>(value.operand)].name;
    separator = ", ";
  }
  for (const std::int32_t arg : value.args) {
    text += separator + name_text(program, arg);
    separator = ", ";
  }
  return text;
}

std::string value_shape(const Program& program, std::int32_t index) {
  const Value& value = program.values[static_cast<std::size_t>(index)];
  std::string text = value.partial ? "partial " : "";
  if (value.kind == Kind::tile || value.kind == Kind::weight) {
    return fmt::format("{}[{}, {}]", text, to_string(rows_of(program, index)),
                       to_string(value.cols));
  }
  return text + shape_text(program, value.kind, value.cols);
}

std::string header_text(const Program& program) {
  std::string inputs, outputs;
  const auto append = [](std::string& list, const std::string& item) {
    list += (list.empty() ? "" : ", ") + item;
  };
  if (program.form == Form::gemm) {
    std::string acc =
        fmt::format("%acc: [{}, {}]", to_string(program.rows), to_string(program.cols));
    if (program.gemm.a >= 0) acc += " = " + gemm_text(program);
    append(inputs, acc);
  }
  for (const Operand& operand : program.operands) {
    append(operand.output ? outputs : inputs, operand_text(program, operand));
  }
  const char* form = program.form == Form::gemm   ? ""
                     : program.form == Form::rows ? "row "
                                                  : "vector ";
  return fmt::format("{}program {}({})\n    -> ({}) {{\n", form, program.name, inputs, outputs);
}

}  // namespace

std::string to_string(const Program& program) {
  std::vector<std::string> names(program.values.size());
  std::size_t width = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_store(program.values[i].op)) continue;
    names[i] = name_text(program, static_cast<std::int32_t>(i));
    width = std::max(width, names[i].size());
  }
  std::string text = header_text(program);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Value& value = program.values[i];
    if (value.op == Op::acc && value.name == "acc") continue;  // stands in the header
    const std::string expression = expression_text(program, value);
    if (is_store(value.op)) {
      text += fmt::format("  {}\n", expression);
      continue;
    }
    const std::size_t padded =
        (expression.size() + kExpressionWidth - 1) / kExpressionWidth * kExpressionWidth;
    text += fmt::format("  {:<{}} = {:<{}}  : {}\n", names[i], width, expression, padded,
                        value_shape(program, static_cast<std::int32_t>(i)));
  }
  return text + "}\n";
}

}  // namespace coda
