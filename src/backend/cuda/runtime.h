// What runs on one GPU: the device and its primary context, streams, events, memory, graphs, loaded
// kernels. Thin owners of driver handles; all throw BackendError when the driver does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/driver.h"

namespace coda::cuda {

/// The first GPU, with its primary context made current on the calling thread by use().
class Device {
 public:
  /// Throws BackendError if there is no usable GPU.
  static Device& get();

  /// Makes the context current on this thread. Cheap; call it at the top of every entry point.
  void use() const;

  const std::string& name() const { return name_; }
  int sm_count() const { return sm_count_; }
  int shared_bytes() const { return shared_bytes_; }  ///< most that one CTA may ask for
  int l2_bytes() const { return l2_bytes_; }
  std::size_t memory_bytes() const { return memory_bytes_; }
  int driver_version() const { return driver_version_; }  ///< 13000 for CUDA 13.0

 private:
  Device();

  ContextHandle context_ = nullptr;
  std::string name_;
  int sm_count_ = 0;
  int shared_bytes_ = 0;
  int l2_bytes_ = 0;
  int driver_version_ = 0;
  std::size_t memory_bytes_ = 0;
};

/// A queue of work. Work of one stream runs in order.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  void synchronize() const;

 private:
  StreamHandle handle_ = nullptr;
};

/// A point in a stream's work.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

  void record(const Stream& stream);
  void synchronize() const;
  EventHandle handle() const { return handle_; }
  /// From `start` to this event, both reached.
  double milliseconds_since(const Event& start) const;

 private:
  EventHandle handle_ = nullptr;
};

/// Device memory, aligned to 256 bytes at least.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : pointer_(std::exchange(other.pointer_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  DevicePointer pointer() const { return pointer_; }
  std::size_t bytes() const { return bytes_; }
  void fill(unsigned char value, const Stream& stream);
  void upload(const void* from, std::size_t bytes, const Stream& stream);
  void download(void* to, std::size_t bytes, const Stream& stream) const;  ///< waits

 private:
  DevicePointer pointer_ = 0;
  std::size_t bytes_ = 0;
};

/// One allocation handed out in pieces, all given back at once: a run allocates nothing.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : buffer_(bytes) {}

  /// `bytes` at a multiple of 256. Throws BackendError when the arena is full.
  DevicePointer take(std::size_t bytes);
  void reset() { used_ = 0; }
  std::size_t used() const { return used_; }

 private:
  DeviceBuffer buffer_;
  std::size_t used_ = 0;
};

/// Work of a stream, recorded once and launched many times.
class Graph {
 public:
  /// Records what `enqueue()` puts on the stream; nothing runs.
  template <class Enqueue>
  static Graph capture(const Stream& stream, Enqueue&& enqueue) {
    begin(stream);
    try {
      enqueue();
    } catch (...) {
      abandon(stream);
      throw;
    }
    return Graph(stream);
  }
  ~Graph();
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  void launch(const Stream& stream) const;

 private:
  explicit Graph(const Stream& stream);
  static void begin(const Stream& stream);
  static void abandon(const Stream& stream);
  GraphExecHandle exec_ = nullptr;
};

/// When a launch may start.
enum class Start {
  in_order,  ///< once the kernels before it in the stream have ended
  early,     ///< as soon as a kernel before it lets it; it waits by itself (await_dependencies)
};

/// A kernel loaded from a cubin. Copies share the module.
class Kernel {
 public:
  Kernel() = default;
  /// `shared_bytes`: dynamic shared memory that every launch asks for.
  Kernel(std::string_view cubin, const std::string& entry, unsigned shared_bytes);

  /// `arguments` point to the kernel's parameters. `cluster` = 1: no cluster.
  /// `grid_y`: rows of the grid, `grid` blocks each.
  void launch(const Stream& stream, unsigned grid, unsigned block, unsigned cluster,
              std::vector<void*> arguments, unsigned grid_y = 1,
              Start start = Start::in_order) const;
  /// Clusters of this size that the whole device can hold at once.
  int max_active_clusters(unsigned block, unsigned cluster) const;
  void allow_large_clusters() const;

 private:
  LaunchConfig config(unsigned grid, unsigned block) const;
  std::shared_ptr<ModuleTag> module_;
  FunctionHandle function_ = nullptr;
  unsigned shared_bytes_ = 0;
};

}  // namespace coda::cuda
