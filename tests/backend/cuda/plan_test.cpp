// Whole compiled plans on the GPU, forward and backward, against the reference; the same bits
// twice; embedding, AdamW and integers out of range.
#include <functional>

#include "backend/cuda/gpu_test.h"
#include "backend/cuda/through_host.h"
#include "backend/program_cases.h"
#include "base/convert.h"
#include "base/split_f32.h"
#include "coda/error.h"
#include "plan/blocks.h"
#include "plan/compile.h"

namespace coda::testing {
namespace {

using Build = std::function<CompileRequest(Graph&, const blocks::Sizes&)>;

/// As for the CPU's plans (tests/backend/cpu/plan_test.cpp).
double terms_of(DType dtype) { return dtype == DType::f32 ? 4096 : epsilon_of(dtype) * 0x1p23 * 4; }

class CudaPlan : public cuda::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    static ThroughHost shared(make_cuda_backend());
    gpu_ = &shared;
  }

  void check_plan(const std::shared_ptr<Plan>& plan, const RunOptions& run, double terms) {
    const auto reference = make_reference_backend(DType::f32);
    const Outputs want = run_plan(*reference, plan, run);
    const Outputs got = run_plan(*gpu_, plan, run);
    expect_close(*plan, got, want, terms);
    const Outputs again = run_plan(*gpu_, plan, run);
    for (const auto& [name, values] : got) {
      EXPECT_TRUE(values.empty() || std::memcmp(values.data(), again.at(name).data(),
                                                values.size() * sizeof(double)) == 0)
          << name << ": other bits the second time";
    }
  }

  /// variant 0: fused; 1: recomputing; 2: not fused, fp32 weight gradients accumulated.
  static std::shared_ptr<Plan> block_plan(const Build& build, blocks::Sizes s, DType dtype,
                                          int variant) {
    s.tile = dtype;
    CompileOptions options;
    options.dtype = options.output_dtype = dtype;
    options.held_price = variant == 1 ? 1.5 : 0;
    options.fuse = variant != 2;
    options.accumulate_weight_grads = variant == 2;
    options.weight_grad_dtype = variant == 2 ? DType::f32 : dtype;
    Graph graph;
    return std::make_shared<Plan>(*compile(graph, build(graph, s), options));
  }
  static RunOptions rows_of(const blocks::Sizes& s, i64 tokens) {
    RunOptions run;
    run.tokens = tokens;
    run.integer_limit["targets"] = s.vocab;
    return run;
  }

  /// Regular and odd sizes; every variant; f32 and bf16.
  void check_block(const Build& build, bool all) {
    const blocks::Sizes sizes[] = {{.d = 64, .f = 96, .head = 16, .kv = 64, .vocab = 128},
                                   {.d = 130, .f = 97, .head = 26, .kv = 52, .vocab = 129},
                                   {.d = 256, .f = 512, .head = 64, .kv = 128, .vocab = 1000}};
    for (const blocks::Sizes& s : sizes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (int variant = 0; variant < (all ? 3 : 1); ++variant) {
          const auto plan = block_plan(build, s, dtype, variant);
          for (const i64 m : {1, 130}) {
            SCOPED_TRACE(fmt::format("d {} {} variant {} M {}", s.d, name_of(dtype), variant, m));
            check_plan(plan, rows_of(s, m), terms_of(dtype));
          }
        }
      }
    }
  }

  void check_row_program(std::initializer_list<i64> widths, std::initializer_list<i64> tokens) {
    for (const i64 n : widths) {
      Chain chain;
      chain.add(softmax_case(n, DType::i64, true).program);
      for (const bool strided : {false, true}) {
        for (const i64 m : tokens) {
          RunOptions run;
          run.tokens = m;
          run.strided = strided;
          run.integer_limit["target"] = n;
          check_plan(chain.plan(), run, 512);
        }
      }
    }
  }

  void check_embedding(i64 d, std::initializer_list<i64> tokens);

  ThroughHost* gpu_ = nullptr;
  /// Sizes that TMA can address, and others.
  const blocks::Sizes even_{.d = 64, .f = 96, .head = 16, .kv = 64, .vocab = 128};
  const blocks::Sizes odd_{.d = 50, .f = 37, .head = 10, .kv = 20, .vocab = 67};
};

TEST_F(CudaPlan, LlamaLayer) { check_block(blocks::llama_layer, true); }
TEST_F(CudaPlan, Head) { check_block(blocks::head, true); }
/// A few of each kind of kernel, for compute-sanitizer (scripts/sanitize_gpu.sh), as all tests
/// whose names begin with Small.
TEST_F(CudaPlan, SmallLayer) {
  const Build build = blocks::llama_layer;
  check_plan(block_plan(build, even_, DType::bf16, 0), rows_of(even_, 130), terms_of(DType::bf16));
  check_plan(block_plan(build, odd_, DType::f32, 0), rows_of(odd_, 70), terms_of(DType::f32));
  check_plan(block_plan(build, even_, DType::f16, 2), rows_of(even_, 70), terms_of(DType::f16));
}
TEST_F(CudaPlan, SmallHead) {
  const Build build = blocks::head;
  check_plan(block_plan(build, even_, DType::bf16, 0), rows_of(even_, 130), terms_of(DType::bf16));
  check_plan(block_plan(build, even_, DType::bf16, 0), rows_of(even_, 1), terms_of(DType::bf16));
  check_plan(block_plan(build, odd_, DType::bf16, 0), rows_of(odd_, 70), terms_of(DType::bf16));
}
/// Pieces that have rows, fewer and none; weight gradients stored and then added to, the table's
/// too.
TEST_F(CudaPlan, SmallHeadInPieces) {
  for (const blocks::Sizes& sizes : {even_, odd_}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool tied : {false, true}) {
        blocks::Sizes s = sizes;
        s.tile = dtype;
        Graph graph;
        const auto plan = std::make_shared<Plan>(
            *compile(graph, blocks::summed_head(graph, s, tied),
                     {.dtype = dtype, .output_dtype = dtype, .held_price = 1.5, .pieces = 3}));
        ASSERT_EQ(plan->backward[0].piece.count, 3);
        for (const i64 m : {0, 1, 300}) {
          SCOPED_TRACE(fmt::format("d {} {} tied {} M {}", s.d, name_of(dtype), tied, m));
          RunOptions run = rows_of(s, m);
          run.id_limit["ids"] = s.vocab;
          check_plan(plan, run, terms_of(dtype));
        }
      }
    }
  }
}
TEST_F(CudaPlan, ParallelBlock) { check_block(blocks::parallel_block, false); }
TEST_F(CudaPlan, QkNormLayer) { check_block(blocks::qk_norm_layer, false); }

TEST_F(CudaPlan, RowProgram) { check_row_program({7, 97, 1304, 5000}, {0, 1, 300}); }
TEST_F(CudaPlan, SmallRowProgram) { check_row_program({97, 1304}, {33}); }

/// A plan of one opaque node.
std::shared_ptr<Plan> embedding_plan(i64 vocab, i64 d, DType dtype, bool backward) {
  auto plan = std::make_shared<Plan>();
  const auto add = [&](const char* name, Role role, Kind kind, DType type, i64 rows, i64 cols) {
    Buffer buffer;
    buffer.name = name;
    buffer.role = role;
    buffer.kind = kind;
    buffer.dtype = type;
    buffer.rows = rows;
    buffer.cols = cols;
    plan->buffers.push_back(buffer);
    return Slice{static_cast<i32>(plan->buffers.size() - 1), 0, 0, rows, cols};
  };
  Step step;
  step.opaque = backward ? Opaque::embedding_backward : Opaque::embedding;
  step.n_inputs = 2;
  const auto ids = [&] { return add("ids", Role::input, Kind::col, DType::i32, kTokens, 1); };
  if (backward) {
    step.slices.push_back(ids());
    step.slices.push_back(add("d_x", Role::input, Kind::tile, dtype, kTokens, d));
    step.slices.push_back(add("d_table", Role::output, Kind::weight, DType::f32, vocab, d));
  } else {
    step.slices.push_back(add("table", Role::input, Kind::weight, dtype, vocab, d));
    step.slices.push_back(ids());
    step.slices.push_back(add("x", Role::output, Kind::tile, dtype, kTokens, d));
  }
  plan->forward.push_back(step);
  return plan;
}

void CudaPlan::check_embedding(i64 d, std::initializer_list<i64> tokens) {
  for (const bool backward : {false, true}) {
    const auto plan = embedding_plan(50, d, DType::bf16, backward);
    for (const i64 m : tokens) {
      RunOptions run;
      run.tokens = m;
      run.given["ids"].assign(static_cast<std::size_t>(std::max<i64>(m, 1)), 0);
      for (std::size_t i = 0; i < run.given["ids"].size(); ++i) {
        run.given["ids"][i] = i % 3 == 0 ? 7 : static_cast<double>(i * 37 % 50);
      }
      check_plan(plan, run, 1024);  // ids of which up to 900 rows are summed
    }
  }
}

TEST_F(CudaPlan, Embedding) {
  for (const i64 d : {7, 64, 1000}) check_embedding(d, {0, 1, 300, 2500});
}
TEST_F(CudaPlan, SmallEmbedding) { check_embedding(64, {300}); }

// The fp32 sums are the plan's own then, in rows that it pads.
TEST_F(CudaPlan, EmbeddingWithA16BitGradient) {
  Graph g;
  const Tensor table = g.weight("table", 50, 24);
  CompileRequest request;
  request.outputs = {{"x", embedding(table, g.col("ids", DType::i32)), g.tile("d_x", 24)}};
  request.wrt = {table};
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  RunOptions run;
  run.tokens = 60;
  for (int i = 0; i < 60; ++i) run.given["ids"].push_back(i * 37 % 50);
  check_plan(std::make_shared<Plan>(*compile(g, request, options)), run, 64);
}

TEST_F(CudaPlan, IntegersOutOfRangeAreToldAtTheNextWait) {
  const auto plan = embedding_plan(50, 64, DType::f32, false);
  RunOptions run;
  run.tokens = 3;
  run.given["ids"] = {1, 50, 2};
  try {
    run_plan(*gpu_, plan, run);
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "ids: row 1: expected a token id in [0, 50), got 50. Use the tokenizer that "
                 "belongs to the model.");
  }
  run.given["ids"] = {1, 49, 2};
  EXPECT_NO_THROW(run_plan(*gpu_, plan, run));
}

TEST_F(CudaPlan, RefusesMemoryOfTheHost) {
  const auto session = gpu_->device().prepare(embedding_plan(50, 64, DType::f32, false), 4);
  HostTensor ids(DType::i32, 4, 1);
  EXPECT_THROW(session->bind("ids", ids.view()), UsageError);
}

TEST_F(CudaPlan, ReplaysAsAGraphOnNewDataAndOtherSizes) {
  Make make("scale", Form::rows, 64);
  const i32 x = make.load_tile("x", 64);
  make.store("y", make.op(Op::mul, {x, make.load_scalar("s")}));
  Chain chain;
  chain.add(make.program);
  Backend& gpu = gpu_->device();
  const auto session = gpu.prepare(chain.plan(), 100);
  BackendTensor in(gpu, DType::f32, 100, 64), out(gpu, DType::f32, 100, 64),
      s(gpu, DType::f32, 1, 1);
  session->bind("s", s.view());
  std::vector<float> values(6400), got(6400);
  int turn = 0;
  for (const i64 m : {100, 100, 100, 37, 37, 37, 100}) {
    const float scale = static_cast<float>(++turn);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) + scale;
    in.upload(values.data());
    s.upload(&scale);
    out.fill_zero();
    session->bind("x", {in.view().data, DType::f32, m, 64, 64});
    session->bind("y", {out.view().data, DType::f32, m, 64, 64});
    session->run(Phase::forward, m);
    out.download(got.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], i < static_cast<std::size_t>(m) * 64 ? scale * values[i] : 0.0f);
    }
  }
}

TEST_F(CudaPlan, AdamWHasTheBitsOfTheHost) {
  Backend& gpu = gpu_->device();
  std::vector<BackendTensor> tensors;
  std::vector<AdamWTensor> of;
  std::mt19937 random(5);
  const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000.0f - 1.0f; };
  std::vector<std::vector<float>> host;  // value, gradient, first, second of each
  for (const i64 count : {1, 5, 4096, 50001}) {
    AdamWTensor t;
    t.count = count;
    t.decays = count % 2 == 0;
    float** const pointers[] = {&t.value, nullptr, &t.first, &t.second};
    for (int k = 0; k < 4; ++k) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& v : values) v = k == 3 ? std::abs(uniform()) : uniform();
      tensors.emplace_back(gpu, DType::f32, 1, count);
      tensors.back().upload(values.data());
      if (k == 1) {
        t.gradient = tensors.back().view().as<float>();
      } else {
        *pointers[k] = tensors.back().view().as<float>();
      }
      host.push_back(std::move(values));
    }
    tensors.emplace_back(gpu, DType::bf16, 1, count);
    t.rounded = tensors.back().view().data;
    if (count % 2 == 1) {  // in two halves
      const std::vector<float>& values = host[host.size() - 4];
      std::vector<std::uint16_t> rounded;
      std::vector<std::int16_t> low;
      for (const float v : values) {
        rounded.push_back(split_f32(v).rounded);
        low.push_back(split_f32(v).low);
      }
      tensors.back().upload(rounded.data());
      tensors.emplace_back(gpu, DType::bf16, 1, count);
      tensors.back().upload(low.data());
      t.low = tensors.back().view().as<std::int16_t>();
      t.value = nullptr;
    }
    of.push_back(t);
  }
  const auto adamw = gpu.make_adamw(of);
  double squares = 0;
  for (std::size_t i = 1; i < host.size(); i += 4) {
    for (const double g : host[i]) squares += g * g;
  }
  EXPECT_NEAR(adamw->gradient_square_sum(), squares, 1e-12 * squares);
  EXPECT_EQ(adamw->gradient_square_sum(), adamw->gradient_square_sum());
  const AdamWStep u{0.5f, 0.9f, 0.95f, 0.01f, 1.5f, 1e-8f, 0.999f};
  adamw->update(u);
  for (std::size_t i = 0; i < of.size(); ++i) {
    std::vector<float> value(host[4 * i].size());
    std::vector<std::uint16_t> rounded(value.size());
    gpu.download(rounded.data(), of[i].rounded, rounded.size() * 2);
    if (of[i].value != nullptr) {
      gpu.download(value.data(), of[i].value, value.size() * 4);
    } else {
      std::vector<std::int16_t> low(value.size());
      gpu.download(low.data(), of[i].low, low.size() * 2);
      for (std::size_t k = 0; k < low.size(); ++k) value[k] = join_f32({rounded[k], low[k]});
    }
    const float keep = of[i].decays ? u.keep : 1.0f;
    for (std::size_t k = 0; k < value.size(); ++k) {
      const float g = host[4 * i + 1][k] * u.scale;
      const float m = u.beta1 * host[4 * i + 2][k] + (1.0f - u.beta1) * g;
      const float v = u.beta2 * host[4 * i + 3][k] + (1.0f - u.beta2) * g * g;
      const float want = keep * host[4 * i][k] - u.size * m / (u.root_scale * std::sqrt(v) + u.eps);
      ASSERT_EQ(value[k], want) << i << " " << k;
      ASSERT_EQ(rounded[k], of[i].value ? bf16_from_f32(want) : split_f32(want).rounded);
    }
  }
}

}  // namespace
}  // namespace coda::testing
