// Level 2 of coda: a Program is one GEMM and the epilogue run on each output tile while it is in
// registers or cache, or a row program (no GEMM; owns whole rows), or a vector program (no tile).
// SSA over values that are fp32; memory types appear at operands only. This header is plain data,
// what every backend reads; ProgramBuilder (for experts) and verify() keep it well formed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coda/op.h"

namespace coda {

/// An extent: a number, or a fraction num/den of the symbol M (rows of acc) or N (columns of acc).
struct Dim {
  enum class Symbol : std::uint8_t { none, M, N };
  Symbol symbol = Symbol::none;
  std::int64_t num = 1;  ///< the number itself when symbol is none
  std::int64_t den = 1;
  static Dim number(std::int64_t n) { return {Symbol::none, n, 1}; }
  static Dim tokens() { return {Symbol::M, 1, 1}; }
  static Dim width(std::int64_t num = 1, std::int64_t den = 1) { return {Symbol::N, num, den}; }
  auto operator<=>(const Dim&) const = default;
};

enum class Form : std::uint8_t {
  gemm,     ///< acc[M, N] = op(A) op(B), then the epilogue; reductions are partials
  rows,     ///< row program: row reductions are complete and usable, col_sum stays a partial
  vectors,  ///< col, row and scalar values only: finishes partials, stores vectors
};

/// A tensor in memory that the program reads or writes, bound to a buffer when planned.
/// Partials: a row reduction of a value of width w stores f32 [ceil(w / kColumnGranule), M]
/// (lse and log_sum: two such planes, max then sum); a col_sum stores f32 [ceil(M / kRowGranule),
/// w].
struct Operand {
  std::string name;
  Kind kind = Kind::tile;
  DType dtype = DType::f32;
  Dim rows = Dim::tokens();
  Dim cols = Dim::width();
  bool output = false;
  bool partial = false;     ///< memory holds partials (stored by store_partial, finished by loads)
  bool accumulate = false;  ///< output, f32: added to what is there
};

/// Columns (rows) that one partial of a row (column) reduction covers. Fixed, so that a
/// reduction's bits depend neither on tiles nor on threads.
inline constexpr std::int64_t kColumnGranule = 64;
inline constexpr std::int64_t kRowGranule = 128;

/// One SSA value, or a store (which defines nothing). args index Program::values.
struct Value {
  Op op;
  std::vector<std::int32_t> args = {};
  Attrs attrs = {};
  Kind kind = Kind::tile;
  Dim cols = Dim::width();    ///< tile, row: width. (col: 1, scalar: 1)
  std::int32_t operand = -1;  ///< loads, stores: index into Program::operands
  std::string name = {};      ///< printed as %name; unique; generated code keeps it
  bool partial =
      false;  ///< result of a reduction that covers one granule: only store_partial may use it
};

/// The matrix product of a Form::gemm program. a and b index Program::operands; b lists row blocks
/// of op(B) stacked along N (nt: rows of the weights; nn: along K) with no copy made.
///   nt: acc[M, N] = A[M, K] B[N, K]^T     nn: acc[M, N] = A[M, K] B[K, N]     tn: acc[N1, N2] =
///   A[K, N1]^T B[K, N2]
struct Gemm {
  bool transpose_a = false;  ///< tn
  bool transpose_b = true;   ///< nt
  std::int32_t a = -1;
  std::vector<std::int32_t> b;
  Dim k = Dim::number(0);
};

struct Program {
  std::string name;
  Form form = Form::gemm;
  Gemm gemm;                 ///< form gemm only
  Dim rows = Dim::tokens();  ///< rows of acc: tokens, or features in weight-gradient programs
  Dim cols = Dim::width();   ///< columns of acc; a number once planned
  std::vector<Operand> operands;
  std::vector<Value> values;  ///< in order of definition
};

/// Throws ProgramError naming program, value, what was expected and how to fix it.
void verify(const Program& program);

/// The canonical text; equal programs print equally, and parse_program reads it back.
std::string to_string(const Program& program);

/// The program of a text that to_string could have written: it prints equally, and is verified.
/// Spaces and line breaks are free. Throws ProgramError that names the line.
Program parse_program(std::string_view text);

/// The same program with N = n everywhere, and halves of the whole width turned into cols.
Program instantiate(const Program& program, std::int64_t n);

}  // namespace coda
