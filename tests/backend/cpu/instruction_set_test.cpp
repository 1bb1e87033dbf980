// CODA_CPU caps the instruction set. The kernel tests run under `baseline` as well
// (backend_baseline in CMakeLists.txt), and the command's tests compare runs under every cap.
#include "backend/cpu/instruction_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "coda/error.h"
#include "hwy/targets.h"

namespace coda::cpu {
namespace {

TEST(CpuInstructionSet, CapsFollowOneAnother) {
  EXPECT_EQ(forbidden_targets("auto"), 0);
#if HWY_ARCH_X86
  const auto avx512 = forbidden_targets("avx512"), avx2 = forbidden_targets("avx2"),
             baseline = forbidden_targets("baseline");
  EXPECT_EQ(avx512 & HWY_AVX3, 0);
  EXPECT_EQ(avx2 & HWY_AVX2, 0);
  EXPECT_EQ(avx2 & (HWY_AVX3 | avx512), HWY_AVX3 | avx512);
  EXPECT_EQ(baseline & (HWY_AVX2 | HWY_SSE4 | avx2), HWY_AVX2 | HWY_SSE4 | avx2);
  EXPECT_EQ(baseline & HWY_STATIC_TARGET, 0);
#endif
}

TEST(CpuInstructionSet, AnUnknownCapIsAnError) {
  try {
    forbidden_targets("AVX2");
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("CODA_CPU: expected one of auto"));
    EXPECT_THAT(error.what(), testing::HasSubstr("got \"AVX2\""));
  }
}

// The kernels that were chosen are those that the name promises.
TEST(CpuInstructionSet, NothingForbiddenIsChosen) {
  kernels();
  const char* value = std::getenv("CODA_CPU");
  const auto forbidden = forbidden_targets(value ? value : "auto");
  EXPECT_EQ(hwy::SupportedTargets() & forbidden, 0);
  const std::string name = cpu_instruction_set();
  if (value && forbidden != 0) {
    EXPECT_THAT(name, testing::EndsWith("(CODA_CPU=" + std::string(value) + ")"));
  }
  if (std::string(value ? value : "") == "baseline") {
    EXPECT_THAT(name, testing::StartsWith("the compiler's baseline"));
  }
}

}  // namespace
}  // namespace coda::cpu
