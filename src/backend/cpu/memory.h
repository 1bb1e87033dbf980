// What one run of a program reads and writes, as plain pointers: operands, vector values, tables of
// angles. Filled before a run; nothing here owns memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "coda/program.h"
#include "tensor/tensor.h"

namespace coda::cpu {

/// A vector value (col, row or scalar) of a program while it runs. Integer cols are read where they
/// lie; everything else is fp32, at `offset` of the program's vector memory, with kPad spare floats
/// behind it.
struct VectorSlot {
  bool used = false;
  bool integer = false;
  bool local = false;  ///< col of a row program, made from its reductions: one strip's rows only
  std::int64_t length = 0;  ///< row: width; scalar: 1; col: -1, as many as rows
  std::int64_t offset = 0;
};

/// Angles of rotate(x, pos, freq): cosines and sines of one row are `period` floats.
struct AngleTable {
  std::int32_t position = -1, frequency = -1;  ///< values
  std::int64_t period = 0;
  std::int64_t offset = 0;
  auto operator<=>(const AngleTable&) const = default;
};

struct RunMemory {
  const Program* program = nullptr;
  std::span<const TensorView> operands;
  std::int64_t rows = 0;              ///< of acc, or of a row program
  std::int64_t tokens = 0;            ///< M
  std::span<const VectorSlot> slots;  ///< per value
  std::span<const AngleTable> tables;
  float* vectors = nullptr;         ///< shared by all threads
  const float* packed_b = nullptr;  ///< shared by all threads; null: each tile packs its own

  const TensorView& operand(std::int32_t index) const {
    return operands[static_cast<std::size_t>(index)];
  }
  const VectorSlot& slot(std::int32_t value) const {
    return slots[static_cast<std::size_t>(value)];
  }
  IntColumn integers(std::int32_t value) const {
    const std::int32_t index = program->values[static_cast<std::size_t>(value)].operand;
    const TensorView& view = operand(index);
    return {view.data, view.stride, view.dtype == DType::i64};
  }
};

inline char* address(const TensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<char*>(view.data) +
         (row * view.stride + col) * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace coda::cpu
