#include <cstring>

#include "backend/cuda/device_sources.h"
#include "base/check.h"

namespace coda::cuda {

const char* device_source(const char* name) {
  for (const DeviceSource* source = kDeviceSources; source->name; ++source) {
    if (std::strcmp(source->name, name) != 0) continue;
    const char* once = std::strstr(source->text, "#pragma once\n");
    return once ? once + std::strlen("#pragma once\n") : source->text;
  }
  throw_error<InternalError>("device_source: expected an embedded file, got {}", name);
}

std::string device_text(std::initializer_list<const char*> files) {
  std::string text;
  for (const char* file : files)
    text += fmt::format("#line 1 \"{}\"\n{}", file, device_source(file));
  return text;
}

}  // namespace coda::cuda
