// Level 3: a Plan is a list of steps over buffers, ready for any backend: which program runs when,
// on which part of which buffer, and how long each buffer lives.
//
// One Plan may hold two phases: forward, and backward, which reads what forward left in saved
// buffers. M (tokens) is free per run up to what the session reserved.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "coda/program.h"

namespace coda {

enum class Role : std::uint8_t {
  input,    ///< bound by the user; never written
  output,   ///< bound by the user; written (a gradient may be accumulated into)
  saved,    ///< owned by the plan; written in forward, read in backward
  scratch,  ///< owned by the plan; lives inside one phase
  result,   ///< owned by the plan; Session::buffer gives it from when it is written to the next run
};

/// Rows of M: those of piece `index` when they are cut into `count` pieces of equally many whole
/// kRowGranule (the last ones have fewer, or none). All M by default.
struct Piece {
  std::int32_t index = 0, count = 1;
  bool operator==(const Piece&) const = default;
};
struct RowRange {
  std::int64_t first = 0, rows = 0;
};
RowRange rows_of(Piece piece, std::int64_t tokens);

/// A piece of memory. rows is kTokens for M rows. Partials (see Operand): `partial` set, rows and
/// cols those of the *reduced* vector, granules the number of partials (kTokens: as many as
/// kRowGranule rows make of M).
struct Buffer {
  std::string name;  ///< unique; inputs and outputs: the binding name
  Role role = Role::scratch;
  Kind kind = Kind::tile;
  DType dtype = DType::f32;
  std::int64_t rows = kTokens;
  std::int64_t cols = 0;
  bool partial = false;
  Finish finish = Finish::none;  ///< partial: what it was stored for; online: two planes
  std::int64_t granules = 0;
  Piece piece = {};  ///< holds these of the M rows only
  /// Lifetime in global step numbers: forward steps, then backward steps.
  std::int32_t first_step = 0, last_step = 0;
};

/// Columns [col, col + cols) and rows [row, row + rows) of a buffer. rows = kTokens: all M.
struct Slice {
  std::int32_t buffer = -1;
  std::int64_t row = 0, col = 0;
  std::int64_t rows = kTokens, cols = 0;
};

/// One launch. A step of a piece sees these rows of every slice that has M rows or one partial per
/// kRowGranule of them. Program steps: slices[i] is bound to program.operands[i]. Opaque steps:
/// inputs, then outputs, in the order of the registry row (ops/opaque.h).
struct Step {
  std::shared_ptr<const Program> program;  ///< null for opaque steps
  Opaque opaque = Opaque::none;
  Attrs attrs;  ///< of the opaque node
  std::vector<Slice> slices;
  std::int32_t n_inputs = 0;  ///< opaque: how many of slices are read
  bool accumulates = false;   ///< opaque: adds its results to what their memory holds
  Piece piece = {};
  std::string note;  ///< why this step is not part of another (coda explain)
};

struct Plan {
  std::vector<Buffer> buffers;
  std::vector<Step> forward;
  std::vector<Step> backward;
  std::string math;                   ///< what was compiled, one line a value
  std::vector<std::string> rewrites;  ///< what changed it before it was cut into programs
  std::int32_t find_buffer(const std::string& name) const;  ///< -1 if absent
};

/// Throws InternalError unless every step reads only what was written before it (or is an input or
/// saved), writes no input, fits its buffers, and every program verifies. Run on every tentative
/// plan.
void verify(const Plan& plan);

std::string to_string(const Plan& plan);

/// Bytes that the step's tile and weight operands move for M tokens, each operand read or written
/// once a program, and its GEMM's floating-point operations.
struct Cost {
  double bytes = 0;
  double flops = 0;
};
Cost cost_of(const Step& step, const Plan& plan, std::int64_t tokens);
Cost cost_of(const Plan& plan, std::int64_t tokens);
/// Bytes held between forward and backward for M tokens.
double saved_bytes(const Plan& plan, std::int64_t tokens);

}  // namespace coda
