// The type rule of every op that may stand in a Program: what the operands must be and what the
// value is. The verifier compares with what is written, the builder fills it in.
#pragma once

#include <string>
#include <string_view>

#include "coda/program.h"

namespace coda {

struct ValueType {
  Kind kind = Kind::tile;
  Dim cols = Dim::width();
  bool partial = false;
  bool operator==(const ValueType&) const = default;
};

/// num/den of the same symbol in lowest terms, times factor and divided by divisor. A number that
/// is not divisible gives den != 1: see is_whole.
Dim scaled(Dim dim, std::int64_t factor, std::int64_t divisor);
bool is_whole(Dim dim);

/// "M", "N", "2N", "N/2", "96"; and "[M, N/2]", "[M]", "[N]", "[]".
std::string to_string(Dim dim);
std::string shape_text(const Program& program, Kind kind, Dim cols);
/// "Tile", "ColVec", "RowVec", "Scalar", ...
std::string_view type_name(Kind kind);
/// "Tile [M, N]", "ColVec [M]", "partial [M]": how errors name a value's type.
std::string type_text(const Program& program, const ValueType& type);

/// The value as errors and printed text name it: "%preact", or "%3" for an unnamed one.
std::string name_text(const Program& program, std::int32_t value);
/// "mul(%y, %sumsq)" or "store_tile(preact, %y)".
std::string call_text(const Program& program, std::int32_t value);

/// Type of values[index] from its operands, which must stand before it. Stores get the type of
/// what they store. Throws ProgramError.
ValueType infer(const Program& program, std::int32_t index);

/// Rows of a tile or col: Program::rows unless a rows(lo, hi) cut it.
Dim rows_of(const Program& program, std::int32_t index);

bool is_store(Op op);
bool is_load(Op op);

}  // namespace coda
