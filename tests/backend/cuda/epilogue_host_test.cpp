// Generated epilogues on the host against the reference backend, at ragged sizes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cuda/epilogue_runs.h"
#include "backend/cuda/host_kernel.h"
#include "backend/cuda/program_gemm.h"
#include "backend/cuda/program_rows.h"
#include "backend/cuda/program_split.h"
#include "backend/program_cases.h"
#include "coda/compile.h"
#include "nn/models/llama_blocks.h"

namespace coda::testing {
namespace {

cuda::HostKernels& host_kernels() {
  static cuda::HostKernels kernels;
  return kernels;
}

int one_row_launches = 0;

void launch_on_host(const cuda::ProgramLaunch& launch) {
  if (launch.grid == 0) return;
  one_row_launches += launch.source.entry == "coda_one_row" ? 1 : 0;
  std::vector<const void*> arguments;
  for (const auto& parameter : launch.parameters) arguments.push_back(parameter.data());
  host_kernels().get(launch.source).launch(launch.grid, launch.block, arguments);
}

/// `best`: tile operands through the ring, and what can wait after the rest, as on the mainloop.
void run_gemm_on_host(const Step& step, const std::vector<TensorView>& views, i64 tokens,
                      bool best) {
  const cuda::ProgramGemm program(step.program);
  // NaN everywhere that was not written.
  std::vector<char> workspace(program.workspace_bytes(tokens) + 256, '\xff');
  const cuda::ProgramGemm::Run run{views, tokens, workspace.data(), cuda::host_tensor_map};
  for (const auto& launch : program.vectors(run)) launch_on_host(launch);
  for (const auto& launch : program.plan().launches)
    launch_on_host(program.plain(launch, run, best));
}

void run_rows_on_host(const Step& step, const Plan& plan, const std::vector<TensorView>& views,
                      i64 tokens) {
  cuda::RowsProgram program(step, plan);
  std::vector<float> workspace(program.workspace_bytes(tokens) / sizeof(float) + 1, NAN);
  unsigned flag = 0;
  for (const auto& launch : program.launches(views, tokens, workspace.data(), &flag)) {
    const void* const argument = launch.parameter.data();
    host_kernels()
        .get(*launch.source)
        .launch(launch.grid, launch.block, {&argument, 1}, launch.grid_y);
  }
}

void run_on_host(const Step& step, const Plan& plan, const std::vector<TensorView>& views,
                 i64 tokens, bool best) {
  if (!cuda::needs_split(step)) return run_gemm_on_host(step, views, tokens, best);
  const cuda::ProgramSplit split(step);
  std::vector<char> acc(split.acc_bytes(tokens) + 256, '\xff');
  const auto all = split.product_views(views, tokens, acc.data());
  run_gemm_on_host(split.product(), all, tokens, best);
  for (const auto& part : split.parts())
    run_rows_on_host(part.step, plan, split.part_views(part, all), tokens);
}

StepSession::RunStep on_host(bool best) {
  return [best](const Step& step, const Plan& plan, const std::vector<TensorView>& views,
                i64 tokens) { run_on_host(step, plan, views, tokens, best); };
}

void check(const std::shared_ptr<Plan>& plan, const RunOptions& options, double terms = 64) {
  StepBackend host_steps(on_host(false)), best_steps(on_host(true));
  FilledBackend host(host_steps), best(best_steps);
  const auto reference_steps = make_reference_backend(DType::f32);
  FilledBackend reference(*reference_steps);
  const Outputs want = run_plan(reference, plan, options);
  const Outputs got = run_plan(host, plan, options);
  expect_close(*plan, got, want, terms);
  for (const auto& [name, values] : run_plan(best, plan, options))
    EXPECT_TRUE(values.empty() || std::memcmp(values.data(), got.at(name).data(),
                                              values.size() * sizeof(double)) == 0)
        << name << ": the way that tiles move changed bits";
}

void check(const Make& make, const RunOptions& options, double terms = 64) {
  Chain chain;
  chain.add(make.program);
  check(chain.plan(), options, terms);
}

RunOptions rows(i64 tokens) {
  RunOptions options;
  options.tokens = tokens;
  return options;
}

TEST(EpilogueHost, StoresAccInEveryLayout) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int layout : {0, 1, 2}) {
      Make make("store_acc", Form::gemm, 97);
      const i64 k = 40;
      const i32 acc = layout == 0   ? make.gemm_nt(k, {97}, dtype)
                      : layout == 1 ? make.gemm_nn({k}, dtype)
                                    : make.gemm_tn(k, dtype);
      make.store("y", acc);
      make.store("half", acc, DType::bf16);
      for (const i64 m : {1, 150}) {
        RunOptions options = rows(m);
        options.strided = m == 150;
        check(make, options, 0);
      }
    }
  }
}

TEST(EpilogueHost, ResidualAndSumOfSquares) {
  for (const i64 n : {64, 200}) {
    Make make("residual", Form::gemm, n);
    const i32 acc = make.gemm_nt(32, {n}, DType::bf16);
    const i32 x =
        make.cast(make.op(Op::add, {make.load_tile("residual", n, DType::bf16), acc}), DType::bf16);
    make.partial("squares", Op::row_sum, {make.op(Op::mul, {x, x})});
    make.store("x", x, DType::bf16);
    make.store("scaled", make.op(Op::mul, {make.load_row("norm", n), x}), DType::bf16);
    make.partial("maxima", Op::row_max, {x});
    make.partial("lse", Op::lse, {x});
    make.partial("columns", Op::col_sum, {x});
    make.partial("columns2", Op::col_sum, {make.op(Op::mul, {x, x})});
    check(make, rows(150));
  }
}

TEST(EpilogueHost, TakesRowBlocksOfB) {
  Make nt("blocks_nt", Form::gemm, 64 + 128 + 7);
  nt.store("y", nt.gemm_nt(40, {64, 128, 7}, DType::bf16));
  check(nt, rows(129), 0);
  Make nn("blocks_nn", Form::gemm, 75);
  nn.store("y", nn.gemm_nn({7, 1, 300, 51}, DType::bf16));
  check(nn, rows(24), 0);
}

TEST(EpilogueHost, ElementwiseOpsBroadcastEveryKind) {
  const i64 n = 70;
  Make make("binary", Form::gemm, n);
  const i32 acc = make.gemm_nt(8, {n}, DType::f32);
  const i32 others[] = {make.load_tile("t", n), make.load_col("c"), make.load_row("r", n),
                        make.load_scalar("s"), make.constant(0.75)};
  int index = 0;
  for (const Op op : {Op::add, Op::sub, Op::mul, Op::div, Op::maximum, Op::greater, Op::equal}) {
    const i32 other = others[index % 5];
    const i32 another = others[(index + 2) % 5];
    make.store(fmt::format("y{}", index), make.op(op, {acc, other}));
    make.store(fmt::format("z{}", index++), make.op(op, {another, acc}), DType::bf16);
  }
  RunOptions options = rows(129);
  options.strided = true;
  check(make, options, 2);
}

TEST(EpilogueHost, UnaryOpsAndSpecialValues) {
  RunOptions options = rows(7);
  const Make make = special_values_case(options);
  check(make, options, 4);
}

TEST(EpilogueHost, PairsInBothLayouts) {
  const struct {
    PairLayout layout;
    i64 period, width;
  } cases[] = {{PairLayout::interleaved, 2, 14}, {PairLayout::interleaved, 2, 602},
               {PairLayout::halves, 16, 48},     {PairLayout::halves, 64, 640},
               {PairLayout::halves, 0, 400},     {PairLayout::halves, 6, 18}};
  for (const auto& c : cases) check(pairs_case(c.layout, c.period, c.width), rows(129));
}

TEST(EpilogueHost, GateAndUpAsTwoBlocks) {
  for (const i64 f : {7, 160})
    for (const i64 m : {0, 1, 150}) check(gate_and_up_case(f), rows(m));
}

/// The test of the test: up's columns taken one beside where they are must not go unnoticed.
TEST(EpilogueHost, NoticesAPairIndexOffByOne) {
  const i64 f = 64;
  Make make("planted", Form::gemm, 2 * f);
  const i32 acc = make.gemm_nt(24, {f, f}, DType::bf16);
  make.store("y", make.op(Op::mul, {make.cols(acc, 0, f), make.cols(acc, f, 2 * f)}));
  Chain chain;
  chain.add(make.program);
  StepBackend host(on_host(true));
  const auto reference = make_reference_backend(DType::f32);
  const Outputs want = run_plan(*reference, chain.plan(), rows(20));
  EXPECT_EQ(run_plan(host, chain.plan(), rows(20)).at("y"), want.at("y"));
  host_kernels().plant("1 * kPartColumns / 2 +", "1 * kPartColumns / 2 - 1 +");
  const Outputs wrong = run_plan(host, chain.plan(), rows(20));
  host_kernels().plant("", "");
  EXPECT_NE(wrong.at("y"), want.at("y"));
}

TEST(EpilogueHost, RotatesHeads) {
  for (const PairLayout layout : {PairLayout::interleaved, PairLayout::halves}) {
    for (const i64 p : {16, 128}) {
      RunOptions options = rows(129);
      const Make make = rope_case(layout, p, options);
      check(make, options, kRopeTerms);
    }
  }
}

TEST(EpilogueHost, SegmentsOneHotAndBroadcasts) {
  for (const i64 p : {64, 3}) {
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
    make.store("from_c", make.op(Op::add, {acc, make.broadcast(make.load_col("c"), width)}));
    make.store("from_r", make.op(Op::add, {acc, make.broadcast(make.load_row("r", width), width)}));
    make.partial("valid", Op::sum, {make.value(Op::valid, {target}, {}, Kind::col, 1)});
    RunOptions options = rows(140);
    options.integer_limit["target"] = width;
    check(make, options, 256);
  }
}

TEST(EpilogueHost, PartialsAreFinishedByTheNextProgram) {
  for (const i64 n : {63, 300}) {
    const Chain chain = partials_case(n);
    for (const i64 m : {0, 127, 300}) {
      RunOptions options = rows(m);
      options.integer_limit["target"] = n;
      StepBackend host(on_host(true));
      const auto reference = make_reference_backend(DType::f32);
      const Outputs want = run_plan(*reference, chain.plan(), options);
      expect_close(*chain.plan(), run_plan(host, chain.plan(), options), want, 512);
    }
  }
}

/// A granule's maximum and sum of e^(x - maximum), against the logits that the program stored.
TEST(EpilogueHost, LogSumsOfLogitsOfAnySize) {
  constexpr i64 kColumns = 256, kRows = 70;
  Make make("logits", Form::gemm, kColumns);
  const i32 x = make.cast(make.gemm_nt(2, {kColumns}, DType::bf16), DType::bf16);
  make.store("x", x, DType::bf16);
  make.partial("log_sums", Op::lse, {x});
  Chain chain;
  chain.add(make.program);
  // x[m, n] = scale b[n] + offset: spread over many powers of e, confident, far from zero, so far
  // that neighbours are 2^20 and more apart, near the largest of all.
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [scale, offset] : std::vector<std::pair<double, double>>{
           {1, 0}, {64, 0}, {1024, 1e6}, {0x1p30, 0}, {0x1p100, 0}, {1, 0x1p127}, {1, infinity}}) {
    RunOptions options = rows(kRows);
    options.given["a"] = {scale, offset};
    std::vector<double>& b = options.given["b0"];
    for (i64 n = 0; n < kColumns; ++n) {
      b.push_back((n * 37 % 97 - 48) / 16.0);
      b.push_back(offset == infinity && n % 3 != 0 ? -1 : 1);
    }
    for (const bool best : {false, true}) {
      StepBackend host(on_host(best));
      const Outputs got = run_plan(host, chain.plan(), options);
      const auto& logits = got.at("x");
      const auto& partial = got.at("log_sums");
      constexpr i64 kGranules = kColumns / 64;
      const auto stride = static_cast<i64>(partial.size()) / (2 * kGranules);
      for (i64 m = 0; m < kRows; ++m) {
        for (i64 g = 0; g < kGranules; ++g) {
          const double* values = &logits[static_cast<std::size_t>(m * kColumns + g * 64)];
          const double top = *std::max_element(values, values + 64);
          double sum = 0;
          for (int n = 0; n < 64; ++n) sum += values[n] == top ? 1 : std::exp(values[n] - top);
          EXPECT_EQ(partial[static_cast<std::size_t>(g * stride + m)], top);
          EXPECT_NEAR(partial[static_cast<std::size_t>((kGranules + g) * stride + m)], sum,
                      0x1p-20 * sum)
              << scale << " " << offset << " row " << m << " granule " << g;
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(EpilogueHost, RowVectorsThatAreNotAlignedInPairs) {
  Make make("norm", Form::gemm, 64);
  const i32 acc = make.gemm_nt(32, {64}, DType::bf16);
  make.store("y", make.op(Op::mul, {make.load_row("norm", 64), acc}), DType::bf16);
  const cuda::ProgramGemm program(std::make_shared<Program>(make.program));
  alignas(16) static char memory[4096];
  std::vector<TensorView> views;
  std::size_t norm = 0;
  for (const Operand& operand : make.program.operands) {
    TensorView view;
    view.data = memory;
    view.dtype = operand.dtype;
    view.rows = 1;
    view.cols = view.stride = operand.cols.num;
    if (operand.name == "norm") norm = views.size();
    views.push_back(view);
  }
  EXPECT_TRUE(program.paired({views, 1, nullptr, nullptr}));
  views[norm].data = memory + 4;
  EXPECT_FALSE(program.paired({views, 1, nullptr, nullptr}));
}

TEST(EpilogueHost, WeightGradientsGoToRowBlocksAndAccumulate) {
  for (const i64 m : {0, 1, 257}) {
    RunOptions options = rows(m);
    options.strided = true;
    check(weight_gradients_case(), options, 0);
  }
}

/// The product goes to memory, and each window of rows is a row program.
TEST(EpilogueHost, WeightGradientsThatNoFragmentHolds) {
  Make make("d_odd", Form::gemm, 18);
  const i32 acc = make.gemm_tn(166, DType::bf16);
  const i32 first = make.split(Op::first_of_pair, acc, PairLayout::halves, 6);
  const i32 scaled =
      make.op(Op::add, {make.op(Op::mul, {first, make.load_col("c")}), make.load_tile("t", 9)});
  make.store("whole", first, DType::bf16);
  make.store("d_w0", make.rows(scaled, 0, 30));
  make.store("d_w1", make.rows(scaled, 30, 159), DType::f32, true);
  make.store("d_w2", make.rows(scaled, 159, 166), DType::bf16);
  ASSERT_FALSE(cuda::plan_epilogue(make.program).fits);
  for (const i64 m : {0, 150}) {
    RunOptions options = rows(m);
    options.strided = true;
    check(make, options);
  }
}

/// Every GEMM program of forward and backward of a block, on its own.
void check_block(bool head, DType dtype, i64 tokens, i64 vocab = 300) {
  LlamaBlockSizes sizes;
  sizes.d_model = 128;
  sizes.d_ff = 200;
  sizes.head_dim = 64;
  sizes.n_kv_heads = 1;
  sizes.vocab = vocab;
  sizes.dtype = dtype;
  Graph graph;
  const CompileRequest request =
      head ? llama_head_block(graph, sizes) : llama_layer_block(graph, sizes);
  CompileOptions compile_options;
  compile_options.dtype = compile_options.output_dtype = dtype;
  compile_options.weight_grad_dtype = DType::f32;
  const auto plan = compile(graph, request, compile_options);
  RunOptions options = rows(tokens);
  options.integer_limit["targets"] = sizes.vocab;
  for (const auto& step : gemm_steps(*plan)) check(step, options, 4096);
}

TEST(EpilogueHost, EveryProgramOfALlamaLayer) {
  check_block(false, DType::bf16, 150);
  check_block(false, DType::f32, 40);
}

TEST(EpilogueHost, EveryProgramOfALlamaHead) {
  // Rows that TMA cannot address, a last chunk that is cut, whole chunks.
  for (const i64 vocab : {300, 304, 320}) check_block(true, DType::bf16, 150, vocab);
}

TEST(EpilogueHost, EveryProgramOfOneRow) {
  one_row_launches = 0;
  check_block(false, DType::bf16, 1);
  EXPECT_GE(one_row_launches, 4);  // after attention; gate and up; down; q, k and v
  one_row_launches = 0;
  check_block(true, DType::f32, 1);
  EXPECT_GE(one_row_launches, 2);  // down; logits
}

}  // namespace
}  // namespace coda::testing
