#include "backend/cuda/cublas.h"

#include <dlfcn.h>

#include <filesystem>

#include "backend/cuda/library.h"
#include "base/check.h"

namespace coda::cuda {
namespace {

struct Api {
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*set_stream)(void* handle, StreamHandle);
  int (*set_workspace)(void* handle, void* memory, std::size_t bytes);
  int (*get_version)(void* handle, int* version);
  int (*gemm_ex)(void* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                 const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                 const void* beta, void* c, int c_type, int ldc, int compute_type, int algorithm);
};
Api api;

std::string open_cublas() {
  std::string last = "not found";
  for (const auto& candidate : library_candidates("CODA_CUBLAS", "libcublas.so")) {
    const std::filesystem::path path(candidate);
    if (path.has_parent_path()) {
      for (const auto& lt : files_matching(path.parent_path().string() + "/libcublasLt.so.*")) {
        dlopen(lt.c_str(), RTLD_NOW);
      }
    }
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      last = dlerror();
      continue;
    }
    bool complete = true;
    const auto get = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function != nullptr;
    };
    get("cublasCreate_v2", api.create);
    get("cublasDestroy_v2", api.destroy);
    get("cublasSetStream_v2", api.set_stream);
    get("cublasSetWorkspace_v2", api.set_workspace);
    get("cublasGetVersion_v2", api.get_version);
    get("cublasGemmEx", api.gemm_ex);
    if (complete) return "";
    last = candidate + " lacks a function";
  }
  return "no cuBLAS: " + last;
}

void check_cublas(int status, const char* what) {
  if (status != 0) throw_error<BackendError>("cublas: {}: status {}", what, status);
}

int cuda_type(DType dtype) {
  constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;
  return dtype == DType::bf16 ? kReal16BF : dtype == DType::f16 ? kReal16F : kReal32F;
}

}  // namespace

struct Cublas::Handle {
  void* value = nullptr;
};

const std::string& Cublas::why_not() {
  static const std::string problem = open_cublas();
  return problem;
}

Cublas::Cublas(const Stream& stream) : handle_(std::make_unique<Handle>()) {
  if (!why_not().empty()) throw_error<BackendError>("cublas: {}", why_not());
  Device::get().use();
  check_cublas(api.create(&handle_->value), "cublasCreate");
  check_cublas(api.set_stream(handle_->value, stream.handle()), "cublasSetStream");
  constexpr std::size_t kWorkspaceBytes = 32 << 20;  // what torch gives it on Hopper
  workspace_ = DeviceBuffer(kWorkspaceBytes);
  check_cublas(api.set_workspace(handle_->value, reinterpret_cast<void*>(workspace_.pointer()),
                                 kWorkspaceBytes),
               "cublasSetWorkspace");
}

Cublas::~Cublas() {
  if (handle_->value) api.destroy(handle_->value);
}

std::string Cublas::version() const {
  int version = 0;
  check_cublas(api.get_version(handle_->value, &version), "cublasGetVersion");
  return std::to_string(version);
}

void Cublas::gemm(const GemmShape& shape, const GemmOperands& operands) {
  // cuBLAS counts columns first: it computes C^T[N, M] = B . A^T with our B in front.
  constexpr int kNormal = 0, kTransposed = 1;
  constexpr int kCompute32F = 68, kTensorOp = 99;
  const float alpha = 1.0f, beta = shape.accumulate ? 1.0f : 0.0f;
  const auto& b = operands.b.at(0);
  const auto& c = operands.c.at(0);
  check_cublas(api.gemm_ex(handle_->value, shape.b == Major::k ? kTransposed : kNormal,
                           shape.a == Major::k ? kNormal : kTransposed, static_cast<int>(shape.n),
                           static_cast<int>(shape.m), static_cast<int>(shape.k), &alpha,
                           reinterpret_cast<void*>(b.pointer), cuda_type(shape.operand),
                           static_cast<int>(b.stride), reinterpret_cast<void*>(operands.a.pointer),
                           cuda_type(shape.operand), static_cast<int>(operands.a.stride), &beta,
                           reinterpret_cast<void*>(c.pointer), cuda_type(shape.output),
                           static_cast<int>(c.stride), kCompute32F, kTensorOp),
               "cublasGemmEx");
}

}  // namespace coda::cuda
