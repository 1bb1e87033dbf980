#include "backend/cuda/driver.h"

#include <dlfcn.h>

#include "base/check.h"

namespace coda::cuda {
namespace {

struct Loaded {
  Driver driver{};
  std::string problem;
};

/// Fills one pointer; notes the first name that the library lacks.
template <class Function>
void load(void* library, const char* name, Function& function, std::string& problem) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && problem.empty()) {
    problem = fmt::format("libcuda.so.1 has no {}: expected a driver for CUDA 12.3 or later", name);
  }
}

void load_all(void* library, Driver& d, std::string& problem) {
  const auto get = [&](const char* name, auto& function) {
    load(library, name, function, problem);
  };
  get("cuInit", d.init);
  get("cuDriverGetVersion", d.driver_get_version);
  get("cuGetErrorName", d.get_error_name);
  get("cuGetErrorString", d.get_error_string);
  get("cuDeviceGetCount", d.device_get_count);
  get("cuDeviceGet", d.device_get);
  get("cuDeviceGetName", d.device_get_name);
  get("cuDeviceGetAttribute", d.device_get_attribute);
  get("cuDeviceTotalMem_v2", d.device_total_mem);
  get("cuDevicePrimaryCtxRetain", d.device_primary_ctx_retain);
  get("cuCtxSetCurrent", d.ctx_set_current);
  get("cuCtxSynchronize", d.ctx_synchronize);
  get("cuMemAlloc_v2", d.mem_alloc);
  get("cuMemFree_v2", d.mem_free);
  get("cuMemGetInfo_v2", d.mem_get_info);
  get("cuPointerGetAttribute", d.pointer_get_attribute);
  get("cuMemcpyHtoDAsync_v2", d.memcpy_htod_async);
  get("cuMemcpyDtoHAsync_v2", d.memcpy_dtoh_async);
  get("cuMemcpyDtoDAsync_v2", d.memcpy_dtod_async);
  get("cuMemsetD8Async", d.memset_d8_async);
  get("cuMemsetD2D8Async", d.memset_d2d8_async);
  get("cuStreamCreate", d.stream_create);
  get("cuStreamDestroy_v2", d.stream_destroy);
  get("cuStreamSynchronize", d.stream_synchronize);
  get("cuStreamWaitEvent", d.stream_wait_event);
  get("cuStreamBeginCapture_v2", d.stream_begin_capture);
  get("cuStreamEndCapture", d.stream_end_capture);
  get("cuGraphInstantiateWithFlags", d.graph_instantiate);
  get("cuGraphLaunch", d.graph_launch);
  get("cuGraphDestroy", d.graph_destroy);
  get("cuGraphExecDestroy", d.graph_exec_destroy);
  get("cuEventCreate", d.event_create);
  get("cuEventDestroy_v2", d.event_destroy);
  get("cuEventRecord", d.event_record);
  get("cuEventSynchronize", d.event_synchronize);
  get("cuEventElapsedTime", d.event_elapsed_time);
  get("cuModuleLoadData", d.module_load_data);
  get("cuModuleUnload", d.module_unload);
  get("cuModuleGetFunction", d.module_get_function);
  get("cuFuncSetAttribute", d.func_set_attribute);
  get("cuLaunchKernelEx", d.launch_kernel_ex);
  get("cuOccupancyMaxActiveClusters", d.occupancy_max_active_clusters);
  get("cuTensorMapEncodeTiled", d.tensor_map_encode_tiled);
}

std::string name_of(const Driver& d, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  d.get_error_name(result, &name);
  d.get_error_string(result, &text);
  return fmt::format("{}: {}", name ? name : "unknown CUDA error", text ? text : "no description");
}

Loaded open_driver() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.problem = fmt::format("no NVIDIA driver: {}", dlerror());
    return loaded;
  }
  load_all(library, loaded.driver, loaded.problem);
  if (!loaded.problem.empty()) return loaded;
  const Result result = loaded.driver.init(0);
  if (result != 0) {
    loaded.problem = fmt::format("cuInit: {}", name_of(loaded.driver, result));
    return loaded;
  }
  int count = 0;
  loaded.driver.device_get_count(&count);
  if (count == 0) {
    loaded.problem = "the NVIDIA driver reports no device";
    return loaded;
  }
  int device = 0, major = 0, minor = 0;
  loaded.driver.device_get(&device, 0);
  loaded.driver.device_get_attribute(&major, kAttributeMajor, device);
  loaded.driver.device_get_attribute(&minor, kAttributeMinor, device);
  if (major != 9 || minor != 0) {
    char name[128] = {};
    loaded.driver.device_get_name(name, sizeof(name), device);
    loaded.problem = fmt::format("{}: expected compute capability 9.0 (H100, H200), got {}.{}",
                                 name, major, minor);
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded instance = open_driver();
  return instance;
}

}  // namespace

const std::string& why_no_gpu() { return loaded().problem; }

const Driver& driver() {
  if (!why_no_gpu().empty()) {
    throw_error<BackendError>("cuda: no usable GPU: {}. Use --device cpu.", why_no_gpu());
  }
  return loaded().driver;
}

void check(Result result, const char* what) {
  if (result == 0) return;
  throw_error<BackendError>("cuda: {}: {}", what, name_of(loaded().driver, result));
}

}  // namespace coda::cuda
