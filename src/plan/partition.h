// Which program computes what: every node of a Graph gets a home (a GEMM beside it, a row program,
// or none), decided by structure alone. The result is abstract: units that name graph nodes;
// plan/emit.h turns units into Programs and buffers. Must not know operators or backends.
//
// A *unit* becomes one step. A *leaf* is in memory before the phase starts (input, saved value). A
// *floating* value has no home: each unit that needs it computes it again. A *sealed* value is
// always stored where it is made and only loaded by others (fuse = false seals everything).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "coda/program.h"

namespace coda {

enum class UnitKind : std::uint8_t { gemm, rows, vectors, opaque };

/// One value that a unit writes. into == value: its own buffer; a cat_cols node: columns
/// [col, col + width) of that node's buffer. slot >= 0: output number slot, which no unit reads; of
/// a cat_rows node then, rows from `row` on.
struct UnitStore {
  NodeId value = kNoNode;
  NodeId into = kNoNode;
  std::int64_t col = 0;
  std::int32_t slot = -1;
  std::int64_t row = 0;
  auto operator<=>(const UnitStore&) const = default;
};

struct Unit {
  UnitKind kind = UnitKind::rows;
  NodeId node = kNoNode;          ///< the matmul or opaque node
  std::int64_t axis = kTokens;    ///< rows: kTokens, or features of a weight
  std::vector<UnitStore> stores;  ///< sorted
  std::vector<NodeId>
      reductions;              ///< of tiles (or sums of vectors) computed here for others, by id
  std::vector<NodeId> loads;   ///< tiles and weights its values read from memory, by id
  std::vector<NodeId> values;  ///< every node visited that is not loaded, by id
  std::string note = {};       ///< why a row program is not part of a GEMM
};

/// A value the phase must leave in memory. slot -1: in a buffer of its own; separate: a slice of
/// something in memory does not do (the buffer is an output).
struct Root {
  NodeId node = kNoNode;
  std::int32_t slot = -1;
  bool separate = false;
};

struct PartitionRequest {
  const Graph* graph = nullptr;
  std::vector<Root> roots = {};
  std::vector<NodeId> leaves = {};  ///< besides inputs: what an earlier phase left in memory
  bool fuse = true;                 ///< false: every operation a unit of its own
  bool search = true;               ///< try homes for floating values that several units compute
  DType dtype = DType::f32;         ///< of buffers, for counting bytes
  DType output_dtype = DType::f32;
  std::int64_t tokens = 16384;  ///< M at which bytes are compared
};

struct Partition {
  std::vector<Unit> units;  ///< in launch order
  double bytes = 0;         ///< of tiles and weights, every operand once a unit
};

/// Never fails for a well-formed graph: what cannot be fused is left in units of its own.
Partition partition(const PartitionRequest& request);

/// Tile or weight: a value with a row axis and a width.
bool is_tile(const Node& node);
/// pick, lse, row and column sums (and sum, of a vector): what a unit finishes for others.
bool is_reduction(Op op);
/// The parts of a (nested) cat_cols with their first columns; {v, 0} itself for anything else.
std::vector<UnitStore> parts_of(const Graph& graph, NodeId v);

}  // namespace coda
