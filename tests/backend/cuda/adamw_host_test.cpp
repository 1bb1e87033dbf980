// AdamW's kernel: the text that a GPU would get, compiled for the host and run there, has the
// optimiser's operations bit for bit, whether a weight is one fp32 or two halves.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "backend/cuda/adamw.h"
#include "backend/cuda/device/adamw_params.cuh"
#include "backend/cuda/host_kernel.h"
#include "base/convert.h"
#include "base/split_f32.h"

namespace coda::cuda {
namespace {

using coda_device::AdamWCoefficients;
using coda_device::AdamWEntry;
using coda_device::AdamWRun;
using coda_device::kAdamWRun;

constexpr AdamWCoefficients kStep{0.5f, 0.9f, 0.95f, 0.01f, 1.5f, 1e-8f, 0.999f};

/// One tensor on the host, with room behind it that must stay as it is.
struct Weights {
  explicit Weights(std::size_t count) : count(count) {
    std::mt19937 random(static_cast<unsigned>(count));
    const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000.0f - 1.0f; };
    for (auto* values : {&value, &gradient, &first, &second})
      for (std::size_t i = 0; i < count + 8; ++i) values->push_back(uniform());
    for (float& v : second) v = std::abs(v);
    if (count > 4) value[3] = std::numeric_limits<float>::quiet_NaN();
    rounded.assign(count + 8, 0x7e7e);
    low.assign(count + 8, 0x7e7e);
  }
  std::size_t count;
  std::vector<float> value, gradient, first, second;
  std::vector<std::uint16_t> rounded;
  std::vector<std::int16_t> low;
};

void update(const HostKernel& kernel, Weights& w, bool halves) {
  const AdamWEntry entry{halves ? nullptr : w.value.data(),
                         w.gradient.data(),
                         w.first.data(),
                         w.second.data(),
                         w.rounded.data(),
                         halves ? w.low.data() : nullptr,
                         static_cast<long long>(w.count),
                         1,
                         1};
  std::vector<AdamWRun> runs;
  for (long long at = 0; at < entry.count; at += kAdamWRun) runs.push_back({at, 0});
  const AdamWEntry* entries = &entry;
  const AdamWRun* first_run = runs.data();
  const void* const arguments[] = {&entries, &first_run, &kStep};
  kernel.launch(static_cast<unsigned>(runs.size()), 256, arguments);
}

TEST(CudaAdamWHost, WholeAndSplitWeightsHaveTheBitsOfTheOptimiser) {
  const HostKernel kernel(adamw_source("coda_adamw"));
  for (const std::size_t count : {1u, 3u, 1025u, 17001u}) {
    Weights whole(count), split(count);
    const Weights before(count);
    for (std::size_t i = 0; i < count; ++i) {
      const SplitF32 halves = split_f32(split.value[i]);
      split.rounded[i] = halves.rounded;
      split.low[i] = halves.low;
    }
    update(kernel, whole, false);
    update(kernel, split, true);
    for (std::size_t i = 0; i < count; ++i) {
      const float g = before.gradient[i] * kStep.scale;
      const float m = kStep.beta1 * before.first[i] + (1.0f - kStep.beta1) * g;
      const float v = kStep.beta2 * before.second[i] + (1.0f - kStep.beta2) * g * g;
      const float want = kStep.keep * before.value[i] -
                         kStep.size * m / (kStep.root_scale * std::sqrt(v) + kStep.eps);
      const float joined = join_f32({split.rounded[i], split.low[i]});
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(whole.value[i]) && std::isnan(joined) &&
                    std::isnan(f32_from_bf16(split.rounded[i])));
        continue;
      }
      ASSERT_EQ(whole.value[i], want) << count << " " << i;
      ASSERT_EQ(whole.rounded[i], bf16_from_f32(want));
      ASSERT_EQ(joined, want) << count << " " << i;
      ASSERT_EQ(split.rounded[i], split_f32(want).rounded);
      ASSERT_EQ(split.first[i], m);
      ASSERT_EQ(split.second[i], v);
    }
    for (std::size_t i = count; i < count + 8; ++i) {
      EXPECT_EQ(split.rounded[i], 0x7e7e);
      EXPECT_EQ(split.low[i], 0x7e7e);
      EXPECT_EQ(split.first[i], before.first[i]);
    }
  }
}

}  // namespace
}  // namespace coda::cuda
