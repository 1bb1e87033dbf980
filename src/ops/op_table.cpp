#include "ops/op_table.h"

#include "base/check.h"

namespace coda {
namespace {

using C = OpClass;
using Rules = std::array<std::string_view, 3>;

constexpr Rules kNone = {};

constexpr std::array kTable = {
    // leaves
    OpRow{Op::input, "input", C::leaf, 0, "a named tensor", "-> any kind", kNone, "", ""},
    OpRow{Op::constant, "constant", C::leaf, 0, "y = value", "-> scalar", kNone, "", ""},
    // memory
    OpRow{Op::acc, "acc", C::memory, 0, "y = op(A) op(B)", "-> tile [M, N]", kNone, "", ""},
    OpRow{Op::load_tile, "load_tile", C::memory, 0, "y = memory", "-> tile", kNone, "", ""},
    OpRow{Op::load_row, "load_row", C::memory, 0, "y = finish(memory)", "-> row", kNone, "", ""},
    OpRow{Op::load_col, "load_col", C::memory, 0, "y = finish(memory)", "-> col", kNone, "", ""},
    OpRow{Op::load_scalar, "load_scalar", C::memory, 0, "y = finish(memory)", "-> scalar", kNone,
          "", ""},
    OpRow{Op::store_tile, "store_tile", C::memory, 1, "memory = a", "tile ->", kNone, "", ""},
    OpRow{Op::store_partial, "store_partial", C::memory, 1, "memory[granule] = a",
          "col or row partial ->", kNone, "", ""},
    OpRow{Op::store_vector, "store_vector", C::memory, 1, "memory = a", "col, row or scalar ->",
          kNone, "", ""},
    // elementwise
    OpRow{Op::add, "add", C::elementwise, 2, "y = a + b", "broadcasts", Rules{"dy", "dy"}, "y - b",
          "C"},
    OpRow{Op::sub, "sub", C::elementwise, 2, "y = a - b", "broadcasts", Rules{"dy", "-dy"}, "y + b",
          "C"},
    OpRow{Op::mul, "mul", C::elementwise, 2, "y = a b", "broadcasts", Rules{"dy * b", "dy * a"},
          "y / b", "R"},
    OpRow{Op::div, "div", C::elementwise, 2, "y = a / b", "broadcasts",
          Rules{"dy / b", "-(dy * y / b)"}, "y * b", "R"},
    OpRow{Op::neg, "neg", C::elementwise, 1, "y = -a", "keeps the shape", Rules{"-dy"}, "-y", "E"},
    OpRow{Op::exp, "exp", C::elementwise, 1, "y = e^a", "keeps the shape", Rules{"dy * y"}, "", ""},
    OpRow{Op::log, "log", C::elementwise, 1, "y = ln a", "keeps the shape", Rules{"dy / a"}, "",
          ""},
    OpRow{Op::tanh, "tanh", C::elementwise, 1, "y = tanh a", "keeps the shape",
          Rules{"dy * (1 - y * y)"}, "", ""},
    OpRow{Op::sigmoid, "sigmoid", C::elementwise, 1, "y = 1 / (1 + e^-a)", "keeps the shape",
          Rules{"dy * (y * (1 - y))"}, "", ""},
    OpRow{Op::rsqrt, "rsqrt", C::elementwise, 1, "y = 1 / sqrt(a)", "keeps the shape",
          Rules{"dy * (-0.5 * (y * y * y))"}, "", ""},
    OpRow{Op::erf, "erf", C::elementwise, 1, "y = 2/sqrt(pi) integral_0^a e^(-t t) dt",
          "keeps the shape", Rules{"dy * (1.1283791670955126 * exp(-(a * a)))"}, "", ""},
    OpRow{Op::maximum, "maximum", C::elementwise, 2, "y = max(a, b)", "broadcasts",
          Rules{"dy * (greater(a, b) + 0.5 * equal(a, b))",
                "dy * (greater(b, a) + 0.5 * equal(a, b))"},
          "", ""},
    OpRow{Op::greater, "greater", C::elementwise, 2, "y = 1 if a > b else 0", "broadcasts",
          Rules{"0", "0"}, "", ""},
    OpRow{Op::equal, "equal", C::elementwise, 2, "y = 1 if a = b else 0", "broadcasts",
          Rules{"0", "0"}, "", ""},
    OpRow{Op::cast, "cast", C::elementwise, 1, "y = a rounded to dtype", "keeps the shape",
          Rules{"dy"}, "", ""},
    OpRow{Op::broadcast, "broadcast", C::elementwise, 1, "y[i, j] = a",
          "col, row, scalar -> tile; row, scalar -> weight; scalar -> col, row", Rules{"dy"}, "",
          ""},
    // pairs
    OpRow{Op::first_of_pair, "first_of_pair", C::pairs, 1, "y[j] = first column of pair j of a",
          "tile [M, n] -> tile [M, n/2]", Rules{"join(dy, 0)"}, "", ""},
    OpRow{Op::second_of_pair, "second_of_pair", C::pairs, 1, "y[j] = second column of pair j of a",
          "tile [M, n] -> tile [M, n/2]", Rules{"join(0, dy)"}, "", ""},
    OpRow{Op::join, "join", C::pairs, 2, "pair j of y = (a[j], b[j])",
          "tile [M, n], tile [M, n] -> tile [M, 2n]",
          Rules{"first_of_pair(dy)", "second_of_pair(dy)"}, "first_of_pair(y)", "E"},
    OpRow{Op::rotate, "rotate", C::pairs, 3,
          "pair j of y = pair j of a turned by b (c[j] + c[j + P/2]) turns",
          "tile [M, n], integer col [M], row [P] -> tile [M, n]; P divides n",
          Rules{"unrotate(dy, b, c)"}, "unrotate(y, b, c)", "E"},
    OpRow{Op::unrotate, "unrotate", C::pairs, 3,
          "pair j of y = pair j of a turned by -b (c[j] + c[j + P/2]) turns",
          "tile [M, n], integer col [M], row [P] -> tile [M, n]; P divides n",
          Rules{"rotate(dy, b, c)"}, "rotate(y, b, c)", "E"},
    // addressing
    OpRow{Op::cols, "cols", C::addressing, 1, "y = a[:, lo:hi]",
          "tile [M, n] -> tile [M, hi - lo]; row [n] -> row [hi - lo]", Rules{"pad_cols(dy)"}, "",
          ""},
    OpRow{Op::cat_cols, "cat_cols", C::addressing, -1, "y = a | b | ...",
          "tiles or rows side by side", Rules{"part_cols(dy)"}, "", ""},
    OpRow{Op::rows, "rows", C::addressing, 1, "y = a[lo:hi, :]",
          "weight [n, k] -> weight [hi - lo, k]", Rules{"pad_rows(dy)"}, "", ""},
    OpRow{Op::cat_rows, "cat_rows", C::addressing, -1, "y = a over b over ...",
          "weights one above the other", Rules{"part_rows(dy)"}, "", ""},
    // segments
    OpRow{Op::segment_sum, "segment_sum", C::segment, 1,
          "y[j] = sum of columns [j P, (j + 1) P) of a", "tile [M, n] -> tile [M, n/P]",
          Rules{"segment_broadcast(dy)"}, "", ""},
    OpRow{Op::segment_broadcast, "segment_broadcast", C::segment, 1, "y[j] = a[j / P]",
          "tile [M, n] -> tile [M, n P]", Rules{"segment_sum(dy)"}, "", ""},
    OpRow{Op::repeat, "repeat", C::segment, 1, "y[j] = a[j mod p]", "row [p] -> row [p times]",
          Rules{"fold(dy)"}, "", ""},
    OpRow{Op::fold, "fold", C::segment, 1, "y[j] = sum over t of a[j + t p]",
          "row [p times] -> row [p]", Rules{"repeat(dy)"}, "", ""},
    // reductions
    OpRow{Op::row_sum, "row_sum", C::reduction, 1, "y[i] = sum over j of a[i, j]",
          "tile [M, n] -> col [M]", Rules{"dy"}, "", ""},
    OpRow{Op::row_max, "row_max", C::reduction, 1, "y[i] = max over j of a[i, j]",
          "tile [M, n] -> col [M]", Rules{"equal(a, y) * (dy / row_sum(equal(a, y)))"}, "", ""},
    OpRow{Op::col_sum, "col_sum", C::reduction, 1, "y[j] = sum over i of a[i, j]",
          "tile or weight -> row [n]", Rules{"dy"}, "", ""},
    OpRow{Op::lse, "lse", C::reduction, 1, "y[i] = ln sum over j of e^a[i, j]",
          "tile [M, n] -> col [M]", Rules{"dy * exp(a - y)"}, "", ""},
    OpRow{Op::log_sum, "log_sum", C::reduction, 1,
          "y[i] = ln sum over j of e^(a[i, j] - row_max(a)[i]); 0 where that max is infinite",
          "tile [M, n] -> col [M]", kNone, "", ""},
    OpRow{Op::sum, "sum", C::reduction, 1, "y = sum of a", "col or row -> scalar", Rules{"dy"}, "",
          ""},
    // targets
    OpRow{Op::pick, "pick", C::target, 2, "y[i] = a[i, b[i]]; 0 where b is ignore_index",
          "tile [M, n], integer col [M] -> col [M]", Rules{"dy * onehot(b)"}, "", ""},
    OpRow{Op::onehot, "onehot", C::target, 1, "y[i, j] = 1 if a[i] = j else 0",
          "integer col [M] -> tile [M, n]", kNone, "", ""},
    OpRow{Op::valid, "valid", C::target, 1, "y[i] = 0 where a is ignore_index, else 1",
          "integer col [M] -> col [M]", kNone, "", ""},
    // matrix product and opaque nodes
    OpRow{Op::matmul, "matmul", C::matmul, 2, "nt: y = a b^T; nn: y = a b; tn: y = a^T b",
          "nt: tile [M, k], weight [n, k] -> tile [M, n]; nn: tile [M, n], weight [n, k] -> tile "
          "[M, k]; tn: tile [M, n], tile [M, k] -> weight [n, k]",
          Rules{"matmul_nn(dy, b)", "matmul_tn(dy, a)"}, "", ""},
    OpRow{Op::opaque, "opaque", C::opaque, -1, "a row of ops/opaque.h", "by that row", kNone, "",
          ""},
    OpRow{Op::proj, "proj", C::opaque, 1, "y = result number index of a", "by the opaque row",
          kNone, "", ""},
};

static_assert(kTable.size() == static_cast<std::size_t>(Op::proj) + 1, "one row an op");

}  // namespace

std::span<const OpRow> op_table() { return kTable; }

const OpRow& row_of(Op op) {
  const auto index = static_cast<std::size_t>(op);
  internal_check(index < kTable.size(), "row_of: no op number {}", index);
  return kTable[index];
}

std::string_view name_of(Op op) { return row_of(op).name; }

std::array<std::string_view, 3> derivative_of(Op op, const Attrs& attrs) {
  if (op != Op::matmul || attrs.transpose_b) return row_of(op).derivative;
  if (attrs.transpose_a) return {"matmul_nt(b, dy)", "matmul_nn(a, dy)"};
  return {"matmul_nt(dy, b)", "matmul_tn(a, dy)"};
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::tile:
      return "tile";
    case Kind::weight:
      return "weight";
    case Kind::col:
      return "col";
    case Kind::row:
      return "row";
    case Kind::scalar:
      return "scalar";
    case Kind::list:
      return "list";
  }
  throw_error<InternalError>("name_of: no kind number {}", static_cast<int>(kind));
}

}  // namespace coda
