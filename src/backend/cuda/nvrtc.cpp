#include "backend/cuda/nvrtc.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "backend/cuda/library.h"
#include "base/check.h"

namespace coda::cuda {
namespace {

using Program = struct ProgramTag*;

struct Api {
  int (*version)(int* major, int* minor);
  const char* (*get_error_string)(int);
  int (*create_program)(Program*, const char* source, const char* name, int headers,
                        const char* const* header_texts, const char* const* header_names);
  int (*destroy_program)(Program*);
  int (*compile_program)(Program, int options, const char* const* option);
  int (*get_cubin_size)(Program, std::size_t*);
  int (*get_cubin)(Program, char*);
  int (*get_log_size)(Program, std::size_t*);
  int (*get_log)(Program, char*);
};
Api api;

const std::vector<const char*> kOptions = {"--gpu-architecture=sm_90a", "--std=c++17",
                                           "--ptxas-options=-v"};

bool load_api(void* library) {
  bool complete = true;
  const auto get = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function != nullptr;
  };
  get("nvrtcVersion", api.version);
  get("nvrtcGetErrorString", api.get_error_string);
  get("nvrtcCreateProgram", api.create_program);
  get("nvrtcDestroyProgram", api.destroy_program);
  get("nvrtcCompileProgram", api.compile_program);
  get("nvrtcGetCUBINSize", api.get_cubin_size);
  get("nvrtcGetCUBIN", api.get_cubin);
  get("nvrtcGetProgramLogSize", api.get_log_size);
  get("nvrtcGetProgramLog", api.get_log);
  return complete;
}

/// Where a source that failed is kept for the person who reads the error.
std::string save_source(const std::string& name, const std::string& source) {
  std::error_code ignored;
  const auto folder = std::filesystem::temp_directory_path(ignored);
  const auto path = folder / fmt::format("coda-{}-{}.cu", name, getpid());
  std::ofstream(path) << source;
  return path.string();
}

std::string first_error(const std::string& log) {
  const auto at = log.find("error");
  if (at == std::string::npos) return log.substr(0, log.find('\n'));
  const auto begin = log.rfind('\n', at);
  const auto first = begin == std::string::npos ? 0 : begin + 1;
  return log.substr(first, log.find('\n', at) - first);
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

struct NvrtcLoader {
  Nvrtc nvrtc;
  std::string problem;

  NvrtcLoader() {
    const auto candidates = library_candidates("CODA_NVRTC", "libnvrtc.so");
    std::string last;
    for (const auto& candidate : candidates) {
      const std::filesystem::path path(candidate);
      if (path.has_parent_path()) {
        // NVRTC opens its builtins by bare name; from a wheel that works only if they are loaded.
        const auto pattern = path.parent_path().string() + "/libnvrtc-builtins.so.*";
        for (const auto& builtins : files_matching(pattern)) dlopen(builtins.c_str(), RTLD_NOW);
      }
      void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        last = dlerror();
        continue;
      }
      if (!load_api(library)) {
        last = candidate + " lacks a function: expected NVRTC 12.0 or later";
        continue;
      }
      api.version(&nvrtc.major_, &nvrtc.minor_);
      if (nvrtc.major_ < 12) {
        last = fmt::format("{}: expected NVRTC 12.0 or later, got {}.{}", candidate, nvrtc.major_,
                           nvrtc.minor_);
        continue;
      }
      nvrtc.path_ = candidate;
      return;
    }
    problem = fmt::format(
        "no NVRTC ({}). Looked at CODA_NVRTC, PyPI wheels, the CUDA toolkit and the loader's path. "
        "Run: pip install nvidia-cuda-nvrtc",
        last);
  }
  static const NvrtcLoader& get() {
    static const NvrtcLoader instance;
    return instance;
  }
};

const Nvrtc& Nvrtc::get() {
  if (!why_not().empty()) throw_error<BackendError>("cuda: {}", why_not());
  return NvrtcLoader::get().nvrtc;
}

const std::string& Nvrtc::why_not() { return NvrtcLoader::get().problem; }

std::string Nvrtc::version() const { return fmt::format("{}.{}", major_, minor_); }

const char* Nvrtc::flags() { return "sm_90a c++17"; }

Compilation Nvrtc::compile(const std::string& name, const std::string& source) const {
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = thread_cpu_seconds();
  Program program = nullptr;
  const std::string file = name + ".cu";
  int result = api.create_program(&program, source.c_str(), file.c_str(), 0, nullptr, nullptr);
  if (result != 0) {
    throw_error<BackendError>("nvrtc({}): {}", name, api.get_error_string(result));
  }
  result = api.compile_program(program, static_cast<int>(kOptions.size()), kOptions.data());
  Compilation compiled;
  std::size_t bytes = 0;
  if (api.get_log_size(program, &bytes) == 0 && bytes > 1) {
    compiled.log.resize(bytes);
    api.get_log(program, compiled.log.data());
    compiled.log.resize(bytes - 1);
  }
  if (result != 0) {
    const std::string text = api.get_error_string(result);
    api.destroy_program(&program);
    throw_error<BackendError>("nvrtc({}): {}: {}. The source is in {}", name, text,
                              first_error(compiled.log), save_source(name, source));
  }
  api.get_cubin_size(program, &bytes);
  compiled.cubin.resize(bytes);
  api.get_cubin(program, compiled.cubin.data());
  api.destroy_program(&program);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  compiled.seconds = taken.count();
  compiled.cpu_seconds = thread_cpu_seconds() - cpu_start;
  return compiled;
}

}  // namespace coda::cuda
