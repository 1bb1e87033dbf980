// Generated epilogues on a GPU against the reference backend: the mainloop in every configuration,
// the plain kernel, and equal bits whatever the configuration.
#include <cstring>

#include "backend/cuda/epilogue_runs.h"
#include "backend/cuda/gpu_test.h"
#include "backend/cuda/program_gemm.h"
#include "backend/cuda/runtime.h"
#include "coda/compile.h"
#include "nn/models/llama_blocks.h"

namespace coda::testing {
namespace {

/// Runs a step on copies in device memory of everything it reads and writes; `replays` times more
/// from a graph, with its vectors NaN each time.
void run_on_gpu(const Step& step, const Plan& plan, const std::vector<TensorView>& views, i64 tokens,
                int replays) {
  using namespace cuda;
  Device::get().use();
  static Stream stream;
  static GemmWorkspace workspace(stream);
  std::vector<DeviceBuffer> buffers;
  std::vector<TensorView> on_device;
  const auto bytes_of = [](const TensorView& view) {
    const i64 elements = view.rows == 0 ? 0 : (view.rows - 1) * view.stride + view.cols;
    return static_cast<std::size_t>(elements) * size_of(view.dtype);
  };
  for (const TensorView& view : views) {
    // Offsets into 16 bytes stay what they are.
    const auto offset = reinterpret_cast<std::uintptr_t>(view.data) % 16;
    buffers.emplace_back(bytes_of(view) + 16);
    DeviceBuffer& buffer = buffers.back();
    std::vector<char> host(bytes_of(view) + offset);
    if (bytes_of(view) > 0) std::memcpy(host.data() + offset, view.data, bytes_of(view));
    if (!host.empty()) buffer.upload(host.data(), host.size(), stream);
    stream.synchronize();
    TensorView device = view;
    device.data = reinterpret_cast<void*>(buffer.pointer() + offset);
    on_device.push_back(device);
  }
  DeviceBuffer vectors(workspace_bytes_of(step, plan, tokens) + 256);
  vectors.fill(0xff, stream);
  StepContext context;
  context.gemm = &workspace;
  context.max_tokens = tokens;
  context.workspace = vectors.pointer();
  const auto kernel = make_step_kernel(step, plan, context);
  kernel->bind(on_device, tokens);
  kernel->launch(stream);
  if (replays > 0) {
    const auto graph = cuda::Graph::capture(stream, [&] { kernel->launch(stream); });
    for (int i = 0; i < replays; ++i) {
      vectors.fill(0xff, stream);
      graph.launch(stream);
    }
  }
  stream.synchronize();
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!step.program->operands[i].output || bytes_of(views[i]) == 0) continue;
    const auto offset = reinterpret_cast<std::uintptr_t>(views[i].data) % 16;
    std::vector<char> host(bytes_of(views[i]) + offset);
    buffers[i].download(host.data(), host.size(), stream);
    // Only its own columns: another output may lie beside them.
    const auto width = size_of(views[i].dtype);
    for (i64 r = 0; r < views[i].rows; ++r) {
      const std::size_t start = static_cast<std::size_t>(r * views[i].stride) * width;
      std::memcpy(views[i].as<char>() + start, host.data() + offset + start,
                  static_cast<std::size_t>(views[i].cols) * width);
    }
  }
}

class CudaEpilogue : public cuda::GpuTest {};

void check(const std::shared_ptr<Plan>& plan, const RunOptions& options, double terms,
           int replays = 0) {
  StepBackend gpu_steps([replays](const Step& step, const Plan& of,
                                  const std::vector<TensorView>& views, i64 tokens) {
    run_on_gpu(step, of, views, tokens, replays);
  });
  FilledBackend gpu(gpu_steps);
  const auto reference_steps = make_reference_backend(DType::f32);
  FilledBackend reference(*reference_steps);
  const Outputs want = run_plan(reference, plan, options);
  const Outputs got = run_plan(gpu, plan, options);
  expect_close(*plan, got, want, terms);
  const Outputs again = run_plan(gpu, plan, options);
  for (const auto& [name, values] : got)
    EXPECT_TRUE(values.empty() || std::memcmp(values.data(), again.at(name).data(),
                                              values.size() * sizeof(double)) == 0)
        << name << " differs from run to run";
}

void check_block(bool head, DType dtype, i64 tokens, i64 head_dim) {
  LlamaBlockSizes sizes;
  sizes.d_model = 256;
  sizes.d_ff = 328;
  sizes.head_dim = head_dim;
  sizes.n_kv_heads = 1;
  sizes.vocab = 1000;
  sizes.dtype = dtype;
  Graph graph;
  const CompileRequest request =
      head ? llama_head_block(graph, sizes) : llama_layer_block(graph, sizes);
  CompileOptions compile_options;
  compile_options.dtype = compile_options.output_dtype = dtype;
  compile_options.weight_grad_dtype = DType::f32;
  const auto plan = compile(graph, request, compile_options);
  RunOptions options;
  options.tokens = tokens;
  options.integer_limit["targets"] = sizes.vocab;
  for (const auto& step : gemm_steps(*plan)) check(step, options, 4096);
}

TEST_F(CudaEpilogue, EveryProgramOfALlamaLayer) {
  check_block(false, DType::bf16, 300, 64);
  check_block(false, DType::bf16, 513, 128);
  check_block(false, DType::f16, 129, 64);
}

TEST_F(CudaEpilogue, EveryProgramOfALlamaLayerInFp32) { check_block(false, DType::f32, 130, 64); }

/// Few threads that add long sums, and a short product: a kernel that did not wait for its vectors
/// would meet NaN. Made by one kernel, and by two of which the second reads what the first makes.
TEST_F(CudaEpilogue, VectorsAreMadeBesideTheProduct) {
  constexpr i64 kColumns = 64, kTerms = 8192;
  for (const bool two : {false, true}) {
    Make make("long_sums", Form::gemm, kColumns);
    const i32 acc = make.gemm_nt(8, {kColumns}, DType::bf16);
    i32 sums = make.value(Op::fold, {make.load_row("terms", kColumns * kTerms)}, {.hi = kTerms},
                          Kind::row, kColumns);
    if (two) sums = make.value(Op::repeat, {sums}, {.hi = 1}, Kind::row, kColumns);
    make.store("y", make.op(Op::mul, {acc, sums}), DType::bf16);
    Chain chain;
    chain.add(make.program);
    const auto plan = chain.plan();
    EXPECT_EQ(cuda::plan_epilogue(*plan->forward[0].program).stage_count, two ? 2 : 1);
    RunOptions options;
    options.tokens = 1000;
    check(plan, options, 4096, 4);
  }
}

TEST_F(CudaEpilogue, EveryProgramOfALlamaHead) {
  check_block(true, DType::bf16, 300, 64);
  check_block(true, DType::f32, 70, 64);
}

}  // namespace
}  // namespace coda::testing
