// From a Form::gemm program to CUDA source: how its accumulator is cut into kernels, and the text
// of each kernel's `class Epilogue` (docs/cuda.md, sections 4 and 12). Text and arithmetic only: no
// GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/gemm_config.h"
#include "backend/cuda/kernel_store.h"
#include "coda/program.h"
#include "ir/lower.h"

namespace coda::cuda {

/// Columns of the accumulator that one kernel computes together: `columns` columns of each of the
/// section's acc blocks, from the block's column `column` on.
struct EpilogueBlock {
  std::int32_t section = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
  /// Columns of the whole accumulator at which the blocks (parts of a tile) begin.
  std::vector<std::int64_t> starts;
};

/// One kernel: a window of rows, and blocks of columns whose tiles are made of `parts` parts.
struct EpilogueLaunch {
  std::int64_t row = 0;
  std::int64_t rows = -1;  ///< -1: all
  int parts = 1;
  std::int64_t chunk = 64;   ///< a part of a tile must be a multiple of this wide
  bool column_sums = false;  ///< a tile must have a multiple of kRowGranule rows
  double slab_columns = 0;   ///< floats of column sums for a column of a part, in a warp's staging
  bool light = true;         ///< small enough for kernels with split tiles, which unroll it
  std::vector<EpilogueBlock> blocks;
};

/// A vector that is made before the GEMM starts, in workspace: fp32, or the angles of a rotation.
struct EpilogueVector {
  std::int32_t value = -1;      ///< of the program; angles: the positions
  std::int32_t frequency = -1;  ///< angles: the frequencies
  std::int64_t length = -1;     ///< -1: one a row
  std::int64_t period = 1;      ///< floats of one element: angles have a row each
};

/// Columns [column, column + columns) of a tile that moves through shared memory by TMA, from `row`
/// on.
struct EpilogueMap {
  std::int32_t operand = -1;
  std::int64_t column = 0;
  std::int64_t columns = 0;
  std::int64_t row = 0;
};

/// How an epilogue moves its tiles.
struct EpilogueForm {
  bool staged =
      false;  ///< 16-bit tiles leave through shared memory by TMA; else every store is direct
  bool ring = false;      ///< tile operands of 16 bits come by TMA, as stages of the ring
  bool deferred = false;  ///< what can wait for the next tile's multiplies does
};

/// How a program's epilogue runs.
struct EpiloguePlan {
  lowering::Lowered lowered;
  std::vector<EpilogueLaunch> launches;
  bool fits = true;  ///< false: a section that no fragment can hold (program_split.h)
  std::vector<EpilogueVector> vectors;
  std::vector<EpilogueMap> maps;     ///< of a staged epilogue, in the order of Params::maps
  std::vector<EpilogueMap> loads;    ///< of one with ring loads, in the order of Params::loads
  std::vector<std::int32_t> stages;  ///< per value: launch of the vector kernel, -1: none
  std::int32_t stage_count = 0;
};

/// The program verifies and its widths are numbers.
EpiloguePlan plan_epilogue(const Program& program);

/// Operands of generated kernels: those of the program, then plan.vectors.
std::size_t operand_count(const Program& program, const EpiloguePlan& plan);

/// Stores, and loads, that TMA can make if the memory is aligned.
std::vector<EpilogueMap> staged_stores(const Program& program, const EpiloguePlan& plan);
std::vector<EpilogueMap> ring_loads(const Program& program, const EpiloguePlan& plan);

/// What tiles of one launch can do on a configuration, in a product over k_blocks of 64: kernels
/// that defer hold half as many registers as the accumulators, and a tile has left when the next
/// one ends.
EpilogueForm best_form(const Program& program, const EpiloguePlan& plan,
                       const EpilogueLaunch& launch, const GemmConfig& config,
                       std::int64_t k_blocks);
/// Steps in which a tile of a deferred epilogue leaves.
std::int64_t deferred_steps(const Program& program, const EpiloguePlan& plan,
                            const EpilogueLaunch& launch, const GemmConfig& config);

/// What the epilogue of a tile of 128 x 256 takes in its best form, about, beyond storing one
/// 16-bit tile (docs/performance-log.md).
double epilogue_cycles(const Program& program, const EpiloguePlan& plan,
                       const EpilogueLaunch& launch, const GemmConfig& config,
                       std::int64_t k_blocks);

/// `class Epilogue` for one launch.
std::string epilogue_text(const Program& program, const EpiloguePlan& plan,
                          const EpilogueLaunch& launch, const EpilogueForm& form);

/// The kernel "coda_vectors" that makes plan.vectors and stores the program's vectors; its last
/// parameter is the stage. Empty text: nothing to do.
KernelSource vectors_source(const Program& program, const EpiloguePlan& plan);

/// Threads that a stage of that kernel needs (blocks of 128).
std::int64_t stage_length(const Program& program, const EpiloguePlan& plan, std::int32_t stage,
                          std::int64_t rows);

/// Does a vector value need no making: read where it lies, or a constant?
bool is_direct(const Program& program, std::int32_t value);

}  // namespace coda::cuda
