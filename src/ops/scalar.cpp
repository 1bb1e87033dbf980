#include "ops/scalar.h"

#include <cmath>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda {

double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double evaluate_scalar(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::neg:
      return -a;
    case Op::exp:
      return std::exp(a);
    case Op::log:
      return std::log(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Op::rsqrt:
      return 1 / std::sqrt(a);
    case Op::erf:
      return std::erf(a);
    case Op::maximum:
      return larger(a, b);
    case Op::greater:
      return a > b ? 1 : 0;
    case Op::equal:
      return a == b ? 1 : 0;
    default:
      throw_error<InternalError>("evaluate_scalar: {} has no meaning for numbers", name_of(op));
  }
}

}  // namespace coda
