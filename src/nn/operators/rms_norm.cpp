#include "base/check.h"
#include "coda/nn.h"

namespace coda {

Tensor rms_norm(Tensor x, Tensor weight, double eps) {
  if (!(eps > 0)) {
    throw_error<UsageError>(
        "rms_norm: expected eps > 0, got {}. Without it a row of zeros has no finite norm.", eps);
  }
  const Tensor square_sum = row_sum(x * x);  // [M]
  const Tensor rstd = rsqrt(square_sum * (1 / static_cast<double>(x.type().cols)) + eps);
  return x * weight * rstd;
}

}  // namespace coda
