// The .cuh files of device/, embedded at build time (cmake/embed_sources.cmake).
#pragma once

#include <initializer_list>
#include <string>

namespace coda::cuda {

struct DeviceSource {
  const char* name;  ///< file name, such as "ptx.cuh"
  const char* text;
};

/// Ends with a row of null pointers.
extern const DeviceSource kDeviceSources[];

/// Text of one file without its `#pragma once`. Throws InternalError if there is none.
const char* device_source(const char* name);

/// Files one after the other, so that the compiler's messages name file and line.
std::string device_text(std::initializer_list<const char*> files);

}  // namespace coda::cuda
