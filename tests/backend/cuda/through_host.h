// A backend whose memory is not the host's, as one that tests may bind host memory to: everything
// bound goes there before a run and what was written comes back after it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/backend_tensor.h"

namespace coda::testing {

class ThroughHostSession final : public Session {
 public:
  ThroughHostSession(Backend& device, std::shared_ptr<const Plan> plan, std::int64_t max_tokens)
      : device_(device), plan_(plan), session_(device.prepare(plan, max_tokens)) {}

  void bind(std::string_view name, const TensorView& view) override {
    Bound& bound = bound_[std::string(name)];
    bound.host = view;
    // The same strides on the device, so that they are tested; the memory between rows too.
    const auto elements = view.rows == 0 || view.cols == 0
                              ? std::int64_t{0}
                              : (view.rows - 1) * view.stride + view.cols;
    bound.bytes = static_cast<std::size_t>(elements) * size_of(view.dtype);
    bound.memory = device_.allocate(bound.bytes + 256);
    TensorView there = view;
    // As far from an alignment as the host's is, so that unaligned views stay unaligned.
    const auto shift = reinterpret_cast<std::uintptr_t>(view.data) % 64;
    bound.device = static_cast<std::byte*>(bound.memory.get()) + shift;
    there.data = view.data == nullptr ? nullptr : bound.device;
    session_->bind(name, there);
  }

  void run(Phase phase, std::int64_t tokens) override {
    for (auto& [name, b] : bound_) device_.upload(b.device, b.host.data, b.bytes);
    session_->run(phase, tokens);
    device_.synchronize();
    for (auto& [name, b] : bound_) {
      const auto index = static_cast<std::size_t>(plan_->find_buffer(name));
      if (plan_->buffers[index].role == Role::output) {
        device_.download(b.host.data, b.device, b.bytes);
      }
    }
  }

  TensorView buffer(std::string_view name) const override {
    if (const auto it = bound_.find(std::string(name)); it != bound_.end()) return it->second.host;
    const TensorView there = session_->buffer(name);
    HostTensor& copy = copies_[std::string(name)];
    copy = HostTensor(there.dtype, there.rows, there.stride);
    TensorView view = copy.view();
    if (there.rows > 0 && there.cols > 0) {
      const auto elements = (there.rows - 1) * there.stride + there.cols;
      device_.download(view.data, there.data,
                       static_cast<std::size_t>(elements) * size_of(there.dtype));
    }
    view.cols = there.cols;
    return view;
  }

 private:
  struct Bound {
    TensorView host;
    std::shared_ptr<void> memory;
    std::byte* device = nullptr;
    std::size_t bytes = 0;
  };
  Backend& device_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Session> session_;
  std::map<std::string, Bound> bound_;
  mutable std::map<std::string, HostTensor> copies_;
};

class ThroughHost final : public Backend {
 public:
  explicit ThroughHost(std::unique_ptr<Backend> device) : device_(std::move(device)) {}
  std::string_view name() const override { return device_->name(); }
  std::unique_ptr<Session> prepare(std::shared_ptr<const Plan> plan,
                                   std::int64_t max_tokens) override {
    return std::make_unique<ThroughHostSession>(*device_, std::move(plan), max_tokens);
  }
  Backend& device() { return *device_; }

 private:
  std::unique_ptr<Backend> device_;
};

}  // namespace coda::testing
