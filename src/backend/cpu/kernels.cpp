#include "backend/cpu/kernels.h"

namespace coda::cpu {

const Kernels& kernels() {
  static const Kernels table = [] {
    Kernels made;
    add_chain_kernels(made);
    add_elementwise_kernels(made);
    add_memory_kernels(made);
    add_pair_kernels(made);
    add_reduction_kernels(made);
    return made;
  }();
  return table;
}

}  // namespace coda::cpu
