#include "train/adamw.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace coda {
namespace {

void update_all(const AdamWStep& u, std::size_t count, float* __restrict value,
                const float* __restrict gradient, float* __restrict first,
                float* __restrict second) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] * u.scale;
    const float m = u.beta1 * first[i] + (1.0f - u.beta1) * g;
    const float v = u.beta2 * second[i] + (1.0f - u.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    value[i] = u.keep * value[i] - u.size * m / (u.root_scale * std::sqrt(v) + u.eps);
  }
}

}  // namespace

AdamW::AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options)
    : parameters_(parameters), options_(options) {
  for (const Parameter& p : parameters) {
    first_.emplace_back(p.value.size());
    second_.emplace_back(p.value.size());
  }
}

AdamW::AdamW(Model& model, const AdamWOptions& options)
    : parameters_(model.parameters()), options_(options) {
  Backend* device = model.device();
  if (device == nullptr) {
    for (const Parameter& p : parameters_) {
      first_.emplace_back(p.value.size());
      second_.emplace_back(p.value.size());
    }
    return;
  }
  first_.resize(parameters_.size());
  second_.resize(parameters_.size());
  std::vector<AdamWTensor> tensors = model.device_tensors();
  for (AdamWTensor& t : tensors) {
    device_first_.emplace_back(*device, DType::f32, 1, t.count);
    device_second_.emplace_back(*device, DType::f32, 1, t.count);
    t.first = device_first_.back().view().as<float>();
    t.second = device_second_.back().view().as<float>();
  }
  device_ = device->make_adamw(tensors);
}

double AdamW::gradient_norm() {
  return device_ ? std::sqrt(device_->gradient_square_sum()) : coda::gradient_norm(parameters_);
}

std::span<float> AdamW::host(Moments& moments, std::size_t parameter) {
  std::vector<float>& values = moments[parameter];
  if (device_) values.resize(parameters_[parameter].value.size());
  return values;
}

void AdamW::fetch() {
  for (std::size_t i = 0; i < device_first_.size(); ++i) {
    device_first_[i].download(first_moment(i).data());
    device_second_[i].download(second_moment(i).data());
  }
}

void AdamW::moments_changed() {
  for (std::size_t i = 0; i < device_first_.size(); ++i) {
    device_first_[i].upload(first_moment(i).data());
    device_second_[i].upload(second_moment(i).data());
  }
}

void AdamW::update(std::int64_t step, double learning_rate, double gradient_scale) {
  const auto t = static_cast<double>(step);
  AdamWStep u;
  u.scale = static_cast<float>(gradient_scale);
  u.beta1 = static_cast<float>(options_.beta1);
  u.beta2 = static_cast<float>(options_.beta2);
  u.size = static_cast<float>(learning_rate / (1.0 - std::pow(options_.beta1, t)));
  u.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options_.beta2, t)));
  u.eps = static_cast<float>(options_.eps);
  if (device_) {
    u.keep = static_cast<float>(1.0 - learning_rate * options_.weight_decay);
    device_->update(u);
    return;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const double decay = p.shape.size() >= 2 ? options_.weight_decay : 0.0;
    u.keep = static_cast<float>(1.0 - learning_rate * decay);
    update_all(u, p.value.size(), p.value.data(), p.gradient.data(), first_[i].data(),
               second_[i].data());
  }
}

double gradient_norm(const std::vector<Parameter>& parameters) {
  double total = 0.0;
  for (const Parameter& p : parameters) {
    // Eight sums side by side: vectorises without leave to reorder, and is the same everywhere.
    double lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= p.gradient.size(); i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) {
        const double g = p.gradient[i + lane];
        lanes[lane] += g * g;
      }
    }
    for (std::size_t lane = 0; i + lane < p.gradient.size(); ++lane) {
      const double g = p.gradient[i + lane];
      lanes[lane] += g * g;
    }
    for (const double lane : lanes) total += lane;
  }
  return std::sqrt(total);
}

double Schedule::at(std::int64_t step) const {
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (steps <= warmup) return peak;
  const double done =
      std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(steps - warmup));
  return least + 0.5 * (peak - least) * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace coda
