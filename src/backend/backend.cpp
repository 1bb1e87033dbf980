#include "backend/backend.h"

#include <cstring>

namespace coda {

std::shared_ptr<void> Backend::allocate(std::size_t bytes) {
  const auto doubles = static_cast<std::int64_t>(bytes / 8 + (bytes % 8 != 0 ? 1 : 0));
  auto memory = std::make_shared<HostTensor>(DType::f64, 1, doubles);
  void* data = memory->view().data;
  return {std::move(memory), data};
}

void Backend::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void Backend::download(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void Backend::fill_zero(void* at, std::size_t bytes) {
  if (bytes > 0) std::memset(at, 0, bytes);
}

void Backend::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  for (std::int64_t index = 0; index < count; ++index) body(index);
}

std::unique_ptr<DeviceAdamW> Backend::make_adamw(std::span<const AdamWTensor>) { return nullptr; }

}  // namespace coda
