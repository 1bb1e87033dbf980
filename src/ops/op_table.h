// One row an op: all facts that printer, verifier, reverse mode, recover, docs/ops.md and the
// backends' completeness checks share. Adding an op starts here.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coda/op.h"

namespace coda {

enum class OpClass : std::uint8_t {
  leaf,
  memory,
  elementwise,
  pairs,
  addressing,
  segment,
  reduction,
  target,
  matmul,
  opaque,
};

/// Derivative and inverse rules are expressions over op names in a small language: `dy`, `y`, the
/// operands `a`, `b`, `c`, numbers, + - * / and op calls, e.g. "dy * (1 - y * y)" for tanh. A call
/// copies the node's attributes (unrotate(dy, b, c) uses the pairs of the node). Besides ops there
/// are matmul_nt, _nn, _tn; pad_cols / pad_rows (zeros around x, to the operand's extent) and
/// part_cols / part_rows (the operand's own columns / rows of x); join(x, 0) fills with zeros.
/// Whoever applies a rule sums a broadcast away, or broadcasts what a reduction summed. Empty: not
/// differentiable in that operand (integers, frequencies); asking for it is an error. An op of any
/// arity has one rule for all its operands.
struct OpRow {
  Op op;
  std::string_view name;
  OpClass op_class;
  int arity;                                   ///< -1: any number
  std::string_view equation;                   ///< for docs: "y = a * b"
  std::string_view shapes;                     ///< for docs: "tile, tile -> tile; broadcasts"
  std::array<std::string_view, 3> derivative;  ///< cotangents of operands a, b, c
  std::string_view inverse;                    ///< operand a from y and the others, "" if none
  /// "E" exact, "R" one rounding (the other operand scales: it must never be zero), "C" may cancel.
  std::string_view inverse_class;
};

/// All rows, in the order of the enum.
std::span<const OpRow> op_table();
const OpRow& row_of(Op op);
std::string_view name_of(Op op);

/// The derivative rules of a node: those of its row, but for matmul by its transposes.
std::array<std::string_view, 3> derivative_of(Op op, const Attrs& attrs);

/// The markdown of docs/ops.md.
std::string ops_markdown();

}  // namespace coda
