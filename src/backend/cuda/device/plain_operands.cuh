// Operands of the kernels that run a generated epilogue without the mainloop. The prelude defines
// InputA, InputB and kMatricesB = blocks of columns * kPartsN * kPlainLists.
#pragma once

namespace coda_device {

struct PlainFragmentParams {
  PlainOperand a;                ///< rows of the product by k
  PlainOperand b[kMatricesB];    ///< columns of the product by k: [block][part][list along k]
  int k_first[kPlainLists + 1];  ///< where each matrix of the list begins along k
};

}  // namespace coda_device
