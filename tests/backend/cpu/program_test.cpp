// GEMM, row and vector programs on the CPU against the reference backend, at ragged sizes.
#include "backend/cpu/harness.h"

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
  Make make("special", Form::gemm, 24);
  const i32 acc = make.gemm_nt(1, {24}, DType::f32);
  const i32 zero = make.op(Op::mul, {acc, make.constant(0)});
  for (const DType dtype : kTypes) {
    const std::string type(name_of(dtype));
    const i32 x = make.op(Op::add, {make.load_tile("x_" + type, 24, dtype), zero});
    make.store("copy_" + type, x, dtype);
    for (const Op op : {Op::neg, Op::exp, Op::log, Op::tanh, Op::sigmoid, Op::rsqrt, Op::erf})
      make.store(type + std::string("_") + std::to_string(static_cast<int>(op)), make.op(op, {x}));
    const i32 c = make.load_col("c_" + type, dtype);
    make.store("max_" + type, make.op(Op::maximum, {x, c}));
    make.store("greater_" + type, make.op(Op::greater, {x, c}));
    make.partial("row_max_" + type, Op::row_max, {x});
    make.partial("lse_" + type, Op::lse, {x});
  }
  RunOptions options;
  options.tokens = 7;
  const double inf = INFINITY;
  for (const char* type : {"f32", "bf16", "f16"}) {
    options.given[std::string("x_") + type] = {0.0,   -0.0,   1,       -1,       inf, -inf, NAN,
                                               60000, -60000, 0x1p-24, -0x1p-24, 88,  -88,  104,
                                               -104,  2,      3,       5,        7};
    options.given[std::string("c_") + type] = {0.0, inf, -inf, NAN, 1};
  }
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
    Make make("pairs", Form::gemm, c.width);
    const i32 acc = make.gemm_nt(8, {c.width}, DType::f32);
    const i32 first = make.split(Op::first_of_pair, acc, c.layout, c.period);
    const i32 second = make.split(Op::second_of_pair, acc, c.layout, c.period);
    const i32 product = make.op(Op::mul, {make.op(Op::sigmoid, {first}), second});
    make.store("hidden", product, DType::bf16);
    make.store("joined", make.join(second, product, c.layout, c.period));
    make.partial("sums", Op::row_sum, {product});
    make.partial("acc_sums", Op::row_sum, {acc});
    make.partial("columns", Op::col_sum, {product});
    for (const i64 m : {1, 129}) {
      RunOptions options;
      options.tokens = m;
      check(make, options);
    }
  }
}

TEST(CpuGemm, GateAndUpAsTwoBlocks) {
  for (const i64 f : {1, 7, 64, 97, 257, 768}) {
    Make make("swiglu", Form::gemm, 2 * f);
    const i32 acc = make.gemm_nt(24, {f, f}, DType::bf16);
    const i32 rstd = make.load_col("rstd");
    const i32 gate = make.op(Op::mul, {make.cols(acc, 0, f), rstd});
    const i32 up = make.op(Op::mul, {make.cols(acc, f, 2 * f), rstd});
    const i32 z = make.cast(make.cat({gate, up}), DType::bf16);
    make.store("z", z, DType::bf16);
    const i32 g = make.cols(z, 0, f), u = make.cols(z, f, 2 * f);
    make.store("hidden", make.op(Op::mul, {make.op(Op::mul, {g, make.op(Op::sigmoid, {g})}), u}),
               DType::bf16);
    make.partial("sums", Op::row_sum, {z});
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
      const i64 heads = 3, width = p * heads;
      Make make("rope", Form::gemm, 2 * width + 7);
      const i32 acc = make.gemm_nt(8, {width, width, 7}, DType::f32);
      const i32 pos = make.load_col("pos", DType::i32);
      const i32 freq = make.load_row("freq", p);
      const i32 q = make.rotate(Op::rotate, make.cols(acc, 0, width), pos, freq, layout);
      const i32 k = make.rotate(Op::unrotate, make.cols(acc, width, 2 * width), pos, freq, layout);
      make.store("q", q);
      make.store("k", k, DType::f16);
      make.store("v", make.cols(acc, 2 * width, 2 * width + 7));
      RunOptions options;
      options.tokens = 129;
      options.integer_limit["pos"] = 131072;
      std::vector<double> frequencies;
      for (i64 j = 0; j < p; ++j) {
        const double turns =
            std::pow(10000.0, -2.0 * static_cast<double>(j % (p / 2)) / static_cast<double>(p)) /
            6.283185307179586;
        const auto high = static_cast<float>(turns);
        frequencies.push_back(j < p / 2 ? high : turns - high);
      }
      options.given["freq"] = frequencies;
      options.given["pos"] = {0, 1, 2, 17, 4095, 65536, 131071};
      // Angles are good to 1e-7 turns, 6.3e-7 radians: about 6 roundings of 2^-23.
      check(make, options, 16);
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
      Make first("reductions", Form::gemm, n);
      const i32 acc = first.gemm_nt(24, {n}, DType::f32);
      const i32 target = first.load_col("target", DType::i32);
      first.partial("row_sums", Op::row_sum, {first.op(Op::mul, {acc, acc})});
      first.partial("maxima", Op::row_max, {acc});
      first.partial("lse", Op::lse, {acc});
      first.partial("picked", Op::pick, {acc, target});
      first.partial("col_sums", Op::col_sum, {acc});
      Make second("finished", Form::gemm, n);
      const i32 acc2 = second.gemm_nt(24, {n}, DType::f32);
      second.store(
          "y0",
          second.op(
              Op::mul,
              {acc2,
               second.op(Op::rsqrt, {second.op(Op::add, {second.load_finished("row_sums", Kind::col,
                                                                              1, Finish::sum),
                                                         second.constant(0.5)})})}));
      second.store(
          "y1",
          second.op(Op::add, {acc2, second.load_finished("maxima", Kind::col, 1, Finish::max)}));
      second.store(
          "y2", second.op(Op::sub, {acc2, second.load_finished("lse", Kind::col, 1, Finish::lse)}));
      second.store(
          "y3",
          second.op(Op::sub, {acc2, second.load_finished("picked", Kind::col, 1, Finish::sum)}));
      second.store(
          "y4",
          second.op(Op::sub, {acc2, second.load_finished("col_sums", Kind::row, n, Finish::sum)}));
      second.store(
          "y5",
          second.op(Op::sub, {second.op(Op::sub, {acc2, second.load_finished("lse", Kind::col, 1,
                                                                             Finish::lse_max)}),
                              second.load_finished("lse", Kind::col, 1, Finish::log_sum)}));
      Make third("vectors", Form::vectors, n);
      const i32 l = third.load_finished("lse", Kind::col, 1, Finish::lse);
      const i32 p = third.load_finished("picked", Kind::col, 1, Finish::sum);
      const i32 loss = third.op(Op::sub, {l, p});
      third.store_vector("losses", loss);
      third.store_vector("loss", third.value(Op::sum, {loss}, {}, Kind::scalar, 1));
      third.store_vector("d_bias", third.load_finished("col_sums", Kind::row, n, Finish::sum),
                         DType::f32, true);
      Chain chain;
      chain.add(first.program);
      chain.add(second.program);
      chain.add(third.program);
      RunOptions options;
      options.tokens = m;
      options.integer_limit["target"] = n;
      check_chain(chain, options, 512);
    }
  }
}

TEST(CpuGemm, WeightGradientsGoToRowBlocksAndAccumulate) {
  for (const i64 m : {0, 1, 24, 257}) {
    Make make("d_weights", Form::gemm, 40);
    const i32 acc = make.gemm_tn(30 + 129 + 7, DType::bf16);
    make.store("d_w0", make.rows(acc, 0, 30));
    make.store("d_w1", make.rows(acc, 30, 159), DType::f32, true);
    make.store("d_w2", make.rows(acc, 159, 166), DType::bf16);
    RunOptions options;
    options.tokens = m;
    options.strided = true;
    check(make, options, 0);
  }
}

TEST(CpuRows, ReductionsAreUsedInTheSameProgram) {
  for (const i64 n : {1, 7, 64, 97, 500, 1500}) {
    for (const i64 m : {0, 1, 24, 257}) {
      Make make("softmax", Form::rows, n);
      const i32 x = make.load_tile("x", n, DType::bf16);
      const i32 max = make.reduce(Op::row_max, {x});
      const i32 e = make.op(Op::exp, {make.op(Op::sub, {x, max})});
      const i32 sum = make.reduce(Op::row_sum, {e});
      const i32 y = make.op(Op::div, {e, sum});
      make.store("y", y);
      make.store_vector("sum", sum);
      const i32 l = make.reduce(Op::lse, {x});
      make.store_vector("lse", l, DType::bf16);
      make.store_vector("log_sum", make.reduce(Op::log_sum, {x}));
      const i32 target = make.load_col("target", DType::i32);
      const i32 picked = make.reduce(Op::pick, {x, target});
      make.store_vector("loss", make.op(Op::sub, {l, picked}));
      make.partial("columns", Op::col_sum, {y});
      make.partial("total", Op::sum, {make.op(Op::sub, {l, picked})});
      RunOptions options;
      options.tokens = m;
      options.integer_limit["target"] = n;
      options.strided = true;
      check(make, options, 300);
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
