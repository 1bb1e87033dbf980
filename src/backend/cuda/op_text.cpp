#include "backend/cuda/op_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

bool has_op_text(Op op) {
  return row_of(op).op_class == OpClass::elementwise && op != Op::broadcast;
}

std::string op_text(Op op, const Attrs& attrs, std::string_view a, std::string_view b) {
  internal_check(has_op_text(op), "op_text: {} is no elementwise op", name_of(op));
  if (op == Op::cast) return fmt::format("op::cast_{}({})", name_of(attrs.dtype), a);
  if (row_of(op).arity == 1) return fmt::format("op::{}({})", name_of(op), a);
  return fmt::format("op::{}({}, {})", name_of(op), a, b);
}

std::string literal_text(double value) {
  const auto rounded = static_cast<float>(value);
  if (std::isnan(rounded)) return "__uint_as_float(0x7fffffffu)";
  if (std::isinf(rounded)) return rounded < 0 ? "minus_infinity()" : "-minus_infinity()";
  const std::string digits = fmt::format("{:.9g}", rounded);
  const bool has_point = digits.find_first_of(".e") != std::string::npos;
  return digits + (has_point ? "f" : ".0f");
}

std::string_view element_text(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "Bf16";
    case DType::f16:
      return "F16";
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    default:
      throw_error<InternalError>("element_text: no element type for {}", name_of(dtype));
  }
}

std::string identifier_text(std::string_view name) {
  static constexpr std::array kTaken = {
      "acc",      "alignas",   "alignof", "and",      "asm",      "auto",    "bool",   "break",
      "case",     "catch",     "char",    "class",    "column",   "const",   "delete", "do",
      "double",   "else",      "enum",    "explicit", "export",   "extern",  "false",  "float",
      "for",      "friend",    "goto",    "half",     "if",       "inline",  "int",    "lane",
      "long",     "namespace", "new",     "not",      "op",       "or",      "p",      "private",
      "register", "return",    "ring",    "row",      "rows",     "s",       "shared", "short",
      "signed",   "sizeof",    "static",  "step",     "struct",   "switch",  "this",   "thread",
      "throw",    "tile",      "true",    "try",      "typename", "typedef", "union",  "unsigned",
      "using",    "virtual",   "void",    "volatile", "warp",     "while",   "x",      "xor"};
  std::string text;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    text += plain ? c : '_';
  }
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) text = "v" + text;
  // Device code names constants kCamel and members with a trailing "_".
  const bool taken = std::find(kTaken.begin(), kTaken.end(), text) != kTaken.end() ||
                     text.back() == '_' ||
                     (text[0] == 'k' && text.size() > 1 && text[1] >= 'A' && text[1] <= 'Z');
  return taken ? text + "_v" : text;
}

}  // namespace coda::cuda
