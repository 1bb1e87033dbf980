// Writes Programs by hand. Values have the types Tile, RowVec, ColVec, Scalar and Partial; what has
// no meaning has no overload: a Partial has no arithmetic, so its misuse does not compile.
//
//   ProgramBuilder b("swiglu_forward");
//   Tile acc = b.acc();
//   ColVec rstd = b.load_col("rstd", DType::f32);
//   Tile preact = acc * rstd;
//   auto [gate, up] = split(preact, Pairs::interleaved());
//   b.store_tile("preact", preact, DType::bf16);
//   b.store_tile("hidden", silu(gate) * up, DType::bf16);
//   return b.build();
//
// Every function throws ProgramError that names program and value. build() walks the stores in
// their order and each store's operands from left to right: one program, one text. Handles are
// valid while their builder lives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coda/program.h"

namespace coda {

class ProgramBuilder;

namespace detail {

/// A value of a builder; what kind it is, the derived types say.
struct Handle {
  ProgramBuilder* builder = nullptr;
  std::int32_t index = -1;
};

}  // namespace detail

/// [M, n] in registers.
struct Tile : detail::Handle {};
/// [n]: one number a column.
struct RowVec : detail::Handle {};
/// [M]: one number a row.
struct ColVec : detail::Handle {};
/// [M] of integers: targets and positions.
struct IntCol : detail::Handle {};
struct Scalar : detail::Handle {};
/// A reduction that covers one tile only: it can be stored, and nothing else.
struct Partial : detail::Handle {};

/// How a load makes a vector of partials, and of which operand.
struct Finished {
  std::string operand;
  Finish finish = Finish::sum;
  bool rms = false;  ///< 1 / sqrt(sum / count + eps)
  double count = 1;
  double eps = 0;
};
Finished finish_sum(std::string_view operand);
Finished finish_max(std::string_view operand);
/// Three readings of what online_lse stores: max + ln sum, and its two terms. A difference with the
/// log-sum-exp takes them one after the other: (x - max) - log_sum stays exact for large x.
Finished finish_lse(std::string_view operand);
Finished finish_lse_max(std::string_view operand);
Finished finish_log_sum(std::string_view operand);
/// The reciprocal root mean square of rows of d columns, from partial sums of squares.
Finished finish_rms(std::string_view operand, std::int64_t d, double eps);

class ProgramBuilder {
 public:
  /// Form::gemm: an epilogue whose GEMM is bound when planned, unless gemm() names it here.
  explicit ProgramBuilder(std::string_view name, Form form = Form::gemm);
  ~ProgramBuilder();
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  /// acc[M, n] = a[M, k] (b's blocks stacked)[n, k]^T; block i of b has rows[i] rows. Fixes N = n.
  void gemm_nt(std::string_view a, std::int64_t k, const std::vector<std::string>& b,
               const std::vector<std::int64_t>& rows, DType dtype);

  /// The accumulator of the GEMM, fp32 [M, N].
  Tile acc();
  /// cols symbolic (a fraction of N) or a number.
  Tile load_tile(std::string_view name, DType dtype, Dim cols = Dim::width());
  RowVec load_row(std::string_view name, DType dtype, Dim cols = Dim::width());
  ColVec load_col(std::string_view name, DType dtype);
  IntCol load_integers(std::string_view name, DType dtype = DType::i32);
  Scalar load_scalar(std::string_view name);
  ColVec load_col(const Finished& finished);
  RowVec load_row(const Finished& finished, Dim cols = Dim::width());
  Scalar load_scalar(const Finished& finished);
  Scalar constant(double value);

  void store_tile(std::string_view name, Tile value, DType dtype);
  /// f32, finished by whoever loads it.
  void store_partial(std::string_view name, Partial value);
  /// Vectors of row and vector programs are complete.
  void store_vector(std::string_view name, ColVec value, DType dtype = DType::f32);
  void store_vector(std::string_view name, RowVec value, DType dtype = DType::f32);
  void store_vector(std::string_view name, Scalar value);

  /// The verified program: only what a store needs. Callable once or more.
  Program build() const;

  /// For the free functions below: appends a value (checked, typed by the op's rule).
  detail::Handle apply(Op op, const std::vector<detail::Handle>& args, const Attrs& attrs = {},
                       std::int32_t operand = -1, std::string_view name = "");

 private:
  std::int32_t input(std::string_view name, Kind kind, DType dtype, Dim cols, bool partial);
  void store(Op op, std::string_view name, detail::Handle value, DType dtype, bool partial);
  detail::Handle finish(Op load, Kind kind, const Finished& finished, Dim cols);

  std::unique_ptr<Program> draft_;
};

// --- elementwise; vectors and scalars broadcast ---
Tile operator+(Tile a, Tile b);
Tile operator-(Tile a, Tile b);
Tile operator*(Tile a, Tile b);
Tile operator/(Tile a, Tile b);
Tile operator+(Tile a, ColVec b);
Tile operator-(Tile a, ColVec b);
Tile operator*(Tile a, ColVec b);
Tile operator/(Tile a, ColVec b);
Tile operator+(Tile a, RowVec b);
Tile operator-(Tile a, RowVec b);
Tile operator*(Tile a, RowVec b);
Tile operator+(Tile a, Scalar b);
Tile operator-(Tile a, Scalar b);
Tile operator*(Tile a, Scalar b);
Tile operator*(Tile a, double b);
Tile operator+(Tile a, double b);
Tile operator-(double a, Tile b);
Tile operator-(Tile a);
ColVec operator+(ColVec a, ColVec b);
ColVec operator-(ColVec a, ColVec b);
ColVec operator*(ColVec a, ColVec b);
ColVec operator/(ColVec a, ColVec b);
ColVec operator*(ColVec a, Scalar b);
ColVec operator*(ColVec a, double b);
ColVec operator+(ColVec a, double b);
RowVec operator+(RowVec a, RowVec b);
RowVec operator*(RowVec a, RowVec b);
RowVec operator*(RowVec a, Scalar b);
RowVec operator*(RowVec a, double b);
Scalar operator+(Scalar a, Scalar b);
Scalar operator*(Scalar a, Scalar b);
Scalar operator/(Scalar a, Scalar b);
Tile exp(Tile x);
Tile log(Tile x);
Tile tanh(Tile x);
Tile sigmoid(Tile x);
Tile rsqrt(Tile x);
Tile erf(Tile x);
ColVec exp(ColVec x);
ColVec log(ColVec x);
ColVec rsqrt(ColVec x);
Tile maximum(Tile a, Tile b);
Tile cast(Tile x, DType dtype);
/// x * sigmoid(x)
Tile silu(Tile x);

// --- pairs, columns, segments ---
std::pair<Tile, Tile> split(Tile x, Pairs pairs);
Tile join(Tile first, Tile second, Pairs pairs);
Tile rotate(Tile x, IntCol positions, RowVec frequencies, Pairs pairs);
Tile cols(Tile acc, std::int64_t lo, std::int64_t hi);
Tile segment_sum(Tile x, std::int64_t period);
Tile segment_broadcast(Tile x, std::int64_t period);

// --- reductions: partials in a GEMM program ---
Partial row_sum(Tile x);
Partial row_max(Tile x);
Partial col_sum(Tile x);
/// (max, sum of exponentials) of each row.
Partial online_lse(Tile x);
/// The target's column of each row; 0 where the target is ignore_index.
Partial pick_col(Tile x, IntCol targets, std::int64_t ignore_index = -100);
/// The same of whole rows, complete, in a row program.
ColVec whole_row_sum(Tile x);
ColVec whole_row_max(Tile x);
ColVec whole_lse(Tile x);
ColVec whole_log_sum(Tile x);  ///< lse without the max

}  // namespace coda
