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

double square_sum(std::span<const float> values) {
  // Eight sums side by side: vectorises without leave to reorder, and is the same everywhere.
  double lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i + lane < values.size(); ++lane) {
    const double value = values[i + lane];
    lanes[lane] += value * value;
  }
  double total = 0.0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

AdamW::AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options, Backend* host)
    : parameters_(parameters), options_(options), host_(host) {
  hold_on_host();
}

void AdamW::hold_on_host() {
  constexpr std::size_t kChunk = 1 << 16;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t size = parameters_[i].value.size();
    first_.emplace_back(size);
    second_.emplace_back(size);
    for (std::size_t begin = 0; begin < size; begin += kChunk)
      chunks_.push_back({i, begin, std::min(kChunk, size - begin)});
  }
  square_sums_.resize(chunks_.size());
}

void AdamW::for_each_chunk(const std::function<void(std::size_t)>& body) {
  const auto count = static_cast<std::int64_t>(chunks_.size());
  const auto chunk = [&](std::int64_t index) { body(static_cast<std::size_t>(index)); };
  if (host_ != nullptr) return host_->parallel_for(count, chunk);
  for (std::int64_t index = 0; index < count; ++index) chunk(index);
}

AdamW::AdamW(Model& model, const AdamWOptions& options)
    : parameters_(model.parameters()), options_(options), host_(model.host()) {
  Backend* device = model.device();
  if (device == nullptr) {
    hold_on_host();
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
  if (device_) return std::sqrt(device_->gradient_square_sum());
  for_each_chunk([&](std::size_t i) {
    const Chunk& c = chunks_[i];
    square_sums_[i] = square_sum(parameters_[c.parameter].gradient.subspan(c.begin, c.count));
  });
  double total = 0.0;
  for (const double sum : square_sums_) total += sum;
  return std::sqrt(total);
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
  for_each_chunk([&](std::size_t i) {
    const Chunk& c = chunks_[i];
    const Parameter& p = parameters_[c.parameter];
    AdamWStep of_tensor = u;
    const double decay = p.shape.size() >= 2 ? options_.weight_decay : 0.0;
    of_tensor.keep = static_cast<float>(1.0 - learning_rate * decay);
    update_all(of_tensor, c.count, p.value.data() + c.begin, p.gradient.data() + c.begin,
               first_[c.parameter].data() + c.begin, second_[c.parameter].data() + c.begin);
  });
}

double Schedule::at(std::int64_t step) const {
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (steps <= warmup) return peak;
  const double done =
      std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(steps - warmup));
  return least + 0.5 * (peak - least) * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace coda
