// The CUDA driver, opened at run time: libcuda's functions and our own declarations of the few
// types they take. No CUDA header or library is needed to build. Knows nothing of GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace coda::cuda {

using DevicePointer = std::uint64_t;  // CUdeviceptr
using ContextHandle = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using ModuleHandle = struct ModuleTag*;
using FunctionHandle = struct FunctionTag*;
using GraphHandle = struct GraphTag*;
using GraphExecHandle = struct GraphExecTag*;

/// CUresult; 0 is success.
using Result = int;

// Values from the driver API's reference.
inline constexpr int kAttributeSmCount = 16;
inline constexpr int kAttributeL2Bytes = 38;
inline constexpr int kAttributeMajor = 75;
inline constexpr int kAttributeMinor = 76;
inline constexpr int kAttributeSharedBytesOptIn = 97;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kFunctionMaxDynamicShared = 8;
inline constexpr int kFunctionNonPortableCluster = 14;
inline constexpr int kLaunchClusterDimension = 4;
inline constexpr int kLaunchProgrammaticSerialization = 6;

struct LaunchAttribute {
  int id;
  int pad;
  unsigned value[16];  ///< 64-byte union; cluster dimensions are the first three words
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

enum class TensorMapType : int { f16 = 6, f32 = 7, bf16 = 9 };

/// Pointers to libcuda's functions, named without the prefix "cu".
struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_get_version)(int* version);
  Result (*get_error_name)(Result, const char** name);
  Result (*get_error_string)(Result, const char** text);
  Result (*device_get_count)(int* count);
  Result (*device_get)(int* device, int ordinal);
  Result (*device_get_name)(char* name, int size, int device);
  Result (*device_get_attribute)(int* value, int attribute, int device);
  Result (*device_total_mem)(std::size_t* bytes, int device);
  Result (*device_primary_ctx_retain)(ContextHandle*, int device);
  Result (*ctx_set_current)(ContextHandle);
  Result (*ctx_synchronize)();
  Result (*mem_alloc)(DevicePointer*, std::size_t bytes);
  Result (*mem_free)(DevicePointer);
  Result (*mem_get_info)(std::size_t* free, std::size_t* total);
  Result (*pointer_get_attribute)(void* value, int attribute, DevicePointer);
  Result (*memcpy_htod_async)(DevicePointer, const void*, std::size_t bytes, StreamHandle);
  Result (*memcpy_dtoh_async)(void*, DevicePointer, std::size_t bytes, StreamHandle);
  Result (*memcpy_dtod_async)(DevicePointer, DevicePointer, std::size_t bytes, StreamHandle);
  Result (*memset_d8_async)(DevicePointer, unsigned char, std::size_t bytes, StreamHandle);
  Result (*memset_d2d8_async)(DevicePointer, std::size_t pitch, unsigned char, std::size_t width,
                              std::size_t height, StreamHandle);
  Result (*stream_create)(StreamHandle*, unsigned flags);
  Result (*stream_destroy)(StreamHandle);
  Result (*stream_synchronize)(StreamHandle);
  Result (*stream_wait_event)(StreamHandle, EventHandle, unsigned flags);
  Result (*stream_begin_capture)(StreamHandle, int mode);
  Result (*stream_end_capture)(StreamHandle, GraphHandle*);
  Result (*graph_instantiate)(GraphExecHandle*, GraphHandle, unsigned long long flags);
  Result (*graph_launch)(GraphExecHandle, StreamHandle);
  Result (*graph_destroy)(GraphHandle);
  Result (*graph_exec_destroy)(GraphExecHandle);
  Result (*event_create)(EventHandle*, unsigned flags);
  Result (*event_destroy)(EventHandle);
  Result (*event_record)(EventHandle, StreamHandle);
  Result (*event_synchronize)(EventHandle);
  Result (*event_elapsed_time)(float* milliseconds, EventHandle, EventHandle);
  Result (*module_load_data)(ModuleHandle*, const void* image);
  Result (*module_unload)(ModuleHandle);
  Result (*module_get_function)(FunctionHandle*, ModuleHandle, const char* name);
  Result (*func_set_attribute)(FunctionHandle, int attribute, int value);
  Result (*launch_kernel_ex)(const LaunchConfig*, FunctionHandle, void** arguments, void** extra);
  Result (*occupancy_max_active_clusters)(int* clusters, FunctionHandle, const LaunchConfig*);
  Result (*tensor_map_encode_tiled)(void* map, int type, unsigned rank, void* address,
                                    const std::uint64_t* dims, const std::uint64_t* strides,
                                    const std::uint32_t* box, const std::uint32_t* element_strides,
                                    int interleave, int swizzle, int l2_promotion, int fill);
};

/// Why no GPU can be used, in one line ("libcuda.so.1 cannot be opened: ..."); empty if one can.
const std::string& why_no_gpu();

/// The driver, initialised. Throws BackendError with why_no_gpu() if there is none.
const Driver& driver();

/// Throws BackendError "what: CUDA_ERROR_...: text" unless result is success.
void check(Result result, const char* what);

}  // namespace coda::cuda
