// What AdamW's kernels (adamw.cuh) read: included by host and device.
#pragma once

namespace coda_device {

struct AdamWEntry {
  float* value;  ///< null: in `rounded` and `low` together (base/split_f32.h)
  const float* gradient;
  float* first;
  float* second;
  void* rounded;  ///< null: none
  void* low;
  long long count;
  int decays;
  int rounded_bf16;  ///< else f16
};

/// A block's share: elements [first, first + kAdamWRun) of a tensor.
struct AdamWRun {
  long long first;
  long long tensor;
};
constexpr long long kAdamWRun = 16384;

struct AdamWCoefficients {
  float scale, beta1, beta2, size, root_scale, eps, keep;
};

}  // namespace coda_device
