#include "coda/nn.h"

namespace coda {

Tensor linear(Tensor x, Tensor weight) { return matmul_nt(x, weight); }

Tensor linear(Tensor x, Tensor weight, Tensor bias) { return matmul_nt(x, weight) + bias; }

}  // namespace coda
