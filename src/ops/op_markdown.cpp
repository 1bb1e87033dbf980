// The page docs/ops.md, written from the op table.
#include <fmt/format.h>

#include "ops/op_table.h"

namespace coda {
namespace {

std::string_view title_of(OpClass op_class) {
  switch (op_class) {
    case OpClass::leaf:
      return "Leaves";
    case OpClass::memory:
      return "Memory (in Programs only)";
    case OpClass::elementwise:
      return "Elementwise";
    case OpClass::pairs:
      return "Pairs of columns";
    case OpClass::addressing:
      return "Addressing";
    case OpClass::segment:
      return "Segments";
    case OpClass::reduction:
      return "Reductions";
    case OpClass::target:
      return "Integer targets";
    case OpClass::matmul:
      return "Matrix product";
    case OpClass::opaque:
      return "Opaque nodes";
  }
  return "";
}

/// "`dy * b`; `dy * a`"
std::string rules_of(const std::array<std::string_view, 3>& rules) {
  std::string text;
  for (std::string_view rule : rules) {
    if (rule.empty()) continue;
    if (!text.empty()) text += "; ";
    text += fmt::format("`{}`", rule);
  }
  return text;
}

std::string derivative_text(const OpRow& row) {
  if (row.op != Op::matmul) return rules_of(row.derivative);
  const auto form = [](bool a, bool b) {
    Attrs attrs;
    attrs.transpose_a = a;
    attrs.transpose_b = b;
    return rules_of(derivative_of(Op::matmul, attrs));
  };
  return fmt::format("nt: {}; nn: {}; tn: {}", form(false, true), form(false, false),
                     form(true, false));
}

constexpr std::string_view kIntroduction = R"(# The ops

Generated from the op table (src/ops/op_table.cpp); `CODA_UPDATE_DOCS=1 coda_ops_tests` writes it
again. Graphs and Programs share these ops. Operators (RMSNorm, SwiGLU, ...) are functions that
build them.

Kinds: tile `[M, n]`, one row a token; weight `[n, k]`, a parameter matrix or a gradient of one; col
`[M]`; row `[n]`; scalar; list, integers for opaque nodes. An elementwise op takes operands of one
shape, or a tile with a col or row, a weight with a row, anything with a scalar.

Derivative: the cotangents of operands `a`, `b`, `c` from `dy`, the cotangent of `y`; a broadcast is
summed away and a reduction broadcast back by whoever applies the rule. `pad_cols` surrounds `dy`
with zeros to the operand's width, `part_cols` takes this operand's columns; `pad_rows` and
`part_rows` are the same for rows. Empty: not differentiable.

Inverse: operand `a` from `y` and the others. Class E is exact, R adds one rounding (and needs a
factor that is never zero), C may cancel.
)";

}  // namespace

std::string ops_markdown() {
  std::string text(kIntroduction);
  const OpRow* previous = nullptr;
  for (const OpRow& row : op_table()) {
    if (!previous || previous->op_class != row.op_class) {
      text += fmt::format(
          "\n## {}\n\n| op | equation | shapes | derivative | inverse |\n|---|---|---|---|---|\n",
          title_of(row.op_class));
    }
    const std::string inverse =
        row.inverse.empty() ? "" : fmt::format("`{}` ({})", row.inverse, row.inverse_class);
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, row.equation, row.shapes,
                        derivative_text(row), inverse);
    previous = &row;
  }
  return text;
}

}  // namespace coda
