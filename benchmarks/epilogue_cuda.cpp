// Races the GEMM programs of a LLaMA layer and head, epilogue and all, against coda's own bare GEMM
// of the same shape: launch by launch in turns, then in blocks of 0.3 s each (what a training step
// sees).
//   epilogue_cuda [--tokens 16384] [--d-model 2048] [--vocab 32768] [--filter TEXT] [--rounds 2]
// --rounds 0 launches each once, for a profiler.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "backend/cuda/program_gemm.h"
#include "base/check.h"
#include "base/median.h"
#include "coda/compile.h"
#include "nn/models/llama_blocks.h"

namespace {

using namespace coda;
using namespace coda::cuda;
using i64 = std::int64_t;

struct Sizes {
  i64 tokens = 16384, d_model = 2048, vocab = 32768;
  int rounds = 2;
  std::string filter;
};

std::shared_ptr<const Plan> block(bool head, const Sizes& s) {
  LlamaBlockSizes sizes;
  sizes.d_model = s.d_model;
  sizes.vocab = s.vocab;
  coda::Graph graph;
  const CompileRequest request =
      head ? llama_head_block(graph, sizes) : llama_layer_block(graph, sizes);
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
  options.budget_tokens = s.tokens;
  return compile(graph, request, options);
}

/// Buffers of a plan in device memory, with random values (power depends on them).
class Memory {
 public:
  Memory(const Plan& plan, i64 tokens, const Stream& stream) : tokens_(tokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint32_t> noise(1 << 22);
    for (auto& pair : noise) {
      const auto half = [&] {
        const float x = normal(random);
        std::uint32_t bits;
        std::memcpy(&bits, &x, 4);
        return bits >> 16;
      };
      pair = half() | half() << 16;
    }
    for (const Buffer& buffer : plan.buffers) {
      TensorView view;
      view.dtype = buffer.dtype;
      const i64 rows = buffer.rows == kTokens ? tokens : buffer.rows;
      view.rows = rows;
      view.cols = buffer.cols;
      if (buffer.partial) {
        const i64 granules = buffer.granules == kTokens ? (tokens + 127) / 128 : buffer.granules;
        const bool col = buffer.kind == Kind::col;
        view.rows = granules * (is_online(buffer.finish) ? 2 : 1);
        view.cols = col ? rows : buffer.cols;
      }
      view.stride = view.cols;
      buffers_.emplace_back(view.bytes() + 256);
      std::vector<char> host(view.bytes());
      for (std::size_t at = 0; at < host.size(); at += noise.size() * 4)
        std::memcpy(host.data() + at, noise.data(), std::min(host.size() - at, noise.size() * 4));
      if (!is_float(buffer.dtype)) std::fill(host.begin(), host.end(), '\0');
      if (buffer.dtype == DType::f32) {
        auto* values = reinterpret_cast<float*>(host.data());
        for (std::size_t i = 0; i < host.size() / 4; ++i) values[i] = 1.0f + 0.25f * (i % 7);
      }
      if (!host.empty()) buffers_.back().upload(host.data(), host.size(), stream);
      stream.synchronize();
      view.data = reinterpret_cast<void*>(buffers_.back().pointer());
      views_.push_back(view);
    }
  }

  TensorView view(const Slice& slice) const {
    TensorView view = views_[static_cast<std::size_t>(slice.buffer)];
    if (view.rows > 1 && (slice.row != 0 || slice.col != 0 || slice.cols < view.cols) &&
        slice.cols > 0 && slice.cols <= view.cols) {
      view.data = view.as<char>() +
                  (slice.row * view.stride + slice.col) * static_cast<i64>(size_of(view.dtype));
      view.cols = slice.cols;
      if (slice.rows != kTokens) view.rows = slice.rows;
    }
    return view;
  }

 private:
  i64 tokens_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<TensorView> views_;
};

/// The bytes of everything that a step writes over NaN.
std::vector<char> outputs(const Step& step, const std::vector<TensorView>& views,
                          StepKernel& kernel, const Stream& stream) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!step.program->operands[i].output) continue;
    check(driver().memset_d8_async(reinterpret_cast<DevicePointer>(views[i].data), 0xff,
                                   views[i].bytes(), stream.handle()),
          "cuMemsetD8Async");
  }
  kernel.launch(stream);
  std::vector<char> bytes;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!step.program->operands[i].output) continue;
    const std::size_t start = bytes.size();
    bytes.resize(start + views[i].bytes());
    check(driver().memcpy_dtoh_async(bytes.data() + start,
                                     reinterpret_cast<DevicePointer>(views[i].data),
                                     views[i].bytes(), stream.handle()),
          "cuMemcpyDtoHAsync");
    stream.synchronize();
  }
  return bytes;
}

template <class Run>
double milliseconds(const Stream& stream, int times, const Run& run) {
  Event start, stop;
  start.record(stream);
  for (int i = 0; i < times; ++i) run();
  stop.record(stream);
  stop.synchronize();
  return stop.milliseconds_since(start) / times;
}

void race(const Step& step, const Plan& plan, const Memory& memory, const Sizes& s,
          const Stream& stream, const GemmWorkspace& workspace) {
  const ProgramGemm program(step.program);
  if (step.program->name.find(s.filter) == std::string::npos) return;
  DeviceBuffer vectors(gemm_workspace_bytes(step, plan, s.tokens) + 256);
  StepContext context;
  context.gemm = &workspace;
  context.max_tokens = s.tokens;
  context.workspace = vectors.pointer();
  const auto kernel = make_gemm_kernel(step, plan, context);
  std::vector<TensorView> views;
  for (const Slice& slice : step.slices) views.push_back(memory.view(slice));
  kernel->bind(views, s.tokens);
  // The bare GEMM of the same operands, into a matrix of its own.
  const EpilogueLaunch& launch = program.plan().launches[0];
  GemmShape shape = program.shape(launch, s.tokens);
  shape.m = program.rows(s.tokens);
  shape.n = step.program->cols.num;
  GemmOperands operands;
  const auto block_of = [&](std::int32_t index) {
    const TensorView& view = views[static_cast<std::size_t>(index)];
    return MatrixBlock{reinterpret_cast<DevicePointer>(view.data), view.rows, view.cols,
                       view.stride};
  };
  operands.a = block_of(step.program->gemm.a);
  for (const std::int32_t b : step.program->gemm.b) operands.b.push_back(block_of(b));
  DeviceBuffer c(static_cast<std::size_t>(shape.m * shape.n) * 2);
  operands.c = {{c.pointer(), shape.m, shape.n, shape.n}};
  const cuda::Gemm bare(shape, operands, workspace);

  const auto fused_once = [&] { kernel->launch(stream); };
  const auto bare_once = [&] { bare.launch(stream); };
  if (s.rounds == 0) {
    fused_once(), bare_once();
    stream.synchronize();
    return;
  }
  context.simple_epilogues = true;
  const auto simple = make_gemm_kernel(step, plan, context);
  simple->bind(views, s.tokens);
  const std::vector<char> expected = outputs(step, views, *simple, stream);
  const bool same = outputs(step, views, *kernel, stream) == expected;

  milliseconds(stream, 3, fused_once), milliseconds(stream, 3, bare_once);
  std::vector<double> fused, plain;
  for (int i = 0; i < 15; ++i) {
    fused.push_back(milliseconds(stream, 1, fused_once));
    plain.push_back(milliseconds(stream, 1, bare_once));
  }
  const double fused_i = median(fused), bare_i = median(plain);
  std::vector<double> fused_s, bare_s;
  const int n_fused = std::max(1, static_cast<int>(150 / fused_i));
  const int n_bare = std::max(1, static_cast<int>(150 / bare_i));
  for (int round = 0; round < s.rounds; ++round) {
    milliseconds(stream, n_fused, fused_once);
    fused_s.push_back(milliseconds(stream, n_fused, fused_once));
    milliseconds(stream, n_bare, bare_once);
    bare_s.push_back(milliseconds(stream, n_bare, bare_once));
  }
  const double fs = median(fused_s), bs = median(bare_s);
  std::printf("%-42s %s %6lld %6lld %6lld | %8.4f %8.4f %6.3f | %8.4f %8.4f %6.3f | %s%s\n",
              step.program->name.c_str(), shape.layout().c_str(), static_cast<long long>(shape.m),
              static_cast<long long>(shape.n), static_cast<long long>(shape.k), fused_i, bare_i,
              fused_i / bare_i, fs, bs, fs / bs, bare.kernel_name().c_str(),
              same ? "" : ", BITS DIFFER from the simple form");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  try {
    for (int i = 1; i + 1 < argc; i += 2) {
      const std::string flag = argv[i];
      if (flag == "--tokens") s.tokens = std::stoll(argv[i + 1]);
      if (flag == "--d-model") s.d_model = std::stoll(argv[i + 1]);
      if (flag == "--vocab") s.vocab = std::stoll(argv[i + 1]);
      if (flag == "--rounds") s.rounds = std::stoi(argv[i + 1]);
      if (flag == "--filter") s.filter = argv[i + 1];
    }
    Device::get().use();
    const Stream stream;
    const GemmWorkspace workspace(stream);
    std::printf("%s, ms: interleaved fused, bare, ratio | sustained | configuration of bare\n",
                Device::get().name().c_str());
    for (const bool head : {false, true}) {
      const auto plan = block(head, s);
      const Memory memory(*plan, s.tokens, stream);
      for (const auto* steps : {&plan->forward, &plan->backward})
        for (const Step& step : *steps)
          if (step.program && step.program->form == Form::gemm)
            race(step, *plan, memory, s, stream, workspace);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "epilogue_cuda: %s\n", error.what());
    return 1;
  }
  return 0;
}
