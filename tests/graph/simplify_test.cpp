#include <gtest/gtest.h>

#include "coda/error.h"
#include "coda/graph.h"

namespace coda {
namespace {

class Simplify : public ::testing::Test {
 protected:
  Graph g;
  Tensor x = g.tile("x", 6), y = g.tile("y", 6), c = g.col("c"), r = g.row("r", 6);
  Tensor w = g.weight("w", 4, 6), t = g.col("t", DType::i32);
  void same(Tensor a, Tensor b) {
    EXPECT_EQ(a.id(), b.id()) << to_string(g, {a}) << "against\n" << to_string(g, {b});
  }
};

TEST_F(Simplify, EqualNodesAreOne) {
  same(x + y, y + x);
  same(exp(x * c), exp(c * x));
  EXPECT_NE((x - y).id(), (y - x).id());
  EXPECT_NE(cols(x, 0, 2).id(), cols(x, 0, 3).id());
}

TEST_F(Simplify, Constants) {
  same(x * 1.0, x);
  same(x + 0.0, x);
  same(x * -1.0, -x);
  same(-(-x), x);
  same(x + x, x * 2.0);
  same((x * 3.0) * 2.0, x * 6.0);
  same(g.constant(2) / g.constant(4), g.constant(0.5));
  same(x * (y * 0.0) + y, y);
  same(x + (-y), x - y);
  same((-x) * y, -(x * y));
}

TEST_F(Simplify, ZeroOverACountIsNotFolded) {
  const Tensor count = sum(valid(t));
  EXPECT_EQ(g.node((g.constant(0) / count).id()).op, Op::div);
}

TEST_F(Simplify, BroadcastsAreStripped) {
  const Tensor cc = broadcast(c, x.type()), rr = broadcast(r, x.type());
  same(x * cc, x * c);
  same(x * rr, x * r);
  same(cc * cc, broadcast(c * c, x.type()));
  same(exp(rr), broadcast(exp(r), x.type()));
  same(cc * rr, cc * r);
  same(rr * c, cc * r);
  same(c * broadcast(g.scalar("s"), c.type()), c * g.scalar("s"));
}

TEST_F(Simplify, SlicesSinkAndCatsRise) {
  same(cols(x, 0, 6), x);
  same(cols(cols(x, 1, 5), 1, 3), cols(x, 2, 4));
  same(cols(x * c + r, 1, 3), cols(x, 1, 3) * c + cols(r, 1, 3));
  same(cat_cols({cols(x, 0, 2), cols(x, 2, 6)}), x);
  same(cols(cat_cols({x, y}), 4, 8), cat_cols({cols(x, 4, 6), cols(y, 0, 2)}));
  same(cat_cols({x, y}) * c, cat_cols({x * c, y * c}));
  same(cat_cols({cat_cols({x, y}), x}), cat_cols({x, y, x}));
  same(rows(cat_rows({w, w * 2.0}), 4, 8), w * 2.0);
  same(rows(w * r, 1, 2), rows(w, 1, 2) * r);
}

TEST_F(Simplify, ZeroPartsMerge) {
  const Tensor zero = x * 0.0;
  same(cat_cols({x, zero}) + cat_cols({zero, y}), cat_cols({x, y}));
  same(cat_cols({cols(x, 0, 4), zero}) + cat_cols({cols(zero, 0, 2), cols(x, 0, 2), zero}),
       cat_cols({cols(x, 0, 2), cols(x, 2, 4) + cols(x, 0, 2), zero}));
  const Pairs pairs = Pairs::interleaved();
  same(join(x, zero, pairs) + join(zero, y, pairs), join(x, y, pairs));
}

TEST_F(Simplify, WholeWidthHalvesAreColumns) {
  same(first_of_pair(x, Pairs::halves()), cols(x, 0, 3));
  same(second_of_pair(x, Pairs::halves(6)), cols(x, 3, 6));
  same(join(x, y, Pairs::halves()), cat_cols({x, y}));
  const Tensor z = g.tile("z", 8);
  EXPECT_EQ(g.node(first_of_pair(z, Pairs::halves(4)).id()).op, Op::first_of_pair);
  same(join(first_of_pair(z, Pairs::halves(4)), second_of_pair(z, Pairs::halves(4)),
            Pairs::halves(4)),
       z);
}

TEST_F(Simplify, RotationsOfWholeHeads) {
  const Tensor z = g.tile("z", 8), pos = g.col("pos", DType::i32), freq = g.row("freq", 4);
  const Pairs pairs = Pairs::halves(4);
  same(cols(rotate(z, pos, freq, pairs), 4, 8), rotate(cols(z, 4, 8), pos, freq, pairs));
  same(unrotate(rotate(z, pos, freq, pairs), pos, freq, pairs), z);
}

TEST_F(Simplify, ReductionsPullConstantFactors) {
  same(row_sum(x * (y / c)), row_sum(x * y) / c);
  same(row_sum(-(x * c) * y), -(row_sum(x * y) * c));
  same(col_sum(x * c * r), col_sum(x * c) * r);
  same(col_sum(w * r), col_sum(w) * r);
  same(sum(c * 3.0), sum(c) * 3.0);
  same(row_sum(broadcast(c, x.type())), c * 6.0);
  same(row_sum(broadcast(c, x.type()) * r), broadcast(sum(r), c.type()) * c);
  same(row_sum(broadcast(r, x.type())), broadcast(sum(r), c.type()));
  same(col_sum(broadcast(c, x.type())), broadcast(sum(c), r.type()));
  same(row_sum(cat_cols({x, y})), row_sum(x) + row_sum(y));
  same(col_sum(cat_cols({x, y})), cat_cols({col_sum(x), col_sum(y)}));
}

TEST_F(Simplify, AtomsAreNotOpened) {
  const Tensor z = x * c;
  g.set_atoms_below(g.size());
  const Tensor s = row_sum(y * (z / c));
  same(s, row_sum(y * z) / c);
}

TEST_F(Simplify, Text) {
  const Tensor z = g.named(matmul_nt(x, w) * c, "z");
  EXPECT_EQ(to_string(g, {sum(row_sum(z * z))}),
            "%x = input : f32[M, 6]\n"
            "%c = input : f32[M]\n"
            "%w = input : f32[4, 6]\n"
            "%0 = matmul nt %x, %w : [M, 4]\n"
            "%1 = mul %0, %0 : [M, 4]\n"
            "%2 = mul %c, %c : [M]\n"
            "%3 = row_sum %1 : [M]\n"
            "%4 = mul %2, %3 : [M]\n"
            "%5 = sum %4 : []\n"
            "roots %5\n");
}

template <class F>
std::string error_of(F make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Simplify, ErrorsNameTheOpAndTheShapes) {
  EXPECT_EQ(error_of([&] { matmul_nt(x, g.weight("v", 6, 4)); }),
            "matmul: expected nt: tile [M, k] and weight [n, k], got tile [M, 6], weight [6, 4]. "
            "The inner extents must be equal; weights are stored [out features, in features].");
  EXPECT_NE(error_of([&] { c + r; }).find("add: expected equal shapes"), std::string::npos);
  EXPECT_NE(error_of([&] { x* g.row("s", 5); }).find("got tile [M, 6], row [5]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { x + t; }).find("floating-point numbers"), std::string::npos);
  EXPECT_NE(error_of([&] { pick(x, c); }).find("an i32 or i64 col [M]"), std::string::npos);
  EXPECT_NE(error_of([&] { cols(x, 2, 7); }).find("[0, 6], not [2, 7)"), std::string::npos);
  EXPECT_NE(error_of([&] { first_of_pair(g.tile("odd", 5), Pairs::halves()); }).find("even"),
            std::string::npos);
  EXPECT_NE(error_of([&] { g.tile("x", 7); }).find("input x: expected f32 tile [M, 6]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { exp(Tensor()); }).find("empty Tensor"), std::string::npos);
  Graph other;
  EXPECT_NE(error_of([&] { x + other.tile("x", 6); }).find("another Graph"), std::string::npos);
}

}  // namespace
}  // namespace coda
