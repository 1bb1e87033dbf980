// Source text of GEMM kernels: a prelude of constants for one configuration, then the files of
// device/. The same text is what NVRTC compiles and what the cache is keyed by.
#pragma once

#include "backend/cuda/gemm_config.h"
#include "backend/cuda/kernel_store.h"

namespace coda::cuda {

/// How C leaves the kernel.
enum class StorePath {
  tma,     ///< through shared memory by TMA; deferred where the configuration defers
  direct,  ///< element by element: C that TMA cannot address
};

/// What of a problem is compiled into the kernel.
struct GemmVariant {
  DType operand = DType::bf16;
  DType output = DType::bf16;
  bool accumulate = false;
  Major a = Major::k;
  Major b = Major::k;
  StorePath store = StorePath::tma;
  int blocks_m = 1;    ///< blocks of C along M (and of nothing else)
  int blocks_n = 1;    ///< row blocks of a K-major B; C has as many column blocks
  int blocks_k = 1;    ///< row blocks of an M/N-major B, along K
  int parts_n = 1;     ///< column blocks that lie side by side in a tile (generated epilogues)
  bool paired = true;  ///< generated epilogues: two neighbouring columns are aligned together
  bool vectors_first = false;  ///< may start while the kernel that makes its vectors still runs
};

KernelSource gemm_source(const GemmConfig& config, const GemmVariant& variant);

/// The mainloop with a generated epilogue: `epilogue` is the text of class Epilogue. Of `variant`
/// only what concerns the operands counts.
KernelSource program_source(const std::string& name, const GemmConfig& config,
                            const GemmVariant& variant, const std::string& epilogue);
/// The plain kernel with a generated epilogue, one CTA a tile of `config`; operand B of type `b`.
/// one_row: the kernel for a product of one row (device/epilogue_one_row.cuh), with the same
/// parameters.
KernelSource plain_program_source(const std::string& name, const GemmConfig& config,
                                  const GemmVariant& variant, DType b, const std::string& epilogue,
                                  bool one_row);

/// The plain kernel. `sum`: f32 or f64 (then `output` is f64: the tests' reference).
KernelSource plain_gemm_source(DType operand, DType output, bool accumulate, DType sum);

/// device/gpc_probe.cuh and device/check.cuh; `entry` names one of their kernels.
KernelSource probe_source();
KernelSource check_source(const std::string& entry);

}  // namespace coda::cuda
