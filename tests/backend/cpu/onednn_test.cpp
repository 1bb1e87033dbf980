// Products through oneDNN, whatever the processor would choose, against the reference backend.
#include <cstdlib>
#include <filesystem>

#include "backend/cpu/harness.h"
#include "coda/error.h"

namespace coda::testing {
namespace {

void check(const Make& make, RunOptions options, double terms = 0) {
  Chain chain;
  chain.add(make.program);
  check_chain(chain, options, terms, CpuGemm::onednn);
}

/// The types that oneDNN multiplies on this processor: f32, and 16-bit types that it has.
std::vector<DType> types() {
  const CpuGemmInfo info = cpu_gemm_info(CpuGemm::onednn);
  std::vector<DType> out = {DType::f32};
  if (info.bf16 == "oneDNN") out.push_back(DType::bf16);
  if (info.f16 == "oneDNN") out.push_back(DType::f16);
  return out;
}

// Inputs are multiples of 1/16 and sums stay below 2^24 of them: results are exact in fp32.
TEST(CpuOneDnn, StoresAccAtRaggedSizesInEveryLayout) {
  for (const DType dtype : types()) {
    for (const i64 m : {0, 1, 33, 129, 257, 300}) {
      for (const i64 n : {1, 31, 257, 600}) {
        for (const i64 k : {0, 1, 64, 97, 600, 1100}) {
          if ((m + n + k) % 3 != 0) continue;  // a third is enough
          for (const int layout : {0, 1, 2}) {
            Make make("store_acc", Form::gemm, n);
            const i32 acc = layout == 0   ? make.gemm_nt(k, {n}, dtype)
                            : layout == 1 ? make.gemm_nn({k}, dtype)
                                          : make.gemm_tn(k, dtype);
            make.store("y", acc);
            RunOptions options;
            options.tokens = m;
            options.strided = n % 2 == 1;
            check(make, options);
          }
        }
      }
    }
  }
}

// Panels are read where they lie unless a stride, a seam or an edge is in the way.
TEST(CpuOneDnn, DensePanelsGiveWhatCopiesGive) {
  for (const DType dtype : types()) {
    for (const auto& blocks : {std::vector<i64>{256}, {128, 128}, {1536, 256}}) {
      i64 n = 0;
      for (const i64 rows : blocks) n += rows;
      Make nt("dense_nt", Form::gemm, n);
      nt.store("y", nt.gemm_nt(256, blocks, dtype));
      Make nn("dense_nn", Form::gemm, 256);
      nn.store("y", nn.gemm_nn(blocks, dtype));
      Make tn("dense_tn", Form::gemm, 256);
      tn.store("y", tn.gemm_tn(n, dtype));
      for (const i64 m : {512, 545}) {
        for (const bool strided : {false, true}) {
          RunOptions options;
          options.tokens = m;
          options.strided = strided;
          for (const Make* make : {&nt, &nn, &tn}) check(*make, options);
        }
      }
    }
  }
}

TEST(CpuOneDnn, ManyTilesOfOneProductDoNotDependOnThreads) {
  for (const DType dtype : types()) {
    Make make("many_tiles", Form::gemm, 1536);
    const i32 acc = make.gemm_nt(200, {1536}, dtype);
    make.store("y", acc);
    make.partial("sums", Op::row_sum, {acc});
    RunOptions options;
    options.tokens = 1500;
    check(make, options, 64);
  }
}

TEST(CpuOneDnn, StartsNoThreads) {
  const auto count = [] {
    using Folder = std::filesystem::directory_iterator;
    return std::distance(Folder("/proc/self/task"), Folder());
  };
  Make make("threads", Form::gemm, 1024);
  make.store("y", make.gemm_nt(512, {1024}, DType::f32));
  Chain chain;
  chain.add(make.program);
  RunOptions options;
  options.tokens = 600;
  const auto before = count();
  const auto backend = make_cpu_backend(3, CpuGemm::onednn);
  run_plan(*backend, chain.plan(), options);
  EXPECT_EQ(count() - before, 2);
}

TEST(CpuOneDnn, TakesRowBlocksOfB) {
  for (const DType dtype : types()) {
    Make nt("blocks_nt", Form::gemm, 75);
    nt.store("y", nt.gemm_nt(40, {7, 1, 16, 51}, dtype));
    Make nn("blocks_nn", Form::gemm, 75);
    nn.store("y", nn.gemm_nn({7, 1, 700, 51}, dtype));
    for (const i64 m : {1, 24, 129}) {
      RunOptions options;
      options.tokens = m;
      check(nt, options);
      check(nn, options);
    }
  }
}

TEST(CpuOneDnn, SectionsOfSeveralBlocksShareTheirRows) {
  for (const DType dtype : types()) {
    for (const i64 f : {7, 97, 257}) {
      Make make("swiglu", Form::gemm, 2 * f);
      const i32 acc = make.gemm_nt(24, {f, f}, dtype);
      const i32 gate = make.cols(acc, 0, f), up = make.cols(acc, f, 2 * f);
      make.store("hidden", make.op(Op::mul, {make.op(Op::sigmoid, {gate}), up}));
      RunOptions options;
      options.tokens = 129;
      check(make, options, 8);
    }
  }
}

TEST(CpuOneDnn, WeightGradientsGoToRowBlocksAndAccumulate) {
  for (const DType dtype : types()) {
    for (const i64 m : {0, 1, 24, 600}) {
      Make make("d_weights", Form::gemm, 40);
      const i32 acc = make.gemm_tn(30 + 129 + 7, dtype);
      make.store("d_w0", make.rows(acc, 0, 30));
      make.store("d_w1", make.rows(acc, 30, 159), DType::f32, true);
      make.store("d_w2", make.rows(acc, 159, 166), DType::bf16);
      RunOptions options;
      options.tokens = m;
      options.strided = true;
      check(make, options);
    }
  }
}

TEST(CpuOneDnn, ItIsTheBuiltInKernelThatMultipliesOneRow) {
  for (const DType dtype : types()) {
    Make make("one_row", Form::gemm, 600);
    make.store("y", make.gemm_nt(1100, {600}, dtype));
    Chain chain;
    chain.add(make.program);
    RunOptions options;
    options.tokens = 1;
    options.max_tokens = 300;
    for (const char* name : {"a", "b0"})  // sums that are not exact
      for (int i = 0; i < 997; ++i) options.given[name].push_back(std::sin(i));
    EXPECT_EQ(run_plan(*make_cpu_backend(2, CpuGemm::onednn), chain.plan(), options),
              run_plan(*make_cpu_backend(1, CpuGemm::builtin), chain.plan(), options));
  }
}

TEST(CpuOneDnn, InfinitiesAndNanStayInTheirRows) {
  Make make("special", Form::gemm, 40);
  make.store("y", make.gemm_nt(3, {40}, DType::f32));
  RunOptions options;
  options.tokens = 7;
  options.given["a"] = {1, 2, 3, INFINITY, 1, 1, NAN, 1, 1, 1, -INFINITY, 1, 0, 0, 0};
  check(make, options);
}

TEST(CpuOneDnn, SaysWhatTheProcessorLacks) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const CpuGemmInfo info = cpu_gemm_info(CpuGemm::onednn);
    if ((dtype == DType::bf16 ? info.bf16 : info.f16) == "oneDNN") continue;  // tested above
    Make make("project", Form::gemm, 8);
    make.store("y", make.gemm_nt(8, {8}, dtype));
    Chain chain;
    chain.add(make.program);
    try {
      make_cpu_backend(1, CpuGemm::onednn)->prepare(chain.plan(), 8);
      ADD_FAILURE() << "no error for " << name_of(dtype);
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("program project: CODA_CPU_GEMM=onednn: expected a processor with"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("Set CODA_CPU_GEMM=auto"), std::string::npos) << text;
    }
  }
}

TEST(CpuOneDnn, TheEnvironmentChooses) {
  const char* before = std::getenv("CODA_CPU_GEMM");
  const std::string saved = before ? before : "";
  setenv("CODA_CPU_GEMM", "mkl", 1);
  EXPECT_THROW(make_cpu_backend(1), UsageError);
  EXPECT_THROW(cpu_gemm_info(), UsageError);
  setenv("CODA_CPU_GEMM", "onednn", 1);
  EXPECT_EQ(cpu_gemm_info().f32, "oneDNN");
  setenv("CODA_CPU_GEMM", "builtin", 1);
  EXPECT_EQ(cpu_gemm_info().f32, "built-in");
  EXPECT_EQ(cpu_gemm_info().bf16, "built-in");
  unsetenv("CODA_CPU_GEMM");
  EXPECT_EQ(cpu_gemm_info().f32, "built-in");
  EXPECT_NO_THROW(make_cpu_backend(1));
  if (before) setenv("CODA_CPU_GEMM", saved.c_str(), 1);
}

}  // namespace
}  // namespace coda::testing
