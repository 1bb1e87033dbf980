// Compiles the very text that NVRTC gets for the host (host_gpu.h stands in for ptx.cuh and its
// like) and runs it, so that a machine without a GPU can compare kernels with the reference.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/gemm.h"
#include "backend/cuda/kernel_store.h"

namespace coda::cuda {

/// Where host_gpu.h lies.
inline const char* const kHostGpuFolder = CODA_SOURCE_DIR "/tests/backend/cuda";

/// By the address sanitizer, which fibers confuse.
inline bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer);
#else
  return false;
#endif
}

class HostKernel {
 public:
  explicit HostKernel(const KernelSource& source) : shared_bytes_(source.shared_bytes) {
    static int count = 0;
    const auto stem =
        std::filesystem::temp_directory_path() / fmt::format("coda-host-{}-{}", getpid(), count++);
    const std::string text_path = stem.string() + ".cpp", library_path = stem.string() + ".so";
    std::ofstream(text_path)
        << "#include \"host_gpu.h\"\n"
        << host_text(source.text)
        << fmt::format(
               "extern \"C\" void coda_host_launch(unsigned x, unsigned y, unsigned block, "
               "unsigned shared_bytes, const void* const* arguments) {{\n"
               "  coda_device::launch(coda_device::{}, x, y, block, shared_bytes, arguments);\n"
               "}}\n",
               source.entry);
    const char* compiler = std::getenv("CXX");
    const auto command =
        fmt::format("{} -std=c++17 -O1 -ffp-contract=off -w -Wno-psabi -shared -fPIC -I{} -o {} {}",
                    compiler ? compiler : "c++", CODA_SOURCE_DIR "/tests/backend/cuda",
                    library_path, text_path);
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("cannot compile " + source.name + " for the host: " + command);
    }
    library_ = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error(dlerror());
    launch_ = reinterpret_cast<Launch>(dlsym(library_, "coda_host_launch"));
    std::filesystem::remove(text_path);
    std::filesystem::remove(library_path);
  }
  ~HostKernel() {
    if (library_) dlclose(library_);
  }
  HostKernel(const HostKernel&) = delete;
  HostKernel& operator=(const HostKernel&) = delete;

  /// `arguments`: where each parameter of the kernel lies.
  void launch(unsigned grid, unsigned block, std::span<const void* const> arguments,
              unsigned grid_y = 1) const {
    launch_(grid, grid_y, block, shared_bytes_, arguments.data());
  }

 private:
  using Launch = void (*)(unsigned, unsigned, unsigned, unsigned, const void* const*);

  /// Without the files of PTX, from their "#line 1" to the next file's; dynamic shared memory is
  /// host_gpu.h's array.
  static std::string host_text(std::string text) {
    for (std::size_t at = 0; (at = text.find("ptx.cuh\"\n", at)) != std::string::npos;) {
      const std::size_t begin = text.rfind("#line 1 ", at), end = text.find("#line 1 ", at);
      text.erase(begin, end - begin);
      at = begin;
    }
    const std::string dynamic = "extern __shared__";
    for (std::size_t at = 0; (at = text.find(dynamic, at)) != std::string::npos;) {
      text.replace(at, dynamic.size(), "extern");
    }
    return text;
  }

  unsigned shared_bytes_;
  void* library_ = nullptr;
  Launch launch_ = nullptr;
};

/// Kernels compiled once a text.
class HostKernels {
 public:
  const HostKernel& get(KernelSource source) {
    if (!planted_.empty()) {
      const auto at = source.text.find(planted_);
      if (at == std::string::npos) throw std::runtime_error("nothing to plant in " + source.name);
      source.text.replace(at, planted_.size(), planted_text_);
    }
    auto& kernel = kernels_[source.entry + source.text];
    if (!kernel) kernel = std::make_unique<HostKernel>(source);
    return *kernel;
  }
  /// From now on `from` becomes `to` in every kernel: an error that a test must notice. Both empty:
  /// none.
  void plant(std::string from, std::string to) {
    planted_ = std::move(from);
    planted_text_ = std::move(to);
  }

 private:
  std::map<std::string, std::unique_ptr<HostKernel>> kernels_;
  std::string planted_, planted_text_;
};

/// A tensor map for host_gpu.h's tma_store_2d.
inline coda_device::TensorMap host_tensor_map(const MatrixBlock& block, DType, int) {
  coda_device::TensorMap map{};
  map.opaque[0] = block.pointer;
  map.opaque[1] = static_cast<unsigned long long>(block.rows);
  map.opaque[2] = static_cast<unsigned long long>(block.columns);
  map.opaque[3] = static_cast<unsigned long long>(block.stride);
  return map;
}

}  // namespace coda::cuda
