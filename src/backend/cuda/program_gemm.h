// A Form::gemm program as kernels with parameters: vectors first, then for each launch of its
// epilogue plan a GEMM, on the mainloop where TMA can read the operands, else on the plain kernel.
// ProgramGemm itself needs no GPU: tests run its plain launches on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/gemm_source.h"
#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

/// Bytes of a kernel's parameters, one entry each.
using KernelParameters = std::vector<std::vector<std::byte>>;

/// A kernel and how it is launched.
struct ProgramLaunch {
  KernelSource source;
  unsigned grid = 0;  ///< 0: nothing to do
  unsigned block = 0;
  unsigned cluster = 1;
  KernelParameters parameters;
  bool early = false;  ///< may start before what is before it has ended (Start::early)
};

/// Makes the tensor map of a matrix for boxes of 128 bytes by box_rows.
using EncodeMap =
    std::function<coda_device::TensorMap(const MatrixBlock& block, DType dtype, int box_rows)>;

class ProgramGemm {
 public:
  explicit ProgramGemm(std::shared_ptr<const Program> program);

  const Program& program() const { return *program_; }
  const EpiloguePlan& plan() const { return plan_; }

  /// Workspace for runs of up to max_tokens rows.
  std::size_t workspace_bytes(std::int64_t max_tokens) const;

  /// Rows of acc for a run of `tokens` rows.
  std::int64_t rows(std::int64_t tokens) const;

  /// In the order of operands; `workspace` is where the vectors lie.
  struct Run {
    std::span<const TensorView> views;
    std::int64_t tokens = 0;
    char* workspace = nullptr;
    EncodeMap encode;  ///< empty: no store leaves by TMA
  };

  /// The stages of the vector kernel.
  std::vector<ProgramLaunch> vectors(const Run& run) const;
  /// A launch of the plan on the plain kernel, or on that of one row if is_one_row. `best`: tiles
  /// move as on the mainloop where they can, for tests of that text without a GPU.
  ProgramLaunch plain(const EpilogueLaunch& launch, const Run& run, bool best = false) const;
  /// One row times a K-major B whose rows can be read in pieces of 16 bytes: bound by reading B,
  /// which the mainloop's few large tiles cannot do at full speed.
  bool is_one_row(const EpilogueLaunch& launch, const Run& run) const;
  /// What a launch's shape says of that, before anything is bound.
  static bool may_be_one_row(const EpilogueLaunch& launch, const GemmShape& shape);

  /// The operands of the mainloop for a launch, block by block and part by part; false if TMA
  /// cannot read one of them.
  bool operands(const EpilogueLaunch& launch, const Run& run, GemmShape& shape, MatrixBlock& a,
                std::vector<MatrixBlock>& b) const;
  /// What shape has, before anything is bound.
  GemmShape shape(const EpilogueLaunch& launch, std::int64_t tokens) const;
  GemmVariant variant(const EpilogueLaunch& launch, bool paired) const;
  /// Are two neighbouring columns of every tile aligned together?
  bool paired(const Run& run) const;
  /// How tiles move on a configuration, for what is bound, in a product over k.
  EpilogueForm form(const EpilogueLaunch& launch, const GemmConfig& config, const Run& run,
                    std::int64_t k) const;
  /// May a configuration run this launch? any_code: even if the kernel will spill.
  static bool fits(const EpilogueLaunch& launch, const GemmConfig& config, bool any_code = false);
  /// The one that the model expects to be fastest among those that may.
  const GemmConfig& choose(const EpilogueLaunch& launch, const GemmShape& shape,
                           int sm_count) const;
  KernelSource source(const EpilogueLaunch& launch, const GemmConfig& config, bool paired,
                      const EpilogueForm& form) const;
  /// Of operands that are aligned as plans align theirs, for a product over k.
  KernelSource source(const EpilogueLaunch& launch, const GemmConfig& config, std::int64_t k) const;
  KernelSource plain_source(const EpilogueLaunch& launch, bool paired = true,
                            const EpilogueForm& form = {.staged = true},
                            bool one_row = false) const;
  std::vector<std::byte> epilogue_parameters(const EpilogueLaunch& launch, const Run& run,
                                             const EpilogueForm& form) const;

 private:
  /// Can every map be one of TMA's?
  static bool addressable(const std::vector<EpilogueMap>& maps, const Run& run);
  std::vector<coda_device::EpilogueOperand> epilogue_operands(const Run& run) const;

  std::shared_ptr<const Program> program_;
  EpiloguePlan plan_;
};

/// The configuration of the plain kernel: tiles as small as the launch's chunks allow.
GemmConfig plain_config(const EpilogueLaunch& launch, bool ring = false);

}  // namespace coda::cuda
