// The op set shared by Graph and Program: one enum, one attribute record, one table of facts.
// An operator (rms_norm, swiglu, ...) is never an op: it is a function that builds ops. Rewrites,
// partition and backends look at an op's class and structure only.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "coda/dtype.h"

namespace coda {

/// What a value is, by meaning and never by number: a ColVec stays one when M == N.
///   tile    [M, n]  one row a token (in weight-gradient programs: one row an output feature)
///   weight  [n, k]  a parameter matrix or a gradient of one; rows are features
///   col     [M]     one number a row (rstd, targets, log-sum-exp)
///   row     [n]     one number a column (norm weight, bias, frequencies)
///   scalar  []      one number, possibly known only at run time
///   list    [any]   integers that only opaque nodes read (cu_seqlens)
enum class Kind : std::uint8_t { tile, weight, col, row, scalar, list };

std::string_view name_of(Kind kind);

enum class Op : std::uint8_t {
  // leaves
  input,     ///< Graph: a named tensor bound at run time
  constant,  ///< a scalar known when compiling (attrs.value)
  // memory, in Programs only; every rounding happens at a cast in front of a store
  acc,            ///< the fp32 accumulator tile of the program's GEMM
  load_tile,      ///< a tile from memory
  load_row,       ///< a row vector; may finish partials (attrs.finish)
  load_col,       ///< a column vector; may finish partials
  load_scalar,    ///< a run-time scalar; may finish partials
  store_tile,     ///< a tile to memory
  store_partial,  ///< a reduction that covers one granule only (GEMM programs, col_sum everywhere)
  store_vector,   ///< a complete vector or scalar (row programs, vector programs)
  // elementwise, with broadcasting of col, row and scalar operands
  add,
  sub,
  mul,
  div,
  neg,
  exp,
  log,
  tanh,
  sigmoid,
  rsqrt,
  erf,
  maximum,
  greater,
  equal,
  cast,       ///< round to attrs.dtype, value stays fp32
  broadcast,  ///< a col, row or scalar as a tile of attrs.hi columns; see Attrs::index
  // pairs of columns (attrs.layout, attrs.period)
  first_of_pair,
  second_of_pair,
  join,
  rotate,
  unrotate,
  // addressing
  cols,      ///< columns [attrs.lo, attrs.hi) of a tile or a row vector
  cat_cols,  ///< tiles side by side
  rows,      ///< rows [attrs.lo, attrs.hi) of a weight
  cat_rows,  ///< weights one above the other: operand B as a list of row blocks
  // segments of attrs.period columns, complete inside a tile
  segment_sum,
  segment_broadcast,
  repeat,
  fold,  ///< row vector [p] -> [p * attrs.hi] and its adjoint
  // reductions
  row_sum,
  row_max,
  col_sum,
  lse,
  log_sum,  ///< lse - row_max, which differences with lse are made of (graph/rewrite.h)
  sum,
  // integer targets, one a row (attrs.ignore_index)
  pick,
  onehot,
  valid,
  // matrix product (attrs.transpose_a, transpose_b) and everything that is not math here
  matmul,
  opaque,
  proj,
};

/// Which columns form a pair. interleaved: 2j and 2j+1. halves: c and c + P/2 in each group of
/// P = attrs.period columns; period 0 stands for the whole width.
enum class PairLayout : std::uint8_t { interleaved, halves };

struct Pairs {
  PairLayout layout = PairLayout::halves;
  std::int64_t period = 0;
  static Pairs interleaved() { return {PairLayout::interleaved, 2}; }
  static Pairs halves(std::int64_t period = 0) { return {PairLayout::halves, period}; }
  auto operator<=>(const Pairs&) const = default;
};

/// How a load combines the partials of a reduction, in ascending order of granules. The last three
/// read the same online partials, of lse or log_sum: max and sum of e^(x - max).
enum class Finish : std::uint8_t {
  none,
  sum,
  max,
  lse,      ///< max + ln sum
  log_sum,  ///< ln sum; 0 where the max is infinite
  lse_max,  ///< max
};

/// Are its partials online ones: two planes, maxima and sums?
constexpr bool is_online(Op op) { return op == Op::lse || op == Op::log_sum; }
constexpr bool is_online(Finish finish) {
  return finish == Finish::lse || finish == Finish::log_sum || finish == Finish::lse_max;
}

/// Nodes with their own kernels and registry row (ops/opaque.h).
enum class Opaque : std::uint8_t {
  none,
  attention,
  attention_backward,
  embedding,
  embedding_backward,
  cached_attention
};

/// Everything an op needs besides its operands. Fields that an op does not use stay at default,
/// so that equality of (op, operands, attrs) is equality of values (hash-consing, CSE).
struct Attrs {
  double value = 0;    ///< constant; attention: softmax scale
  double softcap = 0;  ///< attention: AttentionOptions::softcap
  /// cols, rows: the range. broadcast: hi columns, lo rows (of a weight). repeat, fold: hi times.
  /// pick, onehot: hi classes. opaque attention: lo is AttentionOptions::window; cached_attention:
  /// hi rows of a cache. matmul: unused.
  std::int64_t lo = 0, hi = 0;
  /// Segments; halves (never the whole width: that is cols and cat_cols); rotate and unrotate, in
  /// both layouts: the head dimension = width of freq; opaque attention: head_dim.
  std::int64_t period = 0;
  PairLayout layout = PairLayout::interleaved;
  DType dtype = DType::f32;                       ///< cast
  bool transpose_a = false, transpose_b = false;  ///< matmul: tokens-major A^T (tn), B^T (nt)
  Finish finish = Finish::none;
  std::int64_t ignore_index = -100;
  /// proj: which output; opaque attention: n_heads; broadcast: the Kind made (tile, weight from row
  /// or scalar; col, row from scalar).
  std::int32_t index = 0;
  std::int32_t index2 = 0;  ///< opaque attention: n_kv_heads; embedding: vocabulary
  Opaque opaque = Opaque::none;
  auto operator<=>(const Attrs&) const = default;
};

}  // namespace coda
