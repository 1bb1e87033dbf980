// From source text to a loaded kernel: memory, then the cache file, then NVRTC. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/kernel_cache.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda/runtime.h"

namespace coda::cuda {

/// Everything that defines a kernel.
struct KernelSource {
  std::string name;           ///< for messages, such as "gemm_nt_bf16_coop_128x256"
  std::string entry;          ///< its __global__ function
  std::string text;           ///< the full source
  unsigned shared_bytes = 0;  ///< dynamic shared memory a launch asks for

  /// Architecture, compiler version, flags and source.
  std::string key(const std::string& nvrtc_version) const;
};

/// Compiles. Throws BackendError also for a warning C75xx (wgmma serialised, register request
/// ignored). Needs no GPU.
Compilation compile_any(const KernelSource& source);
/// As compile_any, and a stack frame (so any spill) is an error too. For tests: whether a few
/// registers spill depends on the compiler's version, and must stop nobody.
Compilation compile_checked(const KernelSource& source);

class KernelStore {
 public:
  explicit KernelStore(std::string cache_path = KernelCache::default_path());

  /// The process's store.
  static KernelStore& get();

  /// The kernel, compiled if need be.
  Kernel load(const KernelSource& source);
  /// Compiles what is not cached, several at once, and loads all. Duplicates are fine.
  void prepare(const std::vector<KernelSource>& sources);

  /// Its machine code, compiled if need be. Needs no GPU.
  std::string cubin(const KernelSource& source);

  KernelCache& cache() { return cache_; }

 private:
  void announce();

  KernelCache cache_;
  std::mutex mutex_;
  std::map<std::string, Kernel> loaded_;  ///< by source text's hash
  bool announced_ = false;
};

}  // namespace coda::cuda
