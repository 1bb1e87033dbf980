// Products of tiles by oneDNN, behind the contract of multiply_tile (gemm.h). Primitives for the
// tile shapes of one program are made at prepare(). They read operand panels, K block by K block:
// where they lie if they are dense there, else copied into dense scratch with zeros past the
// edges. They add to fp32 accumulators.
//
// Each call runs on the calling thread alone, whatever OpenMP would do. oneDNN allocates a few
// small objects at every call (its list of arguments), and its kernels for AVX2 their packing
// space.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"

namespace coda::cpu {

/// What is known of a program's product before it runs.
struct GemmShape {
  std::string program;  ///< for messages
  DType dtype = DType::f32;
  bool transpose_a = false, transpose_b = false;
  std::int64_t k = -1;              ///< -1: the number of tokens
  std::set<std::int64_t> widths{};  ///< padded widths of the tiles' blocks
};

class OneDnnGemm {
 public:
  /// Blocks are written up to a multiple of this many rows, from scratch of that size.
  static constexpr std::int64_t kRowStep = 32;

  /// Tiles have up to 256 rows. Throws BackendError if oneDNN has no fast kernel.
  explicit OneDnnGemm(const GemmShape& shape);
  ~OneDnnGemm();

  std::int64_t scratch_floats() const;

  /// As multiply_tile; each block's stride is its padded width. `scratch` is 64-byte aligned. The
  /// order of summation depends on the sizes of the product and the tile's rows alone.
  void multiply(const Factors& factors, std::int64_t row, std::int64_t rows,
                std::span<const TileBlock> blocks, float* scratch) const;

 private:
  struct Kernels;
  std::unique_ptr<const Kernels> kernels_;
};

/// The choice with the environment looked up: never from_environment.
CpuGemm resolved(CpuGemm choice);

/// Null where only the built-in kernel is to be used. Throws UsageError if onednn was asked for in vain.
std::unique_ptr<const OneDnnGemm> make_onednn_gemm(CpuGemm choice, const GemmShape& shape);

}  // namespace coda::cpu
