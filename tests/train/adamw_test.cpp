#include "train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "train/bigram_model.h"
#include "train/random.h"

namespace coda {
namespace {

TEST(AdamW, MatchesTheTextbookInDouble) {
  BigramModel model(5);
  const AdamWOptions options{0.9, 0.95, 1e-8, 0.1};
  AdamW optimizer(model.parameters(), options);
  const CounterRandom random(0, 0);
  std::vector<std::vector<double>> value, first, second;
  for (const Parameter& p : model.parameters()) {
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      p.value[i] = static_cast<float>(random.normal(i));
    }
    value.emplace_back(p.value.begin(), p.value.end());
    first.emplace_back(p.value.size());
    second.emplace_back(p.value.size());
  }
  constexpr int kSteps = 20;
  constexpr double kRate = 1e-2, kScale = 0.5;
  for (int step = 1; step <= kSteps; ++step) {
    for (std::size_t k = 0; k < value.size(); ++k) {
      const Parameter& p = model.parameters()[k];
      const double decay = k == 0 ? options.weight_decay : 0.0;  // not of the bias
      for (std::size_t i = 0; i < p.value.size(); ++i) {
        p.gradient[i] = static_cast<float>(random.normal(1000u * static_cast<unsigned>(step) + i));
        const double g = kScale * p.gradient[i];
        double& m = first[k][i];
        double& v = second[k][i];
        m = options.beta1 * m + (1 - options.beta1) * g;
        v = options.beta2 * v + (1 - options.beta2) * g * g;
        const double m_hat = m / (1 - std::pow(options.beta1, step));
        const double v_hat = v / (1 - std::pow(options.beta2, step));
        value[k][i] -= kRate * (decay * value[k][i] + m_hat / (std::sqrt(v_hat) + options.eps));
      }
    }
    optimizer.update(step, kRate, kScale);
  }
  // Each fp32 step rounds the value once (2^-24 of |value| < 4) and the update of size <= ~kRate a
  // few times; the moments' rounding, 2^-24 a step, is damped by the decay.
  const double bound = kSteps * (4.0 * 0x1p-24 + kRate * 32 * 0x1p-24);
  for (std::size_t k = 0; k < value.size(); ++k) {
    for (std::size_t i = 0; i < value[k].size(); ++i) {
      EXPECT_NEAR(model.parameters()[k].value[i], value[k][i], bound) << k << " " << i;
    }
  }
}

TEST(AdamW, GradientNormCoversAllParameters) {
  BigramModel model(5);  // 25 and 5 elements: not multiples of eight
  double expected = 0.0;
  float next = 0.5f;
  for (const Parameter& p : model.parameters()) {
    for (float& g : p.gradient) {
      g = next;
      expected += static_cast<double>(next) * next;
      next += 0.25f;
    }
  }
  EXPECT_NEAR(AdamW(model.parameters(), {}).gradient_norm(), std::sqrt(expected), 1e-13 * expected);
}

// Tensors of several chunks and of a part of one.
TEST(AdamW, NoBitDependsOnThreads) {
  constexpr std::size_t kSizes[] = {200003, 7, 65536};
  std::vector<std::vector<float>> values[3];
  double norms[3] = {};
  for (const int run : {0, 1, 2}) {
    std::vector<std::vector<float>> value, gradient;
    std::vector<Parameter> parameters;
    const CounterRandom random(3, 0);
    for (const std::size_t size : kSizes) {
      value.emplace_back(size);
      gradient.emplace_back(size);
      for (std::size_t i = 0; i < size; ++i) {
        value.back()[i] = static_cast<float>(random.normal(i));
        gradient.back()[i] = static_cast<float>(random.normal(size + i));
      }
    }
    for (std::size_t i = 0; i < value.size(); ++i)
      parameters.push_back({"w", {static_cast<std::int64_t>(kSizes[i]), 1}, value[i], gradient[i]});
    const auto backend = make_cpu_backend(run == 1 ? 1 : 5);
    AdamW optimizer(parameters, {}, run == 0 ? nullptr : backend.get());
    norms[run] = optimizer.gradient_norm();
    for (int step = 1; step <= 3; ++step) optimizer.update(step, 1e-2, 1 / norms[run]);
    values[run] = value;
  }
  double sum = 0.0;
  const CounterRandom random(3, 0);
  for (const std::size_t size : kSizes) {
    for (std::size_t i = 0; i < size; ++i) {
      const double g = static_cast<float>(random.normal(size + i));
      sum += g * g;
    }
  }
  EXPECT_NEAR(norms[0], std::sqrt(sum), 1e-12 * std::sqrt(sum));
  for (const int run : {1, 2}) {
    EXPECT_EQ(norms[run], norms[0]);
    EXPECT_EQ(values[run], values[0]);
  }
}

TEST(Schedule, WarmsUpThenFallsAsACosine) {
  const Schedule s{1.0, 0.1, 10, 110};
  EXPECT_DOUBLE_EQ(s.at(1), 0.1);
  EXPECT_DOUBLE_EQ(s.at(5), 0.5);
  EXPECT_DOUBLE_EQ(s.at(10), 1.0);
  EXPECT_DOUBLE_EQ(s.at(60), 0.55);
  EXPECT_DOUBLE_EQ(s.at(110), 0.1);
  EXPECT_DOUBLE_EQ(s.at(200), 0.1);
  EXPECT_DOUBLE_EQ((Schedule{1.0, 0.0, 0, 4}).at(4), 0.0);
  EXPECT_DOUBLE_EQ((Schedule{1.0, 0.0, 5, 5}).at(5), 1.0);
}

}  // namespace
}  // namespace coda
