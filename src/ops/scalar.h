// What an elementwise op means for numbers: the definition that the reference backend applies to
// every element and the simplifier to constants.
#pragma once

#include "coda/op.h"

namespace coda {

/// NaN if either is NaN; the identity is -inf.
double larger(double a, double b);

/// op(a, b) in double; b is not read by ops of one operand. Throws InternalError for any op other
/// than an elementwise one that changes numbers (cast and broadcast do not).
double evaluate_scalar(Op op, double a, double b = 0);

}  // namespace coda
