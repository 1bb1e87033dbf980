// Row and vector programs: the text that a GPU would get, compiled for the host and run there,
// against the reference; at ragged sizes, with outputs poisoned.
#include <gtest/gtest.h>

#include "backend/arena.h"
#include "backend/bindings.h"
#include "backend/cuda/host_kernel.h"
#include "backend/cuda/program_rows.h"
#include "backend/program_cases.h"

namespace coda::cuda {
namespace {

using coda::testing::Chain;
using coda::testing::expect_close;
using coda::testing::i32;
using coda::testing::i64;
using coda::testing::Make;
using coda::testing::Outputs;
using coda::testing::RunOptions;
using coda::testing::softmax_case;

void run_on_host(HostKernels& kernels, const RowsLaunch& launch) {
  const void* const argument = launch.parameter.data();
  kernels.get(*launch.source).launch(launch.grid, launch.block, {&argument, 1}, launch.grid_y);
}

/// Runs plans of row and vector programs as a GPU would, on the host.
class HostSession final : public Session {
 public:
  HostSession(std::shared_ptr<const Plan> plan, std::int64_t max_tokens, HostKernels& kernels)
      : bindings_(plan, max_tokens, {.poison = true}), kernels_(kernels) {
    std::size_t bytes = 0;
    for (const Step& step : plan->forward) {
      steps_.emplace_back(step, *plan);
      bytes = std::max(bytes, steps_.back().workspace_bytes(max_tokens));
    }
    workspace_ = HostTensor(DType::f32, 1, static_cast<std::int64_t>(bytes / 4 + 1));
  }
  void bind(std::string_view name, const TensorView& view) override { bindings_.bind(name, view); }
  void run(Phase phase, std::int64_t tokens) override {
    bindings_.begin(phase, tokens);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      std::vector<TensorView> views;
      for (const Slice& slice : bindings_.plan().forward[i].slices) {
        views.push_back(bindings_.view(slice));
      }
      for (const auto& launch :
           steps_[i].launches(views, tokens, workspace_.view().as<float>(), &flag_)) {
        run_on_host(kernels_, launch);
      }
    }
    bindings_.end(phase);
  }
  TensorView buffer(std::string_view name) const override { return bindings_.view(name); }

 private:
  Bindings bindings_;
  HostKernels& kernels_;
  std::vector<RowsProgram> steps_;
  HostTensor workspace_;
  unsigned flag_ = 0;
};

class HostBackend final : public Backend {
 public:
  std::string_view name() const override { return "cuda text on the host"; }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                   std::int64_t max_tokens) override {
    return std::make_unique<HostSession>(std::move(plan), max_tokens, kernels_);
  }

 private:
  HostKernels kernels_;
};

/// The reference (f32, casts rounding) against the kernels' text. terms: see expect_close.
void check(const Chain& chain, RunOptions options, double terms) {
  static HostBackend host;
  const auto reference = make_reference_backend(DType::f32);
  const Outputs want = run_plan(*reference, chain.plan(), options);
  const Outputs got = run_plan(host, chain.plan(), options);
  expect_close(*chain.plan(), got, want, terms);
}
void check(const Make& make, const RunOptions& options, double terms) {
  Chain chain;
  chain.add(make.program);
  check(chain, options, terms);
}

TEST(CudaRowsOnHost, ReductionsAreUsedInTheSameProgram) {
  for (const i64 n : {7, 1304}) {
    for (const bool column_sums : {false, true}) {
      const Make make = softmax_case(n, DType::i32, column_sums);
      for (const bool strided : {false, true}) {
        for (const i64 m : {0, 1, 35}) {
          RunOptions options;
          options.tokens = m;
          options.integer_limit["target"] = n;
          options.strided = strided;
          check(make, options, 300);
        }
      }
    }
  }
}

TEST(CudaRowsOnHost, ColumnSumsGoToGranulesOfRows) {
  for (const i64 n : {24, 97}) {
    Make make("norm_backward", Form::rows, n);
    const i32 x = make.load_tile("x", n, DType::bf16), d = make.load_tile("d", n, DType::f16);
    const i32 w = make.load_row("w", n);
    const i32 dot = make.reduce(Op::row_sum, {make.op(Op::mul, {x, d})});
    const i32 y = make.op(Op::add, {make.op(Op::mul, {d, w}), make.op(Op::mul, {x, dot})});
    make.store("y", y, DType::bf16);
    make.partial("columns", Op::col_sum, {make.op(Op::mul, {x, y})});
    make.partial("total", Op::sum, {dot});
    for (const i64 m : {0, 1, 300}) {
      RunOptions options;
      options.tokens = m;
      check(make, options, 512);
    }
  }
}

/// What the epilogue of a GEMM program asks for when acc comes from memory.
TEST(CudaRowsOnHost, RowReductionsGoToGranulesOfColumns) {
  for (const i64 n : {24, 201}) {
    Make make("partials", Form::rows, n);
    const i32 x = make.load_tile("x", n);
    const i32 target = make.load_col("target", DType::i32);
    make.partial("sums", Op::row_sum, {make.op(Op::mul, {x, x})});
    make.partial("maxima", Op::row_max, {x});
    make.partial("online", Op::lse, {x});
    make.partial("picked", Op::pick, {x, target});
    make.partial("columns", Op::col_sum, {x});
    make.store("y", x, DType::bf16);
    for (const i64 m : {1, 35}) {
      RunOptions options;
      options.tokens = m;
      options.integer_limit["target"] = n;
      check(make, options, 128);
    }
  }
}

TEST(CudaRowsOnHost, RotatesHeadsOfTensorsOfDifferentWidths) {
  for (const PairLayout layout : {PairLayout::halves, PairLayout::interleaved}) {
    for (const i64 p : {34, 64}) {
      const i64 q = 3 * p, k = p;
      Make make("rope_backward", Form::rows, q + 2 * k);
      const i32 pos = make.load_col("pos", DType::i32);
      const i32 freq = make.load_row("freq", p);
      const i32 rstd = make.load_col("rstd");
      const i32 dq = make.load_tile("dq", q, DType::bf16), dk = make.load_tile("dk", k),
                dv = make.load_tile("dv", k);
      const i32 zq = make.rotate(Op::unrotate, dq, pos, freq, layout);
      const i32 zk = make.rotate(Op::rotate, dk, pos, freq, layout);
      const i32 all = make.cat({zq, zk, dv});
      make.store("parts", all, DType::bf16);
      make.store("scaled", make.op(Op::mul, {all, rstd}), DType::bf16);
      const i32 x = make.load_tile("x", q + 2 * k);
      const i32 dot = make.reduce(Op::row_sum, {make.op(Op::mul, {all, x})});
      make.store_vector(
          "zdz", make.op(Op::add, {dot, make.reduce(Op::row_sum, {make.op(Op::mul, {dv, dv})})}));
      make.store("y", make.op(Op::mul, {x, dot}));
      RunOptions options;
      options.tokens = 11;
      check(make, options, 128);
    }
  }
}

TEST(CudaRowsOnHost, PairsSegmentsAndSlices) {
  for (const i64 n : {12, 128}) {
    const i64 period = n / 2;
    Make make("pairs", Form::rows, n);
    const i32 x = make.load_tile("x", n, DType::bf16);
    const i32 target = make.load_col("target", DType::i64);
    for (const PairLayout layout : {PairLayout::interleaved, PairLayout::halves}) {
      const std::string name = layout == PairLayout::halves ? "halves" : "interleaved";
      const i64 p = layout == PairLayout::halves ? period : 2;
      const i32 a = make.split(Op::first_of_pair, x, layout, p);
      const i32 b = make.split(Op::second_of_pair, x, layout, p);
      make.store(name + "_product", make.op(Op::mul, {a, b}), DType::bf16);
      make.store(name + "_swapped", make.join(b, a, layout, p), DType::f16);
    }
    const i32 sums = make.segment(Op::segment_sum, make.op(Op::mul, {x, x}), period);
    const i32 rms = make.op(Op::rsqrt, {make.op(Op::add, {sums, make.constant(1)})});
    make.store("normed", make.op(Op::mul, {x, make.segment(Op::segment_broadcast, rms, period)}));
    make.store("rms", rms);
    make.store("moved",
               make.op(Op::add, {make.cat({make.cols(x, period, n), make.cols(x, 0, period)}),
                                 make.cols(x, 0, n)}));
    Attrs hot;
    hot.hi = n;
    const i32 onehot = make.value(Op::onehot, {target}, hot, Kind::tile, n);
    make.store("onehot", make.op(Op::mul, {onehot, make.op(Op::equal, {target, target})}));
    RunOptions options;
    options.tokens = 9;
    options.integer_limit["target"] = n;
    check(make, options, 128);
  }
}

TEST(CudaRowsOnHost, FinishesPartialsOfColumns) {
  const i64 n = 130;
  Make first("partials", Form::rows, n);
  first.partial("columns", Op::col_sum, {first.load_tile("x", n)});
  Make second("vectors", Form::vectors, n);
  const i32 columns = second.load_finished("columns", Kind::row, n, Finish::sum);
  second.store_vector("column_sums", columns, DType::f32, true);
  second.store_vector("all", second.value(Op::sum, {columns}, {}, Kind::scalar, 1));
  Chain chain;
  chain.add(first.program);
  chain.add(second.program);
  for (const i64 m : {0, 5, 300}) {
    RunOptions options;
    options.tokens = m;
    check(chain, options, 512);
  }
}

/// Partials as a GEMM program leaves them: few are finished by the row program, many before it.
TEST(CudaRowsOnHost, FinishesPartialsOfRows) {
  for (const i64 granules : {3, 70}) {
    const i64 m = 37, n = 24;
    Make make("finished", Form::rows, n);
    const i32 x = make.load_tile("x", n);
    const i32 sum = make.load_finished("sums", Kind::col, 1, Finish::sum);
    const i32 max = make.load_finished("maxima", Kind::col, 1, Finish::max);
    make.store("y", make.op(Op::add, {make.op(Op::mul, {x, sum}), max}));
    const i32 from = make.operand("online", Kind::col, DType::f32, Dim::tokens(), 1, false, true);
    for (const Finish finish : {Finish::lse, Finish::log_sum, Finish::lse_max}) {
      Attrs attrs;
      attrs.finish = finish;
      const i32 online = make.value(Op::load_col, {}, attrs, Kind::col, 1, from);
      make.store_vector(finish == Finish::lse       ? "lse"
                        : finish == Finish::log_sum ? "log_sum"
                                                    : "max",
                        online);
    }
    Step step;
    step.program = std::make_shared<Program>(make.program);
    Plan plan;
    for (const Operand& operand : make.program.operands) {
      Buffer buffer;
      buffer.name = operand.name;
      buffer.kind = operand.kind;
      buffer.dtype = operand.dtype;
      buffer.rows = kTokens;
      buffer.cols = operand.cols.num;
      buffer.partial = operand.partial;
      buffer.granules = operand.partial ? granules : 0;
      buffer.finish = operand.name == "online" ? Finish::lse : Finish::sum;
      step.slices.push_back({static_cast<i32>(plan.buffers.size()), 0, 0, kTokens, buffer.cols});
      plan.buffers.push_back(buffer);
    }
    plan.forward.push_back(step);
    // Memory of every operand, inputs of 1/16ths; what a row should become is summed here.
    std::vector<HostTensor> memory;
    std::vector<TensorView> views;
    std::mt19937 random(3);
    for (const Buffer& buffer : plan.buffers) {
      const Extents extents = extents_of(buffer, m);
      memory.emplace_back(buffer.dtype, extents.rows, extents.cols);
      for (i64 i = 0; i < memory.back().size(); ++i) {
        memory.back().set(i, (static_cast<int>(random() % 33) - 16) / 16.0);
      }
      views.push_back(memory.back().view());
    }
    const auto index = [&](const char* name) {
      return static_cast<std::size_t>(plan.find_buffer(name));
    };
    HostTensor& online = memory[index("online")];
    for (i64 i = granules * m; i < online.size(); ++i) online.set(i, 1.0 + i % 3);
    RowsProgram program(step, plan);
    HostTensor workspace(DType::f32, 1, static_cast<i64>(program.workspace_bytes(m) / 4 + 1));
    HostKernels kernels;
    for (const auto& launch : program.launches(views, m, workspace.view().as<float>(), nullptr)) {
      const bool finish = launch.source->entry == "coda_finish";
      EXPECT_TRUE(granules > 64 || !finish);
      run_on_host(kernels, launch);
    }
    for (i64 r = 0; r < m; ++r) {
      double total = 0, largest = -1e9, top = -1e9, exponentials = 0;
      for (i64 g = 0; g < granules; ++g) {
        total += memory[index("sums")].get(g * m + r);
        largest = std::max(largest, memory[index("maxima")].get(g * m + r));
        top = std::max(top, online.get(g * m + r));
      }
      for (i64 g = 0; g < granules; ++g) {
        exponentials += online.get((granules + g) * m + r) * std::exp(online.get(g * m + r) - top);
      }
      const double tolerance = 1e-6 * static_cast<double>(granules);
      for (i64 c = 0; c < n; ++c) {
        EXPECT_NEAR(memory[index("y")].get(r * n + c),
                    memory[index("x")].get(r * n + c) * total + largest, tolerance);
      }
      EXPECT_NEAR(memory[index("lse")].get(r), top + std::log(exponentials), tolerance);
      EXPECT_NEAR(memory[index("log_sum")].get(r), std::log(exponentials), tolerance);
      EXPECT_EQ(memory[index("max")].get(r), top);
    }
  }
}

TEST(CudaRowsOnHost, ArithmeticOnVectors) {
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
  make.store_vector("folded", make.value(Op::fold, {make.op(Op::mul, {repeated, repeated})}, times,
                                         Kind::row, 24));
  make.store_vector("slice", make.cat({make.cols(r, 5, 9), make.cols(r, 0, 2)}), DType::f32, true);
  make.store_vector("sum", make.value(Op::sum, {r}, {}, Kind::scalar, 1));
  for (const i64 m : {0, 1500}) {
    RunOptions options;
    options.tokens = m;
    check(make, options, 256);
  }
}

}  // namespace
}  // namespace coda::cuda
