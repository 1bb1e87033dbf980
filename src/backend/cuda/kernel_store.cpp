#include "backend/cuda/kernel_store.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <set>
#include <thread>

#include "backend/cuda/cubin.h"
#include "base/check.h"

namespace coda::cuda {

std::string KernelSource::key(const std::string& nvrtc_version) const {
  return fmt::format("nvrtc {} | {} | {} | {}", nvrtc_version, Nvrtc::flags(), entry,
                     hash_text(text));
}

Compilation compile_any(const KernelSource& source) {
  auto compiled = Nvrtc::get().compile(source.name, source.text);
  if (const auto at = compiled.log.find("C75"); at != std::string::npos) {
    throw_error<BackendError>("nvrtc({}): expected no warning C75xx, got: {}", source.name,
                              compiled.log.substr(at, compiled.log.find('\n', at) - at));
  }
  return compiled;
}

Compilation compile_checked(const KernelSource& source) {
  auto compiled = compile_any(source);
  const auto resources = read_cubin(compiled.cubin, source.entry);
  if (resources.frame_bytes != 0) {
    throw_error<BackendError>(
        "nvrtc({}): expected a kernel without stack frame, got one of {} bytes (registers spilled, "
        "or an array indexed at run time)",
        source.name, resources.frame_bytes);
  }
  return compiled;
}

KernelStore::KernelStore(std::string cache_path) : cache_(std::move(cache_path)) {}

KernelStore& KernelStore::get() {
  static KernelStore store;
  return store;
}

/// One line, once a process, when something must be compiled.
void KernelStore::announce() {
  const std::lock_guard lock(mutex_);
  if (announced_) return;
  announced_ = true;
  const auto problem = cache_.problem();
  std::fprintf(stderr, "coda: compiling CUDA kernels, about a second each (%s)\n",
               problem.empty() ? ("kept in " + cache_.path()).c_str() : problem.c_str());
}

std::string KernelStore::cubin(const KernelSource& source) {
  const auto key = source.key(Nvrtc::get().version());
  if (auto cached = cache_.find(KernelCache::Table::kernels, key)) return *cached;
  announce();
  auto compiled = compile_any(source);
  cache_.store(KernelCache::Table::kernels, key, compiled.cubin);
  return compiled.cubin;
}

Kernel KernelStore::load(const KernelSource& source) {
  const auto key = source.entry + hash_text(source.text);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = loaded_.find(key); found != loaded_.end()) return found->second;
  }
  const Kernel kernel(cubin(source), source.entry, source.shared_bytes);
  const std::lock_guard lock(mutex_);
  return loaded_.emplace(key, kernel).first->second;
}

void KernelStore::prepare(const std::vector<KernelSource>& sources) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < sources.size(); i = next++) {
      try {
        load(sources[i]);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure = std::current_exception();
      }
    }
  };
  const std::size_t threads =
      std::min<std::size_t>(sources.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (auto& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace coda::cuda
