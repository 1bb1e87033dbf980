// Every configuration compiles for sm_90a, without a GPU, and stays within what the kernel assumes.
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/cubin.h"
#include "backend/cuda/gemm_source.h"
#include "backend/cuda/nvrtc.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

class CudaCompile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  }

  /// Compiles all, one a core at a time. `registers`: what each must use at launch; 0: any number.
  void expect_fit(const std::vector<KernelSource>& sources, int registers = 0) {
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    double slowest = 0, total = 0, slowest_cpu = 0, total_cpu = 0;
    std::string slowest_name;
    const auto work = [&] {
      for (std::size_t i = next++; i < sources.size(); i = next++) {
        const auto& source = sources[i];
        std::string problem;
        CubinResources resources;
        double seconds = 0, cpu = 0;
        try {
          const auto compiled = compile_checked(source);  // throws on a stack frame or C75xx
          resources = read_cubin(compiled.cubin, source.entry);
          seconds = compiled.seconds;
          cpu = compiled.cpu_seconds;
        } catch (const std::exception& error) {
          problem = error.what();
        }
        const std::lock_guard lock(mutex);
        EXPECT_EQ(problem, "") << source.name;
        EXPECT_EQ(resources.frame_bytes, 0) << source.name;
        EXPECT_LE(resources.shared_bytes + source.shared_bytes, 232448u) << source.name;
        if (registers > 0) {
          EXPECT_EQ(resources.registers, registers) << source.name;
        }
        slowest = std::max(slowest, seconds);
        total += seconds;
        if (cpu > slowest_cpu) slowest_name = source.name;
        slowest_cpu = std::max(slowest_cpu, cpu);
        total_cpu += cpu;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back(work);
    }
    for (auto& thread : threads) thread.join();
    std::cout << sources.size() << " kernels, NVRTC " << Nvrtc::get().version() << ": mean "
              << total / sources.size() << " s, slowest " << slowest << " s; CPU: mean "
              << total_cpu / sources.size() << " s, slowest " << slowest_cpu << " s ("
              << slowest_name << ")\n";
  }
};

GemmVariant variant_of(Major a, Major b, DType operand = DType::bf16, DType output = DType::bf16,
                       bool accumulate = false, StorePath store = StorePath::tma) {
  GemmVariant variant;
  variant.a = a;
  variant.b = b;
  variant.operand = operand;
  variant.output = output;
  variant.accumulate = accumulate;
  variant.store = store;
  return variant;
}

// 384 threads share 65536 registers: 168 at launch, then 40 and 232 by setmaxnreg.
constexpr int kLaunchRegisters = 168;

TEST_F(CudaCompile, EveryCandidateInEveryLayout) {
  std::vector<KernelSource> sources;
  for (const auto& config : gemm_candidates()) {
    for (const auto a : {Major::k, Major::mn}) {
      for (const auto b : {Major::k, Major::mn}) {
        sources.push_back(gemm_source(config, variant_of(a, b)));
      }
    }
  }
  expect_fit(sources, kLaunchRegisters);
}

TEST_F(CudaCompile, EveryCandidateWithEveryOutput) {
  std::vector<KernelSource> sources;
  for (const auto& config : gemm_candidates()) {
    sources.push_back(gemm_source(config, variant_of(Major::k, Major::mn, DType::f16, DType::f16)));
    sources.push_back(
        gemm_source(config, variant_of(Major::mn, Major::mn, DType::bf16, DType::f32, true)));
    sources.push_back(gemm_source(config, variant_of(Major::k, Major::k, DType::bf16, DType::bf16,
                                                     false, StorePath::direct)));
    sources.push_back(gemm_source(
        config, variant_of(Major::k, Major::k, DType::f16, DType::f32, true, StorePath::direct)));
  }
  expect_fit(sources, kLaunchRegisters);
}

TEST_F(CudaCompile, ListsOfBlocks) {
  std::vector<KernelSource> sources;
  for (const char* name : {"coop_128x256_2x1", "coop_128x256_split", "pp_128x128"}) {
    auto rows_of_b = variant_of(Major::k, Major::k);
    rows_of_b.blocks_n = 3;
    sources.push_back(gemm_source(gemm_candidate(name), rows_of_b));
    auto along_k = variant_of(Major::k, Major::mn);
    along_k.blocks_k = 3;
    sources.push_back(gemm_source(gemm_candidate(name), along_k));
    auto rows_of_c = variant_of(Major::mn, Major::mn, DType::bf16, DType::f32, true);
    rows_of_c.blocks_m = 3;
    sources.push_back(gemm_source(gemm_candidate(name), rows_of_c));
  }
  expect_fit(sources, kLaunchRegisters);
}

TEST_F(CudaCompile, PlainKernelAndHelpers) {
  std::vector<KernelSource> sources;
  for (const auto operand : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto output : {DType::bf16, DType::f16, DType::f32}) {
      sources.push_back(plain_gemm_source(operand, output, false, DType::f32));
    }
    sources.push_back(plain_gemm_source(operand, DType::f32, true, DType::f32));
    sources.push_back(plain_gemm_source(operand, DType::f64, false, DType::f64));
  }
  sources.push_back(probe_source());
  sources.push_back(check_source("coda_fill_bf16"));
  expect_fit(sources);
}

TEST_F(CudaCompile, AnErrorNamesTheKernelAndSavesTheSource) {
  try {
    Nvrtc::get().compile("broken", "extern \"C\" __global__ void f() { undeclared = 1; }");
    FAIL() << "compiled";
  } catch (const BackendError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("nvrtc(broken)"), std::string::npos) << what;
    EXPECT_NE(what.find("undeclared"), std::string::npos) << what;
    EXPECT_NE(what.find("The source is in "), std::string::npos) << what;
  }
}

TEST_F(CudaCompile, AStackFrameIsAnError) {
  KernelSource source{
      "framed", "f",
      "extern \"C\" __global__ void f(int* p, int n) { int a[64]; for (int j = 0; j < n; "
      "++j) a[p[j] & 63] = j; for (int j = 0; j < n; ++j) p[j] += a[p[j + n] & 63]; }",
      0};
  EXPECT_THROW(compile_checked(source), BackendError);
}

TEST_F(CudaCompile, ACubinCutShortIsAnErrorNotACrash) {
  const auto source = check_source("coda_fill_bf16");
  const auto cubin = compile_checked(source).cubin;
  for (std::size_t length = 0; length < cubin.size(); length += 97) {
    const std::string head = cubin.substr(0, length);
    try {
      read_cubin(head, source.entry);
    } catch (const BackendError&) {
    }
  }
  EXPECT_THROW(read_cubin(cubin, "no_such_kernel"), BackendError);
  EXPECT_THROW(read_cubin("not a cubin", "f"), BackendError);
}

}  // namespace
}  // namespace coda::cuda
