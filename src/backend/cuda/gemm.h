// Launching a bare GEMM: picks the kernel, encodes the tensor maps, lays out the schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/device/params.cuh"
#include "backend/cuda/gemm_config.h"
#include "backend/cuda/gemm_source.h"
#include "backend/cuda/runtime.h"

namespace coda::cuda {

/// A matrix in device memory: row r starts at pointer + r * stride elements.
struct MatrixBlock {
  DevicePointer pointer = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

/// Where the operands are. Blocks of a list lie one below the other (or, for c beside a K-major
/// list b, one beside the other) in the mathematical matrix, anywhere in memory.
struct GemmOperands {
  MatrixBlock a;               ///< [M, K], or [K, M] if M-major
  std::vector<MatrixBlock> b;  ///< row blocks of [N, K], or of [K, N] if N-major
  std::vector<MatrixBlock> c;  ///< [M, N]; or row blocks of it; or a column block for each of b
};

/// Scratch memory of the kernels that run on one stream: two GEMMs that share it must not overlap.
class GemmWorkspace {
 public:
  explicit GemmWorkspace(const Stream& stream);

  unsigned* claims() const;
  unsigned* flags() const;
  float* partials() const;

 private:
  DeviceBuffer counters_;
  DeviceBuffer partials_;
};

/// For kernels with other epilogues than the one that stores C.
/// A tensor map of boxes of 128 bytes by box_rows with 128-byte swizzle.
coda_device::TensorMap encode_operand(const MatrixBlock& block, DType dtype, int box_rows);
/// Fills what says how workers share the tiles, from tiles_m, tiles_n and k_blocks. Launch
/// schedule.workers clusters.
void deal_tiles(coda_device::Schedule& schedule, const GemmConfig& config, int max_workers,
                const GemmWorkspace& workspace);

/// A GEMM ready to launch, any number of times, also inside a graph. Holds no memory of its own;
/// the operands and the workspace must outlive it.
class Gemm {
 public:
  /// `config`: null lets the heuristic choose. Throws UsageError when shapes do not fit together.
  Gemm(const GemmShape& shape, const GemmOperands& operands, const GemmWorkspace& workspace,
       const GemmConfig* config = nullptr);

  /// In a graph with nodes that are no kernels, launch in order.
  void launch(const Stream& stream, Start start = Start::early) const;

  /// Name of the configuration, or "plain".
  std::string kernel_name() const;
  bool is_plain() const { return config_ == nullptr; }

  /// Whether TMA can read both operands: 16-bit types, 16-byte aligned rows.
  static bool fits_tma(const GemmShape& shape, const GemmOperands& operands);
  static GemmVariant variant_of(const GemmShape& shape, const GemmOperands& operands);

 private:
  void prepare_mainloop(const GemmShape& shape, const GemmOperands& operands,
                        const GemmWorkspace& workspace);
  void prepare_plain(const GemmShape& shape, const GemmOperands& operands);

  const GemmConfig* config_ = nullptr;
  Kernel kernel_;
  unsigned grid_ = 0;
  std::shared_ptr<const Gemm> second_half_;  ///< of K, launched after this one
  coda_device::OperandParams operand_params_{};
  coda_device::StoreParams store_params_{};
  coda_device::Schedule schedule_{};
  std::vector<coda_device::PlainParams> plain_params_;  ///< one launch each
};

}  // namespace coda::cuda
