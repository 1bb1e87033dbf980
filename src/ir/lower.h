// A program's tile values in the form that compiling backends run: column and row addressing (cols,
// cat_cols, rows) pushed into the leaves and the stores, then cut into sections that can be run
// column tile by column tile. Knows shapes only; no memory, no kernels.
//
// A section is a set of nodes linked by tile operands. Its columns are those of its widest node,
// [0, width); columns [c, c + n) of the section are columns [c / scale, (c + n) / scale) of a node.
// c is always a multiple of `unit`, so that no pair, segment, head or granule is cut.
//
// Where slices cut through pairs, heads or granules (odd widths, mostly), the program is lowered
// `whole` instead: one section, each node at its own full width, slices copied.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "coda/program.h"

namespace coda::lowering {

/// An argument of a node: another node, or a vector value of the program, read from `offset` on.
struct Ref {
  enum class Kind : std::uint8_t { tile, col, row, scalar } kind = Kind::tile;
  std::int32_t index = -1;  ///< tile: of Lowered::nodes; otherwise of Program::values
  std::int64_t offset = 0;  ///< row: first column; col: first row
  auto operator<=>(const Ref&) const = default;
};

struct Node {
  Op op = Op::acc;
  Attrs attrs;
  std::vector<Ref> args;
  std::int64_t width = 0;
  std::int32_t operand = -1;  ///< load_tile
  std::int64_t col = 0;       ///< acc, load_tile: first column there; onehot: first class
  std::int64_t row = 0;       ///< acc, load_tile: first row there
  std::int64_t rows = -1;     ///< rows of a window; -1: all
  auto operator<=>(const Node&) const = default;
};

/// What leaves a section: a store, or a reduction (stored as partials, or complete in row
/// programs).
struct Sink {
  Op op = Op::store_tile;  ///< store_tile, or a reduction of a tile
  std::int32_t node = -1;
  std::int32_t operand = -1;  ///< -1: a complete reduction
  std::int32_t value = -1;    ///< the reduction, of Program::values
  std::int64_t col = 0;       ///< where the node begins in what is stored or reduced
  Ref target;                 ///< pick
  std::int64_t ignore_index = 0;
};

struct LoweredSection {
  std::int64_t width = 0;
  std::int64_t unit = 1;            ///< == width: not to be cut
  std::int64_t rows = -1;           ///< of its window; -1: all
  std::vector<std::int32_t> nodes;  ///< ascending; arguments come first
  std::vector<Sink> sinks;
};

struct Lowered {
  std::vector<Node> nodes;
  std::vector<std::int64_t> scale;     ///< per node
  std::vector<std::int32_t> value_of;  ///< per node: the first value it is (part of), or -1
  std::vector<LoweredSection> sections;
  bool whole = false;
};

/// The program must verify and have numbers for widths.
Lowered lower(const Program& program);

/// True for the reductions of a tile.
bool is_tile_reduction(Op op);

}  // namespace coda::lowering
