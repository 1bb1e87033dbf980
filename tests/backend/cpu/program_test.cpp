// GEMM, row and vector programs on the CPU against the reference backend, at ragged sizes.
#include "backend/program_cases.h"

namespace coda::testing {
namespace {

constexpr i64 kSizes[] = {0, 1, 7, 8, 24, 129, 257};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

void check(const Make& make, RunOptions options, double terms = 64) {
  Chain chain;
  chain.add(make.program);
  check_chain(chain, options, terms);
}

TEST(CpuGemm, StoresAccAtEverySizeLayoutAndType) {
  for (const DType dtype : kTypes) {
    for (const i64 m : kSizes) {
      for (const i64 n : kSizes) {
        for (const i64 k : kSizes) {
          if (dtype != DType::f32 && (m + n + k) % 3 != 0) continue;  // a third is enough
          if (n == 0) continue;
          for (const int layout : {0, 1, 2}) {
            Make make("store_acc", Form::gemm, n);
            const i32 acc = layout == 0   ? make.gemm_nt(k, {n}, dtype)
                            : layout == 1 ? make.gemm_nn({k}, dtype)
                                          : make.gemm_tn(k, dtype);
            make.store("y", acc);
            RunOptions options;
            options.tokens = m;
            options.strided = (m + n) % 2 == 1;
            // Inputs are multiples of 1/16, sums below 2^24: exact.
            check(make, options, 0);
          }
        }
      }
    }
  }
}

TEST(CpuGemm, TakesRowBlocksOfB) {
  for (const DType dtype : kTypes) {
    Make nt("blocks_nt", Form::gemm, 75);
    nt.store("y", nt.gemm_nt(40, {7, 1, 16, 51}, dtype));
    Make nn("blocks_nn", Form::gemm, 75);
    nn.store("y", nn.gemm_nn({7, 1, 300, 51}, dtype));
    for (const i64 m : {1, 24, 129}) {
      RunOptions options;
      options.tokens = m;
      check(nt, options, 0);
      check(nn, options, 0);
    }
  }
}

TEST(CpuGemm, PacksOnceForManyTilesOfRows) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const i64 n : {40, 800, 1600}) {
      Make nt("many_rows_nt", Form::gemm, n);
      nt.store("y", nt.gemm_nt(300, {8, n - 8}, dtype));
      Make nn("many_rows_nn", Form::gemm, n);
      nn.store("y", nn.gemm_nn({7, 293}, dtype));
      Make tn("many_rows_tn", Form::gemm, n);
      tn.store("y", tn.gemm_tn(520, dtype));
      RunOptions options;
      options.tokens = 1030;
      options.strided = n == 40;
      check(nt, options, 0);
      check(nn, options, 0);
      check(tn, options, 0);
    }
  }
}

TEST(CpuGemm, ElementwiseOpsBroadcastEveryKind) {
  for (const Op op : {Op::add, Op::sub, Op::mul, Op::div, Op::maximum, Op::greater, Op::equal}) {
    for (const i64 n : {1, 7, 24, 257, 600}) {
      Make make("binary", Form::gemm, n);
      const i32 acc = make.gemm_nt(8, {n}, DType::f32);
      const i32 others[] = {make.load_tile("t", n), make.load_col("c"), make.load_row("r", n),
                            make.load_scalar("s"), make.constant(0.75)};
      int index = 0;
      for (const i32 other : others) {
        make.store(fmt::format("y{}", index), make.op(op, {acc, other}));
        make.store(fmt::format("z{}", index++), make.op(op, {other, acc}), DType::bf16);
      }
      for (const i64 m : {1, 129}) {
        RunOptions options;
        options.tokens = m;
        options.strided = true;
        check(make, options, 2);
      }
    }
  }
}

TEST(CpuGemm, UnaryOps) {
  for (const Op op : {Op::neg, Op::exp, Op::log, Op::tanh, Op::sigmoid, Op::rsqrt, Op::erf}) {
    for (const i64 n : {7, 257}) {
      Make make("unary", Form::gemm, n);
      const i32 acc = make.gemm_nt(8, {n}, DType::f32);
      const i32 y = make.op(op, {acc});
      make.store("y", y);
      make.store("bf16", y, DType::bf16);
      make.store("f16", y, DType::f16);
      make.store("vector", make.op(Op::mul, {acc, make.op(op, {make.load_col("c")})}));
      RunOptions options;
      options.tokens = 24;
      check(make, options, 8);
    }
  }
}

TEST(CpuGemm, LoadsEveryTypeAndFollowsInfinitiesAndNan) {
  RunOptions options;
  options.tokens = 7;
  const Make make = special_values_case(options);
  check(make, options, 4);
}

TEST(CpuGemm, PairsInBothLayouts) {
  const struct {
    PairLayout layout;
    i64 period, width;
  } cases[] = {{PairLayout::interleaved, 2, 2},   {PairLayout::interleaved, 2, 14},
               {PairLayout::interleaved, 2, 602}, {PairLayout::halves, 6, 18},
               {PairLayout::halves, 64, 640},     {PairLayout::halves, 2, 258},
               {PairLayout::halves, 0, 14},       {PairLayout::halves, 0, 1200}};
  for (const auto& c : cases) {
    const Make make = pairs_case(c.layout, c.period, c.width);
    for (const i64 m : {1, 129}) {
      RunOptions options;
      options.tokens = m;
      check(make, options);
    }
  }
}

TEST(CpuGemm, GateAndUpAsTwoBlocks) {
  for (const i64 f : {1, 7, 64, 97, 257, 768}) {
    const Make make = gate_and_up_case(f);
    for (const i64 m : {0, 1, 24, 257}) {
      RunOptions options;
      options.tokens = m;
      check(make, options);
    }
  }
}

TEST(CpuGemm, RotatesHeads) {
  for (const PairLayout layout : {PairLayout::interleaved, PairLayout::halves}) {
    for (const i64 p : {2, 6, 16, 64, 128}) {
      RunOptions options;
      options.tokens = 129;
      const Make make = rope_case(layout, p, options);
      check(make, options, kRopeTerms);
    }
  }
}

TEST(CpuGemm, SegmentsOneHotAndBroadcasts) {
  for (const i64 p : {1, 3, 64, 128}) {
    const i64 width = 5 * p;
    Make make("segments", Form::gemm, width);
    const i32 acc = make.gemm_nt(8, {width}, DType::f32);
    const i32 square = make.segment(Op::segment_sum, make.op(Op::mul, {acc, acc}), p);
    make.store("square", square);
    make.store("spread", make.op(Op::add, {acc, make.segment(Op::segment_broadcast, square, p)}));
    Attrs onehot;
    onehot.hi = width;
    const i32 target = make.load_col("target", DType::i64);
    const i32 hot = make.value(Op::onehot, {target}, onehot, Kind::tile, width);
    make.store("hot", make.op(Op::sub, {acc, hot}));
    make.store("only_hot", hot);
    make.store("from_c", make.broadcast(make.load_col("c"), width));
    make.store("from_r", make.broadcast(make.load_row("r", width), width));
    make.store("from_s", make.broadcast(make.load_scalar("s"), width), DType::bf16);
    make.partial("valid", Op::sum, {make.value(Op::valid, {target}, {}, Kind::col, 1)});
    RunOptions options;
    options.tokens = 257;
    options.integer_limit["target"] = width;
    check(make, options, 256);
  }
}

TEST(CpuGemm, PartialsAreFinishedByTheNextProgram) {
  for (const i64 n : {1, 63, 64, 97, 300, 1100}) {
    for (const i64 m : {0, 1, 127, 300}) {
      Chain chain = partials_case(n);
      chain.add(vectors_of_partials(n).program);
      RunOptions options;
      options.tokens = m;
      options.integer_limit["target"] = n;
      check_chain(chain, options, 512);
    }
  }
}

TEST(CpuGemm, WeightGradientsGoToRowBlocksAndAccumulate) {
  for (const i64 m : {0, 1, 24, 257}) {
    RunOptions options;
    options.tokens = m;
    options.strided = true;
    check(weight_gradients_case(), options, 0);
  }
}

TEST(CpuRows, ReductionsAreUsedInTheSameProgram) {
  for (const i64 n : {1, 7, 64, 97, 500, 1500}) {
    for (const i64 m : {0, 1, 24, 257}) {
      RunOptions options;
      options.tokens = m;
      options.integer_limit["target"] = n;
      options.strided = true;
      check(softmax_case(n, DType::i32, true), options, 300);
    }
  }
}

TEST(CpuRows, JoinsTensorsOfDifferentWidths) {
  for (const i64 p : {2, 16, 34}) {
    const i64 q = 3 * p, k = p;
    Make make("rope_backward", Form::rows, q + 2 * k);
    const i32 pos = make.load_col("pos", DType::i32);
    const i32 freq = make.load_row("freq", p);
    const i32 rstd = make.load_col("rstd");
    const i32 dq = make.load_tile("dq", q), dk = make.load_tile("dk", k),
              dv = make.load_tile("dv", k);
    const i32 zq = make.rotate(Op::unrotate, dq, pos, freq, PairLayout::halves);
    const i32 zk = make.rotate(Op::unrotate, dk, pos, freq, PairLayout::halves);
    const i32 all = make.cat({zq, zk, dv});
    make.store("scaled", make.op(Op::mul, {all, rstd}), DType::bf16);
    const i32 x = make.load_tile("x", q + 2 * k);
    const i32 dot = make.reduce(Op::row_sum, {make.op(Op::mul, {all, x})});
    make.store_vector(
        "zdz", make.op(Op::add, {dot, make.reduce(Op::row_sum, {make.op(Op::mul, {dv, dv})})}));
    make.store("y", make.op(Op::mul, {x, dot}));
    for (const i64 m : {1, 129}) {
      RunOptions options;
      options.tokens = m;
      check(make, options, 128);
    }
  }
}

TEST(CpuVectors, ArithmeticOnVectors) {
  for (const i64 m : {0, 1, 257, 1000}) {
    Make make("vectors", Form::vectors, 24);
    const i32 c = make.load_col("c", DType::bf16);
    const i32 r = make.load_row("r", 24, DType::f16);
    const i32 s = make.load_scalar("s");
    const i32 total = make.value(Op::sum, {c}, {}, Kind::scalar, 1);
    make.store_vector("scaled", make.op(Op::mul, {c, make.op(Op::add, {total, s})}), DType::bf16);
    Attrs times;
    times.hi = 3;
    const i32 repeated = make.value(Op::repeat, {r}, times, Kind::row, 72);
    make.store_vector("repeated", repeated);
    make.store_vector("folded", make.value(Op::fold, {make.op(Op::mul, {repeated, repeated})},
                                           times, Kind::row, 24));
    make.store_vector("slice", make.cat({make.cols(r, 5, 9), make.cols(r, 0, 2)}), DType::f32,
                      true);
    make.store_vector("sum", make.value(Op::sum, {r}, {}, Kind::scalar, 1));
    RunOptions options;
    options.tokens = m;
    check(make, options, 256);
  }
}

}  // namespace
}  // namespace coda::testing
