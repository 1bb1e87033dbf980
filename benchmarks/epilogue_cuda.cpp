// Races the GEMM programs of a LLaMA layer and head, epilogue and all, against two others of the same
// shape: the program that loads and stores the same tiles without the math, and coda's own bare GEMM
// with one result of 16 bits. Launch by launch in turns (I), then in blocks of 0.15 s each, also in
// turns (S, what a training step sees). Plain stores have no math to leave out: no second racer.
//   epilogue_cuda [--tokens 16384] [--d-model 2048] [--vocab 32768] [--filter TEXT] [--rounds 2]
//                 [--json FILE]
// --rounds 0 launches each once, for a profiler.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "backend/cuda/program_gemm.h"
#include "base/check.h"
#include "base/median.h"
#include "coda/compile.h"
#include "epilogue_programs.h"
#include "nn/models/llama_blocks.h"

namespace {

using namespace coda;
using namespace coda::cuda;
using i64 = std::int64_t;

struct Sizes {
  i64 tokens = 16384, d_model = 2048, vocab = 32768;
  int rounds = 2;
  std::string filter, json;
};

enum class Block { layer, inference_layer, head };

std::shared_ptr<const Plan> plan_of(Block block, const Sizes& s) {
  LlamaBlockSizes sizes;
  sizes.d_model = s.d_model;
  sizes.vocab = s.vocab;
  coda::Graph graph;
  CompileRequest request = block == Block::head ? llama_head_block(graph, sizes)
                                                : llama_layer_block(graph, sizes);
  if (block == Block::inference_layer) request.wrt.clear();
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

/// What is raced: one of the kernels of a program, vectors and all.
struct Racer {
  std::function<void()> run;
  std::vector<double> interleaved = {}, sustained = {};  ///< ms
};

/// All of them in turns.
void race(std::vector<Racer>& racers, int rounds, const Stream& stream) {
  constexpr int kLaunches = 21;
  constexpr double kBlock = 150, kBefore = 50;  // ms; the card's clock settles before
  for (Racer& racer : racers) milliseconds(stream, 3, racer.run);
  for (int i = 0; i < kLaunches; ++i) {
    double turn = 0;
    for (Racer& racer : racers) {
      racer.interleaved.push_back(milliseconds(stream, 1, racer.run));
      turn += racer.interleaved.back();
    }
    // A rest as long as the turn, so that the card does not reach its power limit here.
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(turn));
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < racers.size(); ++i) {
      Racer& racer = racers[(i + static_cast<std::size_t>(round)) % racers.size()];  // all go first
      const double each = median(racer.interleaved);
      milliseconds(stream, std::max(1, static_cast<int>(kBefore / each)), racer.run);
      racer.sustained.push_back(
          milliseconds(stream, std::max(1, static_cast<int>(kBlock / each)), racer.run));
    }
  }
}

class Benchmark {
 public:
  explicit Benchmark(const Sizes& sizes) : s_(sizes) {}

  void run() {
    std::printf(
        "%s, ms of the fused program; over its tiles without math (/tiles), over the bare product "
        "(/bare)\n%-40s %2s %6s %6s %6s | I %7s %6s %6s | S %7s %6s %6s | fused, tiles, bare on\n",
        Device::get().name().c_str(), "program", "", "M", "N", "K", "ms", "/tiles", "/bare", "ms",
        "/tiles", "/bare");
    for (const Block block : {Block::layer, Block::inference_layer, Block::head}) {
      const auto plan = plan_of(block, s_);
      const std::vector<Step> steps = steps_of(block, *plan);
      if (steps.empty()) continue;
      const Memory memory(*plan, s_.tokens, stream_);
      compile_all(steps, *plan);
      for (const Step& step : steps) one(step, *plan, memory);
    }
    if (!s_.json.empty()) std::ofstream(s_.json) << json_.dump(1) << "\n";
  }

 private:
  /// The GEMM programs of a plan: of the inference layer only the SwiGLU, which stores one tile, and
  /// of the layer the residuals once more without x times the next norm's weight.
  std::vector<Step> steps_of(Block block, const Plan& plan) const {
    std::vector<Step> steps;
    for (const auto* phase : {&plan.forward, &plan.backward})
      for (const Step& step : *phase)
        if (step.program && step.program->form == Form::gemm) steps.push_back(step);
    if (block == Block::layer) {
      steps.push_back(bench::without_stores(steps[0], "residual_sum_of_squares", "in_"));
      steps.push_back(bench::without_stores(steps[2], "residual_sum_of_squares_mlp", "in_"));
    }
    if (block == Block::inference_layer) {
      Program swiglu = *steps[1].program;
      swiglu.name = "swiglu_inference";
      steps[1].program = std::make_shared<const Program>(std::move(swiglu));
      steps = {steps[1]};
    }
    std::erase_if(steps, [&](const Step& step) {
      return step.program->name.find(s_.filter) == std::string::npos;
    });
    return steps;
  }

  StepContext context(bool simple = false) const {
    StepContext context;
    context.gemm = &workspace_;
    context.max_tokens = s_.tokens;
    context.simple_epilogues = simple;
    return context;
  }

  void compile_all(const std::vector<Step>& steps, const Plan& plan) const {
    std::vector<KernelSource> sources;
    const auto take = [&](const Step& step, bool simple) {
      for (KernelSource& source : make_gemm_kernel(step, plan, context(simple))->sources())
        sources.push_back(std::move(source));
    };
    for (const Step& step : steps) {
      take(step, false);
      if (s_.rounds > 0) take(step, true);
      if (const auto tiles = bench::TilesOnly(step).make()) take(*tiles, false);
    }
    KernelStore::get().prepare(sources);
  }

  /// A step on the GPU, bound to a plan's memory.
  struct Bound {
    DeviceBuffer workspace;
    std::vector<TensorView> views;
    std::unique_ptr<StepKernel> kernel;
  };
  Bound bind(const Step& step, const Plan& plan, const Memory& memory, bool simple = false) const {
    Bound bound;
    bound.workspace = DeviceBuffer(gemm_workspace_bytes(step, plan, s_.tokens) + 256);
    StepContext context = this->context(simple);
    context.workspace = bound.workspace.pointer();
    for (const Slice& slice : step.slices) bound.views.push_back(memory.view(slice));
    bound.kernel = make_gemm_kernel(step, plan, context);
    bound.kernel->bind(bound.views, s_.tokens);
    return bound;
  }

  std::string configurations(const Step& step) const {
    const ProgramGemm program(step.program);
    std::string names;
    for (const EpilogueLaunch& launch : program.plan().launches) {
      const std::string name = program
                                   .choose(launch, program.shape(launch, s_.tokens),
                                           Device::get().sm_count())
                                   .name;
      if (names.find(name) == std::string::npos) names += (names.empty() ? "" : "+") + name;
    }
    return names;
  }

  /// Operands of the bare GEMM: A and B of a program.
  static GemmOperands operands_of(const Program& program, const std::vector<TensorView>& views) {
    const auto block_of = [&](std::int32_t index) {
      const TensorView& view = views[static_cast<std::size_t>(index)];
      return MatrixBlock{reinterpret_cast<DevicePointer>(view.data), view.rows, view.cols,
                         view.stride};
    };
    GemmOperands operands;
    operands.a = block_of(program.gemm.a);
    for (const std::int32_t b : program.gemm.b) operands.b.push_back(block_of(b));
    return operands;
  }

  void one(const Step& step, const Plan& plan, const Memory& memory) {
    const ProgramGemm program(step.program);
    const Bound fused = bind(step, plan, memory);
    const auto tiles_step = bench::TilesOnly(step).make();
    const Bound tiles = tiles_step ? bind(*tiles_step, plan, memory) : Bound{};
    GemmShape shape = program.shape(program.plan().launches[0], s_.tokens);
    shape.m = program.rows(s_.tokens);
    shape.n = step.program->cols.num;
    GemmOperands operands = operands_of(*step.program, fused.views);
    const DeviceBuffer c(static_cast<std::size_t>(shape.m * shape.n) * 2);
    operands.c = {{c.pointer(), shape.m, shape.n, shape.n}};
    const cuda::Gemm bare(shape, operands, workspace_);

    std::vector<Racer> racers = {{[&] { fused.kernel->launch(stream_); }},
                                 {[&] { bare.launch(stream_); }}};
    if (tiles_step) racers.push_back({[&] { tiles.kernel->launch(stream_); }});
    if (s_.rounds == 0) {
      for (const Racer& racer : racers) racer.run();
      stream_.synchronize();
      return;
    }
    const Bound simple = bind(step, plan, memory, true);
    const std::vector<char> expected = outputs(step, simple.views, *simple.kernel, stream_);
    const bool same = outputs(step, fused.views, *fused.kernel, stream_) == expected;
    race(racers, s_.rounds, stream_);
    std::string on = configurations(step) + ", " +
                     (tiles_step ? configurations(*tiles_step) : "none") + ", " +
                     bare.kernel_name();
    report(step.program->name, shape, racers, on, same);
  }

  void report(const std::string& name, const GemmShape& shape, const std::vector<Racer>& racers,
              const std::string& on, bool same) {
    nlohmann::json row = {{"program", name},  {"layout", shape.layout()}, {"m", shape.m},
                          {"n", shape.n},     {"k", shape.k},             {"configurations", on},
                          {"same_bits", same}};
    std::string columns;
    for (const auto times : {&Racer::interleaved, &Racer::sustained}) {
      const double fused = median(racers[0].*times), bare = median(racers[1].*times);
      const double tiles = racers.size() > 2 ? median(racers[2].*times) : 0;
      columns += fmt::format(" | {:9.4f} {:>6} {:6.3f}", fused,
                             racers.size() > 2 ? fmt::format("{:.3f}", fused / tiles) : "-",
                             fused / bare);
      nlohmann::json& to = row[times == &Racer::interleaved ? "interleaved_ms" : "sustained_ms"];
      to = {{"fused", fused}, {"bare", bare}};
      if (racers.size() > 2) to["tiles"] = tiles;
    }
    json_.push_back(row);
    std::printf("%-40s %s %6lld %6lld %6lld%s | %s%s\n", name.c_str(), shape.layout().c_str(),
                static_cast<long long>(shape.m), static_cast<long long>(shape.n),
                static_cast<long long>(shape.k), columns.c_str(), on.c_str(),
                same ? "" : ", BITS DIFFER from the simple form");
    std::fflush(stdout);
  }

  Sizes s_;
  Stream stream_;
  GemmWorkspace workspace_{stream_};
  nlohmann::json json_ = nlohmann::json::array();
};

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  try {
    for (int i = 1; i < argc; i += 2) {
      const std::string flag = argv[i];
      if (i + 1 >= argc) throw UsageError("expected a value after " + flag);
      const std::string value = argv[i + 1];
      if (flag == "--tokens") {
        s.tokens = std::stoll(value);
      } else if (flag == "--d-model") {
        s.d_model = std::stoll(value);
      } else if (flag == "--vocab") {
        s.vocab = std::stoll(value);
      } else if (flag == "--rounds") {
        s.rounds = std::stoi(value);
      } else if (flag == "--filter") {
        s.filter = value;
      } else if (flag == "--json") {
        s.json = value;
      } else {
        throw UsageError("unknown option " + flag);
      }
    }
    Device::get().use();
    Benchmark(s).run();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "epilogue_cuda: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "epilogue_cuda: %s\n", error.what());
    return 1;
  }
  return 0;
}
