// The small language of derivative and inverse rules (ops/op_table.h), parsed once.
#pragma once

#include <string_view>

#include "coda/graph.h"

namespace coda {

/// What the names in a rule stand for.
struct RuleContext {
  Graph& graph;
  NodeId node;           ///< y; a, b, c are its operands, its attributes go to every call
  std::size_t operand;   ///< whose cotangent or inverse is made
  Tensor dy;             ///< null in inverses
  Tensor y;              ///< the node itself, or what stands for it
  bool swapped = false;  ///< commutative: a is operand 2 and b operand 1
};

/// Builds the expression in the context's graph. Throws InternalError for a rule that does not
/// parse.
Tensor apply_rule(std::string_view rule, const RuleContext& context);

}  // namespace coda
