// What a cubin says about its kernel's use of the machine, read from the ELF file itself, so that a
// cubin can be judged without a GPU and without the compiler's log.
#pragma once

#include <string>
#include <string_view>

namespace coda::cuda {

struct CubinResources {
  int registers = 0;     ///< a thread, at launch
  int frame_bytes = 0;   ///< stack frame; spills live there
  int shared_bytes = 0;  ///< static shared memory
  int max_threads = 0;   ///< of a CTA, by __launch_bounds__; 0: none given
};

/// Resources of kernel `entry`. Throws BackendError when the bytes are no cubin with that kernel.
CubinResources read_cubin(std::string_view cubin, const std::string& entry);

}  // namespace coda::cuda
