// Source text of row and vector programs: the program's values, demanded column by column from its
// stores and reductions, as straight code on chunks of neighbouring columns (device/rows.cuh).
//
// A row program runs stage by stage: the stores and reductions of a stage are loops over columns;
// then the threads of a row combine what they reduced, and values of the next stage may use it.
// Values needed in several stages are loaded again, from cache. Operands and values go by number,
// so that equal programs of different layers are one kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/kernel_store.h"
#include "coda/program.h"

namespace coda::cuda {

/// How an operand of partials becomes a vector.
struct PartialLoad {
  std::int32_t operand = -1;    ///< of the program
  Finish finish = Finish::sum;  ///< sum, max, or lse for all online ones
  std::int64_t granules = 0;    ///< kTokens: of all rows
  bool inside = false;          ///< by the kernel itself; otherwise by coda_finish, before it
};

/// Every operand of partials that the program loads. granules[i]: those of operand i's buffer.
std::vector<PartialLoad> partial_loads(const Program& program,
                                       const std::vector<std::int64_t>& granules);

/// A kernel of a row program. Its parameter is a RowsHeader, then a RowsOperand for each operand of
/// the program, then one for each PartialLoad (data: the finished vector; stride: from the maxima
/// to the log sums of online ones).
struct RowsKernel {
  KernelSource source;
  int columns = 1;        ///< of a chunk; rows must begin at a multiple of as many elements
  int threads = 0;        ///< of a block
  std::int64_t rows = 0;  ///< that a block covers
};

/// Form::rows; also the epilogue of a GEMM program with acc loaded from memory, so row reductions
/// may be partials of column granules. `columns`: at most so many of a chunk; fewer if offsets and
/// widths ask for it.
RowsKernel rows_kernel(const Program& program, const std::vector<PartialLoad>& partials,
                       int columns);

/// Form::vectors, in two kernels. `sums`: a block of kSumThreads threads, computes sums and stores
/// scalars; empty text if there are none. `stores`: blocks of kStoreThreads, y = which store of
/// `stored`; empty text if there are none.
struct VectorKernels {
  static constexpr int kSumThreads = 1024;
  static constexpr int kStoreThreads = 128;
  KernelSource sums, stores;
  std::vector<std::int32_t> stored;  ///< operands of col and row stores
  int sum_count = 0;                 ///< floats of RowsHeader::sums
};
VectorKernels vector_kernels(const Program& program, const std::vector<PartialLoad>& partials);

/// device/finish.cuh for so many jobs.
KernelSource finish_source(int jobs);

}  // namespace coda::cuda
