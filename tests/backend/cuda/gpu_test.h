// Base of tests that need a GPU: skipped, with the reason, unless CODA_TEST_GPU=1 and one is there.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/cuda/driver.h"

namespace coda::cuda {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* wanted = std::getenv("CODA_TEST_GPU");
    if (!wanted || std::string(wanted) != "1") {
      GTEST_SKIP() << "needs a GPU: set CODA_TEST_GPU=1 (scripts/test.sh --gpu)";
    }
    if (!why_no_gpu().empty()) FAIL() << "CODA_TEST_GPU=1, but: " << why_no_gpu();
  }
};

}  // namespace coda::cuda
