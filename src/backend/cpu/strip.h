// The epilogue interpreter. A section's nodes become a flat list of instructions; each works on a
// strip (a few rows by some hundred columns) that stays in first-level cache, so that the cost of
// interpreting is spread over a thousand elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/memory.h"
#include "ir/lower.h"

namespace coda::cpu {

using lowering::is_tile_reduction;
using lowering::lower;
using lowering::Lowered;
using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;

/// A block of the accumulator that a section reads.
struct AccBlock {
  std::int32_t node = -1;
  std::int64_t col = 0, row = 0;
  std::int64_t scale = 1;
  std::int64_t width = 0;
};

/// Where an instruction finds or leaves something.
struct Place {
  enum class In : std::uint8_t { none, slot, acc, col, local_col, row, scalar } in = In::none;
  std::int32_t index = 0;  ///< slot number, acc block; vectors: value
  std::int64_t offset = 0;
  std::int64_t scale = 1;
  std::int64_t width = 0;  ///< tiles: of the node
};

struct Instruction {
  Op op = Op::acc;
  Attrs attrs;
  Place y, a, b;
  std::vector<Place> more;  ///< cat_cols: all arguments; chains: c, or the scale
  UnaryKernel unary = nullptr;
  BinaryKernel binary = nullptr;
  StoreKernel store = nullptr;
  ChainKernel chain = nullptr;  ///< makes y and stores it
  GatedKernel gated = nullptr;
  struct {
    std::int32_t operand = -1;
    std::int64_t col = 0;
  } factors[2];  ///< gated: where gate and up go
  std::int32_t operand = -1;
  std::int64_t col = 0, row = 0;  ///< in the operand, the classes or the reduced value
  std::int32_t value = -1;        ///< reductions: of the program
  std::int32_t target = -1;       ///< pick, onehot: value of the integers; rotate: table
  std::int64_t target_row = 0;
};

/// One strip of a section: rows [row, row + rows) of the section's, columns [col, col + n).
struct StripRun {
  const RunMemory* memory = nullptr;
  std::int64_t row = 0, rows = 0;
  std::int64_t col = 0, n = 0;
  // The accumulator blocks of the tile that the strip is part of.
  std::int64_t tile_row = 0, tile_col = 0;
  float* const* acc = nullptr;
  const std::int64_t* acc_stride = nullptr;
  float* slots = nullptr;  ///< slot_count slots of slot_floats
  std::int64_t slot_floats = 0;
  float* reduced = nullptr;  ///< complete reductions: granules of one strip
  float* locals = nullptr;   ///< local cols, by VectorSlot::offset
};

class StripCode {
 public:
  /// Instructions for some sinks of a section, and what they need.
  StripCode(const Program& program, const Lowered& lowered, const LoweredSection& section,
            std::span<const Sink> sinks, std::span<const AccBlock> blocks,
            std::span<const VectorSlot> slots, std::span<const AngleTable> tables);

  void run(const StripRun& strip) const;
  int slot_count() const { return slot_count_; }
  bool empty() const { return code_.empty(); }

 private:
  bool whole_ = false;
  int slot_count_ = 0;
  std::vector<Instruction> code_;
};

}  // namespace coda::cpu
