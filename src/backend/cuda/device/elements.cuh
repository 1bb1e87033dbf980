// Single elements of the memory types: load widens, store rounds once to nearest even.
#pragma once

namespace coda_device {

struct Bf16 {
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return unpack_bf16(static_cast<const u16*>(pointer)[index]);
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<u16*>(pointer)[index] = static_cast<u16>(pack_bf16(value, 0.0f));
  }
};
struct F16 {
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return unpack_f16(static_cast<const u16*>(pointer)[index]);
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<u16*>(pointer)[index] = static_cast<u16>(pack_f16(value, 0.0f));
  }
};
struct F32 {
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return static_cast<const float*>(pointer)[index];
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<float*>(pointer)[index] = value;
  }
};
struct F64 {
  static CODA_DEVICE double load(const void* pointer, long long index) {
    return static_cast<const double*>(pointer)[index];
  }
  static CODA_DEVICE void store(void* pointer, long long index, double value) {
    static_cast<double*>(pointer)[index] = value;
  }
};

}  // namespace coda_device
