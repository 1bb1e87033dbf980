// Vector values of a program: loads of cols, rows and scalars (finishing partials), arithmetic on
// them, their stores. Run before the tiles of a program that reads them, or, for cols made from a
// row program's own reductions, strip by strip.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/memory.h"
#include "backend/cpu/thread_pool.h"

namespace coda::cpu {

/// Elements of a vector that are worked on at a time.
inline constexpr std::int64_t kVectorChunk = 256;

class VectorCode {
 public:
  /// values: vector values and their stores, in order of definition; tables: angles that depend on
  /// nothing else.
  VectorCode(const Program& program, std::span<const std::int32_t> values,
             std::span<const AngleTable> tables);

  void run(const RunMemory& memory, ThreadPool& pool) const;

  /// Runs every value on rows [row, row + rows) of local cols.
  void run_local(const RunMemory& memory, float* locals, std::int64_t row, std::int64_t rows) const;

 private:
  /// Values of one kind that need only what earlier stages made.
  struct Stage {
    Kind kind = Kind::scalar;
    std::vector<std::int32_t> values;
  };
  std::vector<std::int32_t> values_;
  std::vector<Stage> stages_;
  std::vector<AngleTable> tables_;
};

}  // namespace coda::cpu
