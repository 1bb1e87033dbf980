// Programs that every backend must run: made once, run by the tests of each backend at its sizes.
#pragma once

#include <cmath>

#include "backend/cpu/harness.h"

namespace coda::testing {

/// Products of pairs, pairs joined again, and reductions of both.
inline Make pairs_case(PairLayout layout, i64 period, i64 width) {
  Make make("pairs", Form::gemm, width);
  const i32 acc = make.gemm_nt(8, {width}, DType::f32);
  const i32 first = make.split(Op::first_of_pair, acc, layout, period);
  const i32 second = make.split(Op::second_of_pair, acc, layout, period);
  const i32 product = make.op(Op::mul, {make.op(Op::sigmoid, {first}), second});
  make.store("hidden", product, DType::bf16);
  make.store("joined", make.join(second, product, layout, period));
  make.partial("sums", Op::row_sum, {product});
  make.partial("acc_sums", Op::row_sum, {acc});
  make.partial("columns", Op::col_sum, {product});
  return make;
}

/// silu(gate) * up of two blocks of B, from scaled and rounded pre-activations.
inline Make gate_and_up_case(i64 f) {
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
  return make;
}

/// Heads of p columns turned in q, turned back in k, left alone in v; positions to 131071.
/// Angles are good to 1e-7 turns, 6.3e-7 radians: about 6 roundings of 2^-23, kRopeTerms with the
/// rest.
inline constexpr double kRopeTerms = 16;
inline Make rope_case(PairLayout layout, i64 p, RunOptions& options) {
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
  return make;
}

/// Every op of one number, on tiles of every type that hold zeros, infinities, NaN and extremes.
inline Make special_values_case(RunOptions& options) {
  Make make("special", Form::gemm, 24);
  const i32 acc = make.gemm_nt(1, {24}, DType::f32);
  const i32 zero = make.op(Op::mul, {acc, make.constant(0)});
  const double inf = INFINITY;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
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
    options.given["x_" + type] = {0.0,      -0.0, 1,   -1,  inf,  -inf, NAN, 60000, -60000, 0x1p-24,
                                  -0x1p-24, 88,   -88, 104, -104, 2,    3,   5,     7};
    options.given["c_" + type] = {0.0, inf, -inf, NAN, 1};
  }
  return make;
}

/// Every reduction as partials, finished by the loads of a second and a third program.
inline Chain partials_case(i64 n) {
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
  const auto finished = [&](const char* name, Finish finish) {
    return second.load_finished(name, Kind::col, 1, finish);
  };
  const i32 squares = finished("row_sums", Finish::sum);
  const i32 rstd = second.op(Op::rsqrt, {second.op(Op::add, {squares, second.constant(0.5)})});
  second.store("y0", second.op(Op::mul, {acc2, rstd}));
  second.store("y1", second.op(Op::add, {acc2, finished("maxima", Finish::max)}));
  second.store("y2", second.op(Op::sub, {acc2, finished("lse", Finish::lse)}));
  second.store("y3", second.op(Op::sub, {acc2, finished("picked", Finish::sum)}));
  second.store(
      "y4",
      second.op(Op::sub, {acc2, second.load_finished("col_sums", Kind::row, n, Finish::sum)}));
  const i32 top = second.op(Op::sub, {acc2, finished("lse", Finish::lse_max)});
  second.store("y5", second.op(Op::sub, {top, finished("lse", Finish::log_sum)}));

  Chain chain;
  chain.add(first.program);
  chain.add(second.program);
  return chain;
}

/// A third program for partials_case: vectors only.
inline Make vectors_of_partials(i64 n) {
  Make make("vectors", Form::vectors, n);
  const i32 l = make.load_finished("lse", Kind::col, 1, Finish::lse);
  const i32 p = make.load_finished("picked", Kind::col, 1, Finish::sum);
  const i32 loss = make.op(Op::sub, {l, p});
  make.store_vector("losses", loss);
  make.store_vector("loss", make.value(Op::sum, {loss}, {}, Kind::scalar, 1));
  make.store_vector("d_bias", make.load_finished("col_sums", Kind::row, n, Finish::sum), DType::f32,
                    true);
  return make;
}

/// Gradients of three weights, one of them added to what is there.
inline Make weight_gradients_case() {
  Make make("d_weights", Form::gemm, 40);
  const i32 acc = make.gemm_tn(30 + 129 + 7, DType::bf16);
  make.store("d_w0", make.rows(acc, 0, 30));
  make.store("d_w1", make.rows(acc, 30, 159), DType::f32, true);
  make.store("d_w2", make.rows(acc, 159, 166), DType::bf16);
  return make;
}

/// A row program: softmax and cross-entropy, complete reductions used where they are made; with
/// column sums, which backends make a granule of rows at a time.
inline Make softmax_case(i64 n, DType targets, bool column_sums) {
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
  const i32 target = make.load_col("target", targets);
  const i32 picked = make.reduce(Op::pick, {x, target});
  make.store_vector("loss", make.op(Op::sub, {l, picked}));
  if (column_sums) {
    make.partial("columns", Op::col_sum, {y});
    make.partial("total", Op::sum, {make.op(Op::sub, {l, picked})});
  }
  return make;
}

}  // namespace coda::testing
