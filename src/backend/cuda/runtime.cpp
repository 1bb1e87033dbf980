#include "backend/cuda/runtime.h"

#include "base/check.h"

namespace coda::cuda {

// ---- Device

Device& Device::get() {
  static Device device;
  return device;
}

Device::Device() {
  const Driver& d = driver();
  int device = 0;
  check(d.device_get(&device, 0), "cuDeviceGet");
  char name[128] = {};
  check(d.device_get_name(name, sizeof(name), device), "cuDeviceGetName");
  name_ = name;
  check(d.device_get_attribute(&sm_count_, kAttributeSmCount, device), "cuDeviceGetAttribute");
  check(d.device_get_attribute(&shared_bytes_, kAttributeSharedBytesOptIn, device),
        "cuDeviceGetAttribute");
  check(d.device_get_attribute(&l2_bytes_, kAttributeL2Bytes, device), "cuDeviceGetAttribute");
  check(d.device_total_mem(&memory_bytes_, device), "cuDeviceTotalMem");
  check(d.driver_get_version(&driver_version_), "cuDriverGetVersion");
  check(d.device_primary_ctx_retain(&context_, device), "cuDevicePrimaryCtxRetain");
  use();
}

void Device::use() const { check(driver().ctx_set_current(context_), "cuCtxSetCurrent"); }

// ---- Stream

Stream::Stream() {
  Device::get().use();
  constexpr unsigned kNonBlocking = 1;
  check(driver().stream_create(&handle_, kNonBlocking), "cuStreamCreate");
}
Stream::~Stream() {
  if (handle_) driver().stream_destroy(handle_);
}
void Stream::synchronize() const {
  check(driver().stream_synchronize(handle_), "cuStreamSynchronize");
}

// ---- Event

Event::Event() {
  Device::get().use();
  check(driver().event_create(&handle_, 0), "cuEventCreate");
}
Event::~Event() {
  if (handle_) driver().event_destroy(handle_);
}
void Event::record(const Stream& stream) {
  check(driver().event_record(handle_, stream.handle()), "cuEventRecord");
}
void Event::synchronize() const {
  check(driver().event_synchronize(handle_), "cuEventSynchronize");
}
double Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check(driver().event_elapsed_time(&milliseconds, start.handle_, handle_), "cuEventElapsedTime");
  return milliseconds;
}

// ---- Memory

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  Device::get().use();
  if (bytes == 0) return;
  const Result result = driver().mem_alloc(&pointer_, bytes);
  constexpr Result kOutOfMemory = 2;
  if (result == kOutOfMemory) {
    std::size_t free = 0, total = 0;
    driver().mem_get_info(&free, &total);
    throw_error<BackendError>(
        "cuda: out of memory: expected {} free bytes on {}, got {} of {}. Use fewer tokens a "
        "batch.",
        bytes, Device::get().name(), free, total);
  }
  check(result, "cuMemAlloc");
}
DeviceBuffer::~DeviceBuffer() {
  if (pointer_) driver().mem_free(pointer_);
}
void DeviceBuffer::fill(unsigned char value, const Stream& stream) {
  if (bytes_ == 0) return;
  check(driver().memset_d8_async(pointer_, value, bytes_, stream.handle()), "cuMemsetD8Async");
}
void DeviceBuffer::upload(const void* from, std::size_t bytes, const Stream& stream) {
  internal_check(bytes <= bytes_, "DeviceBuffer::upload: {} bytes into {}", bytes, bytes_);
  if (bytes == 0) return;
  check(driver().memcpy_htod_async(pointer_, from, bytes, stream.handle()), "cuMemcpyHtoDAsync");
}
void DeviceBuffer::download(void* to, std::size_t bytes, const Stream& stream) const {
  internal_check(bytes <= bytes_, "DeviceBuffer::download: {} bytes from {}", bytes, bytes_);
  if (bytes == 0) return;
  check(driver().memcpy_dtoh_async(to, pointer_, bytes, stream.handle()), "cuMemcpyDtoHAsync");
  stream.synchronize();
}

DevicePointer Arena::take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > buffer_.bytes() - used_) {
    throw_error<BackendError>(
        "cuda: arena of {} bytes is full: expected at most {} more, got a request for {}. Reserve "
        "more.",
        buffer_.bytes(), buffer_.bytes() - used_, bytes);
  }
  const DevicePointer pointer = buffer_.pointer() + used_;
  used_ += rounded;
  return pointer;
}

// ---- Graph

void Graph::begin(const Stream& stream) {
  constexpr int kThreadLocal = 1;
  check(driver().stream_begin_capture(stream.handle(), kThreadLocal), "cuStreamBeginCapture");
}
void Graph::abandon(const Stream& stream) {
  GraphHandle graph = nullptr;
  driver().stream_end_capture(stream.handle(), &graph);
  if (graph) driver().graph_destroy(graph);
}
Graph::Graph(const Stream& stream) {
  GraphHandle graph = nullptr;
  check(driver().stream_end_capture(stream.handle(), &graph), "cuStreamEndCapture");
  const Result result = driver().graph_instantiate(&exec_, graph, 0);
  driver().graph_destroy(graph);
  check(result, "cuGraphInstantiate");
}
Graph::~Graph() {
  if (exec_) driver().graph_exec_destroy(exec_);
}
void Graph::launch(const Stream& stream) const {
  check(driver().graph_launch(exec_, stream.handle()), "cuGraphLaunch");
}

// ---- Kernel

Kernel::Kernel(std::string_view cubin, const std::string& entry, unsigned shared_bytes)
    : shared_bytes_(shared_bytes) {
  Device::get().use();
  ModuleHandle module = nullptr;
  check(driver().module_load_data(&module, cubin.data()), "cuModuleLoadData");
  module_ = std::shared_ptr<ModuleTag>(module, [](ModuleHandle m) { driver().module_unload(m); });
  check(driver().module_get_function(&function_, module, entry.c_str()), "cuModuleGetFunction");
  if (shared_bytes > 0) {
    check(driver().func_set_attribute(function_, kFunctionMaxDynamicShared,
                                      static_cast<int>(shared_bytes)),
          "cuFuncSetAttribute");
  }
}

void Kernel::allow_large_clusters() const {
  check(driver().func_set_attribute(function_, kFunctionNonPortableCluster, 1),
        "cuFuncSetAttribute");
}

LaunchConfig Kernel::config(unsigned grid, unsigned block) const {
  return LaunchConfig{grid, 1, 1, block, 1, 1, shared_bytes_, nullptr, nullptr, 0};
}

void Kernel::launch(const Stream& stream, unsigned grid, unsigned block, unsigned cluster,
                    std::vector<void*> arguments, unsigned grid_y, Start start) const {
  // Older drivers cannot record such launches in a graph.
  constexpr int kRecordsEarlyStarts = 12040;
  LaunchAttribute attributes[2];
  unsigned count = 0;
  if (cluster > 1) attributes[count++] = {kLaunchClusterDimension, 0, {cluster, 1, 1}};
  if (start == Start::early && Device::get().driver_version() >= kRecordsEarlyStarts) {
    attributes[count++] = {kLaunchProgrammaticSerialization, 0, {1}};
  }
  LaunchConfig launch = config(grid, block);
  launch.grid_y = grid_y;
  launch.stream = stream.handle();
  launch.attributes = attributes;
  launch.attribute_count = count;
  check(driver().launch_kernel_ex(&launch, function_, arguments.data(), nullptr),
        "cuLaunchKernelEx");
}

int Kernel::max_active_clusters(unsigned block, unsigned cluster) const {
  LaunchAttribute attribute{kLaunchClusterDimension, 0, {cluster, 1, 1}};
  LaunchConfig launch = config(cluster, block);
  launch.attributes = &attribute;
  launch.attribute_count = 1;
  int clusters = 0;
  check(driver().occupancy_max_active_clusters(&clusters, function_, &launch),
        "cuOccupancyMaxActiveClusters");
  return clusters;
}

}  // namespace coda::cuda
