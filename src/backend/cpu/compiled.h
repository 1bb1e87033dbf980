// A program made ready to run on the CPU: lowered, turned into strip and vector code, its scratch
// measured. Immutable afterwards; several sessions could share one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/onednn_gemm.h"
#include "backend/cpu/strip.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/vectors.h"
#include "ir/lower.h"

namespace coda::cpu {

class CompiledProgram {
 public:
  /// The program verifies and its widths are numbers. `gemm` is not from_environment. Throws
  /// UsageError if it is onednn and oneDNN cannot multiply the operands' type here.
  CompiledProgram(std::shared_ptr<const Program> program, std::int64_t max_tokens, CpuGemm gemm);

  /// Floats of scratch: for all threads together, and for each thread.
  std::int64_t shared_floats() const { return shared_floats_; }
  std::int64_t thread_floats() const { return thread_floats_; }

  /// Runs on operands (in the program's order) of `tokens` rows. `shared` and the threads' scratch
  /// (thread t's at scratch + t * thread_stride) are 64-byte aligned and start out initialised.
  void run(std::span<const TensorView> operands, std::int64_t tokens, float* shared, float* scratch,
           std::int64_t thread_stride, ThreadPool& pool) const;

 private:
  /// A section as it runs: accumulator blocks, strip code of each phase (GEMM programs: one), tile
  /// and strip widths in columns of the section.
  struct Section {
    std::int64_t width = 0, unit = 1, rows = -1;
    std::vector<AccBlock> blocks;
    std::vector<StripCode> phases;
    std::int64_t tile_cols = 0;
    std::int64_t strip_cols = 0, strip_rows = 0, slot_floats = 0;
  };

  /// Between phases of a row program: cols made from the reductions of the phase before.
  struct Finish {
    std::vector<std::int32_t> online;  ///< reductions whose (max, sum) becomes one number
    VectorCode cols;
  };

  void place_vectors(std::int64_t max_tokens);
  void mark_locals();
  void make_sections();
  void make_phases(const Lowered& lowered);
  void choose_tiles();
  void choose_gemm(CpuGemm gemm);
  std::int64_t acc_rows(std::int64_t rows) const;
  void place_packed(std::int64_t max_tokens);
  void measure();

  void run_gemm(const RunMemory& memory, float* scratch, std::int64_t stride,
                ThreadPool& pool) const;
  void run_tile(const RunMemory& memory, const Section& section, std::int64_t row,
                std::int64_t rows, std::int64_t col, std::int64_t cols, float* scratch) const;
  bool by_onednn(const RunMemory& memory) const;
  Factors factors_of(const RunMemory& memory, TensorView* b) const;
  void multiply(const RunMemory& memory, const Section& section, std::int64_t row,
                std::int64_t rows, std::int64_t col, std::int64_t cols, std::span<float*> acc,
                std::span<std::int64_t> strides, float*& scratch) const;
  void run_rows(const RunMemory& memory, float* scratch, std::int64_t stride,
                ThreadPool& pool) const;
  void run_row_strip(const RunMemory& memory, std::int64_t row, std::int64_t rows,
                     float* scratch) const;

  std::shared_ptr<const Program> program_;
  std::vector<VectorSlot> slots_;  ///< per value
  std::vector<int> level_;         ///< per value: number of reductions it has to wait for
  std::vector<AngleTable> tables_;
  std::unique_ptr<VectorCode> prologue_;
  std::vector<Section> sections_;
  std::unique_ptr<const OneDnnGemm> onednn_;  ///< null: always multiply_tile
  std::vector<Finish> finishes_;              ///< after phase p
  std::vector<std::int32_t> reductions_;      ///< complete ones, of row programs
  bool whole_ = false;
  std::int64_t row_unit_ = 32;   ///< row programs: rows that one thread does in one go
  std::int64_t strip_rows_ = 1;  ///< row programs: rows of every section's strips
  std::int64_t local_floats_ = 0;
  std::int64_t reduced_floats_ = 0;
  std::int64_t shared_floats_ = 0;
  std::int64_t packed_offset_ = -1;  ///< of the packed B in shared memory; -1: none
  std::int64_t thread_floats_ = 0;
};

}  // namespace coda::cpu
