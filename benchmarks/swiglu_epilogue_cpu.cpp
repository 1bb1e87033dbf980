// What an epilogue costs on the CPU: SwiGLU (scale by rstd, store z, store hidden) on the GEMM it
// belongs to, against the same GEMM that stores its accumulator and nothing else.
//
//   swiglu_epilogue_cpu [--threads N] [--rounds N] [--d 256|1024] [--json]
//
// The two take turns; the least time of each counts. It is processor time, of all threads divided
// by their number, which other work on the machine disturbs less than wall time; waiting threads
// sleep and use none.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/compiled.h"
#include "base/check.h"
#include "coda/program_builder.h"
#include "tensor/tensor.h"

namespace {

using coda::DType;
using coda::HostTensor;
using coda::Program;
using coda::ProgramBuilder;
using coda::Tile;

constexpr std::int64_t kTokens = 2048;

struct Shape {
  std::int64_t d, f;
};

ProgramBuilder& gemm(ProgramBuilder& b, Shape s, DType dtype, bool joint) {
  if (joint)
    b.gemm_nt("x", s.d, {"w"}, {2 * s.f}, dtype);
  else
    b.gemm_nt("x", s.d, {"w_gate", "w_up"}, {s.f, s.f}, dtype);
  return b;
}

Program store_only(Shape s, DType dtype, bool joint) {
  ProgramBuilder b("store_acc");
  gemm(b, s, dtype, joint).store_tile("z", b.acc(), dtype);
  return b.build();
}

Program swiglu(Shape s, DType dtype, bool joint) {
  ProgramBuilder b("swiglu");
  gemm(b, s, dtype, joint);
  const coda::ColVec rstd = b.load_col("rstd", DType::f32);
  Tile gate, up;
  if (joint) {
    const Tile z = cast(b.acc() * rstd, dtype);
    b.store_tile("z", z, dtype);
    std::tie(gate, up) = split(z, coda::Pairs::interleaved());
  } else {
    gate = cast(cols(b.acc(), 0, s.f) * rstd, dtype);
    up = cast(cols(b.acc(), s.f, 2 * s.f) * rstd, dtype);
    b.store_tile("z_gate", gate, dtype);
    b.store_tile("z_up", up, dtype);
  }
  b.store_tile("hidden", silu(gate) * up, dtype);
  return b.build();
}

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// A compiled program with operands and scratch of its own.
class Runner {
 public:
  Runner(Program program, int threads)
      : program_(std::make_shared<Program>(std::move(program))),
        compiled_(program_, kTokens, coda::CpuGemm::automatic),
        pool_(threads),
        shared_(DType::f32, 1, compiled_.shared_floats()),
        scratch_(DType::f32, threads, coda::cpu::padded(compiled_.thread_floats())) {
    for (const coda::Operand& operand : program_->operands) {
      const bool tokens = operand.rows.symbol == coda::Dim::Symbol::M;
      const std::int64_t cols = operand.kind == coda::Kind::col ? 1 : operand.cols.num;
      HostTensor tensor(operand.dtype, tokens ? kTokens : operand.rows.num, cols);
      if (!operand.output)
        for (std::int64_t i = 0; i < tensor.size(); ++i)
          tensor.set(i, static_cast<double>(i * 37 % 101 - 50) / 400);
      views_.push_back(tensor.view());
      tensors_.push_back(std::move(tensor));
    }
  }

  double run() {
    const double start = processor_seconds();
    compiled_.run(views_, kTokens, shared_.view().as<float>(), scratch_.view().as<float>(),
                  scratch_.cols(), pool_);
    return (processor_seconds() - start) / pool_.threads();
  }

 private:
  std::shared_ptr<const Program> program_;
  coda::cpu::CompiledProgram compiled_;
  coda::cpu::ThreadPool pool_;
  HostTensor shared_, scratch_;
  std::vector<HostTensor> tensors_;
  std::vector<coda::TensorView> views_;
};

/// The program as every backend gets it: widths are numbers.
Program planned(const Program& program, std::int64_t n) { return coda::instantiate(program, n); }

}  // namespace

int main(int argc, char** argv) {
  int threads = 1, rounds = 15, only = 0;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) threads = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) rounds = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--d") == 0 && i + 1 < argc) only = std::atoi(argv[++i]);
  }
  nlohmann::json results = nlohmann::json::array();
  if (!json)
    fmt::print("{:>6} {:>6} {:>6} {:>12} {:>10} {:>10} {:>9} {:>9}\n", "d", "F", "dtype", "pairs",
               "store ms", "swiglu ms", "ratio", "GFLOP/s");
  for (const Shape shape : {Shape{256, 768}, Shape{1024, 2816}}) {
    if (only != 0 && only != shape.d) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool joint : {false, true}) {
        Runner bare(planned(store_only(shape, dtype, joint), 2 * shape.f), threads);
        Runner fused(planned(swiglu(shape, dtype, joint), 2 * shape.f), threads);
        double store = 1e9, epilogue = 1e9;
        for (int round = 0; round < rounds; ++round) {
          store = std::min(store, bare.run());
          epilogue = std::min(epilogue, fused.run());
        }
        const double flops = 2.0 * kTokens * 2 * static_cast<double>(shape.f * shape.d);
        const char* pairs = joint ? "interleaved" : "two weights";
        if (json)
          results.push_back({{"d", shape.d},
                             {"f", shape.f},
                             {"dtype", name_of(dtype)},
                             {"pairs", pairs},
                             {"threads", threads},
                             {"store_ms", store * 1e3},
                             {"swiglu_ms", epilogue * 1e3},
                             {"ratio", epilogue / store},
                             {"store_gflops", flops / store * 1e-9}});
        else
          fmt::print("{:>6} {:>6} {:>6} {:>12} {:>10.2f} {:>10.2f} {:>9.3f} {:>9.1f}\n", shape.d,
                     shape.f, name_of(dtype), pairs, store * 1e3, epilogue * 1e3, epilogue / store,
                     flops / store * 1e-9);
      }
    }
  }
  if (json) fmt::print("{}\n", results.dump(2));
  return 0;
}
