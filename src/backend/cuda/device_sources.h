// The .cuh files of device/, embedded at build time (cmake/embed_sources.cmake).
#pragma once

namespace coda::cuda {

struct DeviceSource {
  const char* name;  ///< file name, such as "ptx.cuh"
  const char* text;
};

/// Ends with a row of null pointers.
extern const DeviceSource kDeviceSources[];

/// Text of one file without its `#pragma once`. Throws InternalError if there is none.
const char* device_source(const char* name);

}  // namespace coda::cuda
