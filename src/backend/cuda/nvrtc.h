// NVRTC, opened at run time: CUDA C++ source -> cubin. Needs no GPU.
#pragma once

#include <string>

namespace coda::cuda {

struct Compilation {
  std::string cubin;
  std::string log;         ///< the compiler's messages
  double seconds = 0;      ///< on the clock: longer when many compile at once
  double cpu_seconds = 0;  ///< of this thread
};

/// The compiler. Thread-safe: NVRTC compiles several programs at once.
class Nvrtc {
 public:
  /// The loaded library. Throws BackendError that lists where it was looked for.
  static const Nvrtc& get();
  /// Why it cannot be loaded, in one line; empty if it can.
  static const std::string& why_not();

  std::string version() const;  ///< "13.0"
  const std::string& path() const { return path_; }

  /// Everything besides source and version that a cubin depends on.
  static const char* flags();

  /// Compiles for sm_90a. Throws BackendError with the first error and the path of the saved
  /// source.
  Compilation compile(const std::string& name, const std::string& source) const;

 private:
  friend struct NvrtcLoader;
  std::string path_;
  int major_ = 0;
  int minor_ = 0;
};

}  // namespace coda::cuda
