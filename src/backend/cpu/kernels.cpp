#include "backend/cpu/kernels.h"

#include "backend/cpu/instruction_set.h"

namespace coda::cpu {

const Kernels& kernels() {
  static const Kernels table = [] {
    cap_instruction_sets();
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
