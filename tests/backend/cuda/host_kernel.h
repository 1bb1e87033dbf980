// Compiles the very text that NVRTC gets for the host (host_gpu.h stands in for ptx.cuh and its
// like) and runs it, so that a machine without a GPU can compare kernels with the reference.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "backend/cuda/kernel_store.h"

namespace coda::cuda {

class HostKernel {
 public:
  /// `params`: the type of the kernel's parameter. `shim_folder`: where host_gpu.h lies.
  HostKernel(const KernelSource& source, const std::string& params,
             const std::string& shim_folder) {
    const auto base = std::filesystem::temp_directory_path() /
                      fmt::format("coda-host-{}-{}", source.name, getpid());
    const std::string text_path = base.string() + ".cpp", library_path = base.string() + ".so";
    std::ofstream(text_path)
        << "#include \"host_gpu.h\"\n"
        << without_ptx(source.text)
        << fmt::format(
               "extern \"C\" void coda_host_launch(unsigned grid, unsigned "
               "block, const void* params) {{\n  using namespace coda_device;\n"
               "  launch(grid, block, {}, [&] {{ {}(*static_cast<const {}*>("
               "params)); }});\n}}\n",
               source.shared_bytes, source.entry, params);
    const char* compiler = std::getenv("CXX");
    const auto command =
        fmt::format("{} -std=c++17 -O1 -ffp-contract=off -w -shared -fPIC -I{} -o {} {}",
                    compiler ? compiler : "c++", shim_folder, library_path, text_path);
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("cannot compile " + text_path + " for the host: " + command);
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

  void launch(unsigned grid, unsigned block, const void* params) const {
    launch_(grid, block, params);
  }

 private:
  using Launch = void (*)(unsigned, unsigned, const void*);

  /// Leaves out the files of PTX, from their "#line 1" to the next file's.
  static std::string without_ptx(std::string text) {
    for (std::size_t at = 0; (at = text.find("ptx.cuh\"\n", at)) != std::string::npos;) {
      const std::size_t begin = text.rfind("#line 1 ", at), end = text.find("#line 1 ", at);
      text.erase(begin, end - begin);
      at = begin;
    }
    return text;
  }

  void* library_ = nullptr;
  Launch launch_ = nullptr;
};

}  // namespace coda::cuda
