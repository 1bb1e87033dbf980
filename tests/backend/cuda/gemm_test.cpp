// GEMMs on the GPU against float64 and against cuBLAS's error.
#include "backend/cuda/gemm.h"

#include <array>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "backend/cuda/bench_gemm.h"
#include "backend/cuda/cublas.h"
#include "backend/cuda/device_check.h"
#include "backend/cuda/gpu_test.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

const Major kMajors[] = {Major::k, Major::mn};

/// Buffers, filled once and shared by all cases of a test: every case uses their beginning.
class CudaGemm : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    stream_ = std::make_unique<Stream>();
    workspace_ = std::make_unique<GemmWorkspace>(*stream_);
    check_ = std::make_unique<DeviceCheck>(*stream_);
    if (Cublas::why_not().empty()) cublas_ = std::make_unique<Cublas>(*stream_);
  }

  void reserve(std::int64_t elements, std::int64_t output_elements, DType operand, bool integers) {
    a_ = DeviceBuffer(elements * size_of(operand));
    b_ = DeviceBuffer(elements * size_of(operand));
    c_ = DeviceBuffer(output_elements * 4);
    d_ = DeviceBuffer(output_elements * 4);
    check_->fill(a_.pointer(), operand, elements, 11, integers);
    check_->fill(b_.pointer(), operand, elements, 12, integers);
  }

  /// Operands at the start of the buffers. `pad`: extra elements a row, after rounding the row up
  /// to a multiple of 8 (pad < 0: rows packed).
  GemmOperands operands(const GemmShape& s, std::int64_t pad) const {
    const auto stride = [&](std::int64_t columns) {
      return pad < 0 ? columns : (columns + 7) / 8 * 8 + pad;
    };
    GemmOperands o;
    o.a = s.a == Major::k ? MatrixBlock{a_.pointer(), s.m, s.k, stride(s.k)}
                          : MatrixBlock{a_.pointer(), s.k, s.m, stride(s.m)};
    o.b = {s.b == Major::k ? MatrixBlock{b_.pointer(), s.n, s.k, stride(s.k)}
                           : MatrixBlock{b_.pointer(), s.k, s.n, stride(s.n)}};
    o.c = {{c_.pointer(), s.m, s.n, stride(s.n)}};
    return o;
  }

  /// Compiles, several at once, what the cases of a test will need.
  void prepare(const std::vector<GemmShape>& shapes,
               const std::vector<GemmConfig>& configs = gemm_candidates()) {
    std::vector<KernelSource> sources;
    for (const auto& config : configs) {
      for (const auto& s : shapes) {
        auto variant = Gemm::variant_of(s, operands(s, 0));
        sources.push_back(gemm_source(config, variant));
        if (s.output != DType::f32 || s.accumulate) continue;
        variant.accumulate = true;  // small products add a second half of K
        sources.push_back(gemm_source(config, variant));
      }
    }
    KernelStore::get().prepare(sources);
  }

  /// Ragged in M, N and K.
  void run_small_shapes(const std::vector<GemmConfig>& configs);

  std::size_t output_bytes(const GemmShape& s, const GemmOperands& o) const {
    return static_cast<std::size_t>(o.c[0].rows) * o.c[0].stride * size_of(s.output);
  }
  void poison(DevicePointer pointer, std::size_t bytes, unsigned char value = 0xff) {
    check(driver().memset_d8_async(pointer, value, bytes, stream_->handle()), "cuMemsetD8Async");
  }

  /// Runs on poisoned memory and returns the error against the reference made before.
  ErrorReport run(const GemmShape& s, const GemmOperands& o, const GemmConfig* config) {
    const Gemm gemm(s, o, *workspace_, config);
    poison(c_.pointer(), output_bytes(s, o), s.accumulate ? 0 : 0xff);
    gemm.launch(*stream_);
    return check_->compare(o.c[0], s.output);
  }
  ErrorReport run_cublas(const GemmShape& s, const GemmOperands& o) {
    poison(c_.pointer(), output_bytes(s, o), s.accumulate ? 0 : 0xff);
    cublas_->gemm(s, o);
    return check_->compare(o.c[0], s.output);
  }

  /// Ours / cuBLAS's error, collected over a test.
  void collect(const std::string& what, const ErrorReport& ours, const ErrorReport& theirs) {
    if (theirs.relative == 0) {
      EXPECT_EQ(ours.relative, 0) << what << ": cuBLAS is exact";
      return;
    }
    const double ratio = ours.relative / theirs.relative;
    log_sum_ += std::log(std::max(ratio, 1e-3));
    ++ratios_;
    if (ratio > worst_) {
      worst_ = ratio;
      worst_case_ = what;
    }
  }
  void expect_as_accurate_as_cublas() {
    if (ratios_ == 0) {
      std::cout << "not compared with cuBLAS: " << Cublas::why_not() << "\n";
      return;
    }
    const double mean = std::exp(log_sum_ / ratios_);
    std::cout << ratios_ << " cases: error / cuBLAS's: geometric mean " << mean << ", worst "
              << worst_ << " (" << worst_case_ << ")\n";
    EXPECT_LE(mean, 1.05);
    EXPECT_LE(worst_, 1.25) << worst_case_;
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<GemmWorkspace> workspace_;
  std::unique_ptr<DeviceCheck> check_;
  std::unique_ptr<Cublas> cublas_;
  DeviceBuffer a_, b_, c_, d_;
  double log_sum_ = 0, worst_ = 0;
  int ratios_ = 0;
  std::string worst_case_;
};

/// Output rounding (half a unit in the last place), and fp32 sums of k products in any order (k u /
/// 2 would be the worst case; on random signs errors grow like sqrt(k)).
double tolerance(const GemmShape& s) {
  const double unit = s.output == DType::bf16 ? 0x1p-8 : s.output == DType::f16 ? 0x1p-11 : 0x1p-24;
  return unit + std::sqrt(static_cast<double>(s.k) + 1) * 0x1p-22;
}

GemmShape shape_of(std::int64_t m, std::int64_t n, std::int64_t k, Major a, Major b,
                   DType operand = DType::bf16, DType output = DType::bf16, bool add = false) {
  GemmShape s;
  s.m = m;
  s.n = n;
  s.k = k;
  s.a = a;
  s.b = b;
  s.operand = operand;
  s.output = output;
  s.accumulate = add;
  return s;
}

TEST_F(CudaGemm, EverySizeInEveryLayout) {
  const std::int64_t sizes[] = {1, 7, 8, 24, 64, 129, 192, 1000, 4095, 50257};
  constexpr std::int64_t kLargest = 400'000'000;  // multiply-adds of a case
  reserve(230'000'000, 230'000'000, DType::bf16, false);
  int plain = 0, cases = 0;
  for (const auto m : sizes) {
    for (const auto n : sizes) {
      for (const auto k : sizes) {
        if (m * n * k > kLargest) continue;
        for (const auto a : kMajors) {
          for (const auto b : kMajors) {
            for (const std::int64_t pad : {-1, 8}) {
              const auto s = shape_of(m, n, k, a, b);
              const auto o = operands(s, pad);
              check_->make_reference(s, o, 0, m);
              const auto what = to_text(s) + (pad < 0 ? " packed" : " padded");
              const auto ours = run(s, o, nullptr);
              ASSERT_EQ(ours.not_finite, 0) << what;
              ASSERT_LE(ours.relative, tolerance(s)) << what;
              plain += Gemm(s, o, *workspace_).is_plain();
              ++cases;
              // cuBLAS has been seen to pick kernels of every kind; compare where errors average.
              if (cublas_ && m * n >= 4096) collect(what, ours, run_cublas(s, o));
            }
          }
        }
      }
    }
  }
  std::cout << cases << " cases, " << plain << " on the plain kernel\n";
  expect_as_accurate_as_cublas();
}

TEST_F(CudaGemm, EveryConfigurationLayoutAndOutput) {
  reserve(20'000'000, 16'000'000, DType::bf16, false);
  struct Types {
    DType operand, output;
    bool add;
  };
  const Types types[] = {{DType::bf16, DType::bf16, false},
                         {DType::f16, DType::f16, false},
                         {DType::bf16, DType::f32, false},
                         {DType::f16, DType::f32, true}};
  const std::int64_t sizes[][3] = {{4032, 3008, 712},  {1000, 1000, 4096}, {129, 520, 136},
                                   {2048, 2304, 1096}, {64, 8, 40},        {3, 5000, 64},
                                   {520, 136, 264},    {200, 1000, 1000}};
  std::vector<GemmShape> variants;
  for (const auto& type : types) {
    for (const auto a : kMajors) {
      for (const auto b : kMajors) {
        variants.push_back(shape_of(64, 64, 64, a, b, type.operand, type.output, type.add));
      }
    }
  }
  prepare(variants);
  for (const auto& type : types) {
    check_->fill(a_.pointer(), type.operand, 20'000'000, 21);
    check_->fill(b_.pointer(), type.operand, 20'000'000, 22);
    for (const auto& size : sizes) {
      for (const auto a : kMajors) {
        for (const auto b : kMajors) {
          const auto s =
              shape_of(size[0], size[1], size[2], a, b, type.operand, type.output, type.add);
          const auto o = operands(s, 8);
          check_->make_reference(s, o, 0, s.m);
          const ErrorReport theirs = cublas_ ? run_cublas(s, o) : ErrorReport{};
          for (const auto& config : gemm_candidates()) {
            const auto what = to_text(s) + " " + config.name;
            const auto ours = run(s, o, &config);
            EXPECT_EQ(ours.not_finite, 0) << what;
            EXPECT_LE(ours.relative, tolerance(s)) << what;
            if (cublas_ && s.m * s.n >= 4096) collect(what, ours, theirs);
          }
        }
      }
    }
  }
  expect_as_accurate_as_cublas();
}

void CudaGemm::run_small_shapes(const std::vector<GemmConfig>& configs) {
  reserve(400'000, 400'000, DType::bf16, false);
  const std::vector<GemmShape> shapes = {
      shape_of(136, 264, 200, Major::k, Major::k),
      shape_of(136, 264, 520, Major::mn, Major::mn, DType::bf16, DType::f32)};
  prepare(shapes, configs);
  for (const auto& s : shapes) {
    const auto o = operands(s, 8);
    check_->make_reference(s, o, 0, s.m);
    for (const auto& config : configs) {
      const auto report = run(s, o, &config);
      EXPECT_EQ(report.not_finite, 0) << config.name;
      EXPECT_LE(report.relative, tolerance(s)) << config.name;
    }
  }
}

TEST_F(CudaGemm, SmallShapesThroughEveryConfiguration) { run_small_shapes(gemm_candidates()); }

/// Every path of the mainloop, for compute-sanitizer (scripts/sanitize_gpu.sh).
TEST_F(CudaGemm, SmallShapesOfEachKind) {
  std::vector<GemmConfig> kinds;
  for (const char* name : {"coop_128x256_2x1", "coop_128x256_2x1_at_once", "coop_256x128_1x2",
                           "coop_128x64_split", "pp_128x128", "pp_128x192_1x2"}) {
    kinds.push_back(gemm_candidate(name));
  }
  run_small_shapes(kinds);
}

TEST_F(CudaGemm, RepeatsBitForBit) {
  reserve(40'000'000, 34'000'000, DType::bf16, false);
  const std::vector<GemmShape> shapes = {
      shape_of(3000, 3008, 4096, Major::k, Major::k),
      shape_of(520, 640, 16384, Major::mn, Major::mn, DType::bf16, DType::f32),
      // A few tiles more than whole waves: few k-blocks to share out (this once hung).
      shape_of(4095, 8192, 1536, Major::k, Major::k)};
  prepare(shapes);
  for (const auto& config : gemm_candidates()) {
    for (const auto& s : shapes) {
      auto o = operands(s, 0);
      const Gemm first(s, o, *workspace_, &config);
      const auto bytes = static_cast<std::int64_t>(output_bytes(s, o));
      o.c[0].pointer = d_.pointer();
      const Gemm second(s, o, *workspace_, &config);
      poison(c_.pointer(), bytes);
      first.launch(*stream_);
      for (int i = 0; i < 6; ++i) {
        poison(d_.pointer(), bytes);
        second.launch(*stream_);
        EXPECT_EQ(check_->count_differences(c_.pointer(), d_.pointer(), bytes), 0u)
            << config.name << " run " << i;
      }
    }
  }
}

TEST_F(CudaGemm, ExactOnIntegers) {
  if (!cublas_) GTEST_SKIP() << Cublas::why_not();
  reserve(20'000'000, 8'000'000, DType::bf16, true);
  std::vector<GemmShape> variants;
  for (const auto a : kMajors) {
    for (const auto b : kMajors) {
      for (const auto output : {DType::bf16, DType::f32}) {
        variants.push_back(shape_of(1000, 1032, 4096, a, b, DType::bf16, output));
      }
    }
  }
  prepare(variants);
  for (const auto& config : gemm_candidates()) {
    for (const auto a : kMajors) {
      for (const auto b : kMajors) {
        for (const auto output : {DType::bf16, DType::f32}) {
          const auto s = shape_of(1000, 1032, 4096, a, b, DType::bf16, output);
          auto o = operands(s, 0);
          const auto bytes = static_cast<std::int64_t>(output_bytes(s, o));
          poison(c_.pointer(), bytes);
          poison(d_.pointer(), bytes);
          Gemm(s, o, *workspace_, &config).launch(*stream_);
          o.c[0].pointer = d_.pointer();
          cublas_->gemm(s, o);
          EXPECT_EQ(check_->count_differences(c_.pointer(), d_.pointer(), bytes), 0u)
              << to_text(s) << " " << config.name;
        }
      }
    }
  }
}

TEST_F(CudaGemm, WritesNothingOutsideAndAddsInPlace) {
  // Integers: sums are exact, in whatever order.
  reserve(2'000'000, 2'000'000, DType::bf16, true);
  for (const auto& config : gemm_candidates()) {
    for (const std::int64_t pad : {8, 3}) {  // 3: rows that TMA cannot address
      const auto plain_s = shape_of(333, 264, 200, Major::k, Major::k, DType::bf16, DType::f32);
      auto o = operands(plain_s, 8);
      o.c[0].stride = 264 + pad;
      const auto bytes = output_bytes(plain_s, o);
      std::vector<float> stored(bytes / 4), added(bytes / 4);
      const auto read = [&](std::vector<float>& to) {
        check(driver().memcpy_dtoh_async(to.data(), c_.pointer(), bytes, stream_->handle()),
              "copy");
        stream_->synchronize();
      };
      poison(c_.pointer(), bytes);
      Gemm(plain_s, o, *workspace_, &config).launch(*stream_);
      read(stored);
      auto add_s = plain_s;
      add_s.accumulate = true;
      Gemm(add_s, o, *workspace_, &config).launch(*stream_);
      read(added);
      for (std::int64_t row = 0; row < 333; ++row) {
        for (std::int64_t column = 0; column < o.c[0].stride; ++column) {
          const auto at = row * o.c[0].stride + column;
          if (column < 264) {
            ASSERT_EQ(added[at], stored[at] + stored[at])
                << config.name << " " << row << "," << column;
          } else {
            std::uint32_t bits;
            std::memcpy(&bits, &added[at], 4);
            ASSERT_EQ(bits, 0xffffffffu) << config.name << " pad " << row << "," << column;
          }
        }
      }
    }
  }
}

TEST_F(CudaGemm, OddOutputRowsTakeTheDirectPath) {
  reserve(20'000'000, 16'000'000, DType::bf16, false);
  for (const auto& config : gemm_candidates()) {
    for (const auto output : {DType::bf16, DType::f32}) {
      const auto s = shape_of(700, 4095, 520, Major::k, Major::k, DType::bf16, output);
      auto o = operands(s, 8);
      o.c[0].stride = 4095;
      check_->make_reference(s, o, 0, s.m);
      const auto ours = run(s, o, &config);
      EXPECT_EQ(ours.not_finite, 0) << config.name;
      EXPECT_LE(ours.relative, tolerance(s)) << config.name;
    }
  }
}

TEST_F(CudaGemm, ListsOfBlocksEqualOneMatrix) {
  reserve(20'000'000, 16'000'000, DType::bf16, false);
  for (const char* name :
       {"coop_128x256_2x1", "coop_256x128_1x2", "pp_128x128", "pp_128x192_1x2"}) {
    const GemmConfig& config = gemm_candidate(name);
    const auto compare = [&](const GemmShape& s, const GemmOperands& whole, GemmOperands list) {
      const auto bytes = static_cast<std::int64_t>(output_bytes(s, whole));
      poison(c_.pointer(), bytes, s.accumulate ? 0 : 0xff);
      poison(d_.pointer(), bytes, s.accumulate ? 0 : 0xff);
      Gemm(s, whole, *workspace_, &config).launch(*stream_);
      for (auto& c : list.c) c.pointer += d_.pointer() - c_.pointer();
      Gemm(s, list, *workspace_, &config).launch(*stream_);
      EXPECT_EQ(check_->count_differences(c_.pointer(), d_.pointer(), bytes), 0u)
          << name << " " << to_text(s);
    };
    // Rows of a K-major B: q, k and v with 1032, 136 and 248 rows.
    {
      const auto s = shape_of(1000, 1416, 520, Major::k, Major::k);
      const auto whole = operands(s, 0);
      auto list = whole;
      list.b.clear();
      std::int64_t row = 0;
      for (const std::int64_t rows : {1032, 136, 248}) {
        auto block = whole.b[0];
        block.pointer += row * block.stride * 2;
        block.rows = rows;
        list.b.push_back(block);
        row += rows;
      }
      compare(s, whole, list);
    }
    // Rows of an N-major B lie along K.
    {
      const auto s = shape_of(1000, 520, 1416, Major::k, Major::mn);
      const auto whole = operands(s, 0);
      auto list = whole;
      list.b.clear();
      std::int64_t row = 0;
      for (const std::int64_t rows : {1024, 128, 264}) {
        auto block = whole.b[0];
        block.pointer += row * block.stride * 2;
        block.rows = rows;
        list.b.push_back(block);
        row += rows;
      }
      compare(s, whole, list);
    }
    // Rows of C: weight gradients of several matrices, added in place.
    {
      const auto s = shape_of(1416, 520, 1000, Major::mn, Major::mn, DType::bf16, DType::f32, true);
      const auto whole = operands(s, 0);
      auto list = whole;
      list.c.clear();
      std::int64_t row = 0;
      for (const std::int64_t rows : {1032, 136, 248}) {
        auto block = whole.c[0];
        block.pointer += row * block.stride * 4;
        block.rows = rows;
        list.c.push_back(block);
        row += rows;
      }
      compare(s, whole, list);
    }
  }
}

TEST_F(CudaGemm, Fp32OperandsAreAsAccurateAsCublas) {
  reserve(20'000'000, 16'000'000, DType::f32, false);
  for (const auto& size : {std::array{1000, 1000, 4095}, std::array{129, 1000, 50257 / 8},
                           std::array{64, 192, 64}, std::array{4095, 129, 1000}}) {
    for (const auto a : kMajors) {
      for (const auto b : kMajors) {
        const auto s = shape_of(size[0], size[1], size[2], a, b, DType::f32, DType::f32);
        const auto o = operands(s, -1);
        check_->make_reference(s, o, 0, s.m);
        const auto ours = run(s, o, nullptr);
        EXPECT_EQ(ours.not_finite, 0);
        EXPECT_LE(ours.relative, tolerance(s));
        if (cublas_) collect(to_text(s), ours, run_cublas(s, o));
      }
    }
  }
  expect_as_accurate_as_cublas();
}

TEST_F(CudaGemm, EmptyProducts) {
  reserve(1'000'000, 1'000'000, DType::bf16, false);
  const auto zero_k = shape_of(100, 72, 0, Major::k, Major::k);
  const auto o = operands(zero_k, -1);
  check_->make_reference(zero_k, o, 0, 100);
  const auto report = run(zero_k, o, nullptr);
  EXPECT_EQ(report.not_finite, 0);
  EXPECT_EQ(report.relative, 0);
  for (const auto& s :
       {shape_of(0, 8, 8, Major::k, Major::k), shape_of(8, 0, 8, Major::k, Major::k)}) {
    Gemm(s, operands(s, -1), *workspace_).launch(*stream_);
  }
  stream_->synchronize();
}

TEST_F(CudaGemm, ShapesThatDoNotFitAreErrors) {
  reserve(1'000'000, 1'000'000, DType::bf16, false);
  const auto s = shape_of(64, 72, 80, Major::k, Major::k);
  auto o = operands(s, -1);
  o.a.columns = 79;
  EXPECT_THROW(Gemm(s, o, *workspace_), UsageError);
  auto add = s;
  add.accumulate = true;
  EXPECT_THROW(Gemm(add, operands(s, -1), *workspace_), UsageError);
}

// Two streams at once, each with its own workspace: claims and hand-overs of one launch see SMs
// that the other takes away.
TEST_F(CudaGemm, RightBesideAnotherKernel) {
  reserve(40'000'000, 16'000'000, DType::bf16, false);
  Stream other;
  const GemmWorkspace other_workspace(other);
  for (const auto& config : gemm_candidates()) {
    const auto s = shape_of(2056, 3080, 2048, Major::k, Major::k);
    auto o = operands(s, 0);
    const auto bytes = static_cast<std::int64_t>(output_bytes(s, o));
    const Gemm first(s, o, *workspace_, &config);
    o.c[0].pointer = d_.pointer();
    const Gemm second(s, o, other_workspace, &config);
    poison(c_.pointer(), bytes);
    poison(d_.pointer(), bytes);
    stream_->synchronize();
    for (int i = 0; i < 20; ++i) {
      first.launch(*stream_);
      second.launch(other);
    }
    stream_->synchronize();
    other.synchronize();
    EXPECT_EQ(check_->count_differences(c_.pointer(), d_.pointer(), bytes), 0u) << config.name;
    check_->make_reference(s, o, 0, s.m);
    const auto report = check_->compare(o.c[0], s.output);
    EXPECT_EQ(report.not_finite, 0) << config.name;
    EXPECT_LE(report.relative, tolerance(s)) << config.name;
  }
}

TEST_F(CudaGemm, RunsInAGraph) {
  reserve(40'000'000, 16'000'000, DType::bf16, false);
  for (const auto& config : gemm_candidates()) {
    const auto s = shape_of(2056, 3080, 2048, Major::k, Major::k);
    const auto o = operands(s, 0);
    const Gemm gemm(s, o, *workspace_, &config);
    const auto graph = Graph::capture(*stream_, [&] {
      gemm.launch(*stream_);
      gemm.launch(*stream_);
    });
    poison(c_.pointer(), output_bytes(s, o));
    for (int i = 0; i < 3; ++i) graph.launch(*stream_);
    check_->make_reference(s, o, 0, s.m);
    const auto report = check_->compare(o.c[0], s.output);
    EXPECT_EQ(report.not_finite, 0) << config.name;
    EXPECT_LE(report.relative, tolerance(s)) << config.name;
  }
}

TEST_F(CudaGemm, ArenaHandsOutAlignedPieces) {
  Arena arena(4096);
  const auto first = arena.take(100);
  const auto second = arena.take(1);
  EXPECT_EQ(second - first, 256u);
  EXPECT_THROW(arena.take(4096), BackendError);
  arena.reset();
  EXPECT_EQ(arena.take(4096), first);
}

}  // namespace
}  // namespace coda::cuda
