#include <cmath>
#include <numbers>

#include "coda/nn.h"

namespace coda {

Tensor silu(Tensor x) { return x * sigmoid(x); }

Tensor gelu(Tensor x) { return x * 0.5 * (erf(x * std::sqrt(0.5)) + 1.0); }

Tensor gelu_tanh(Tensor x) {
  const double slope = std::sqrt(2 / std::numbers::pi);
  return x * 0.5 * (tanh((x + x * x * x * 0.044715) * slope) + 1.0);
}

}  // namespace coda
