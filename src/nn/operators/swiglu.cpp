#include "coda/nn.h"

namespace coda {

Tensor swiglu(Tensor gate, Tensor up) { return silu(gate) * up; }

Tensor swiglu(Tensor z, Pairs pairs) {
  return swiglu(first_of_pair(z, pairs), second_of_pair(z, pairs));
}

}  // namespace coda
