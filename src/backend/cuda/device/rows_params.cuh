// Parameters of row and vector programs (rows.cuh) and of the kernel that finishes partials
// (finish.cuh): included by host and device.
#pragma once

namespace coda_device {

/// One operand: element (r, c) at data[r * stride + c]; of a col, c = 0 and stride 1.
struct RowsOperand {
  void* data;
  long long stride;
};

/// What precedes the operands in a kernel's parameter; as many operands follow as the kernel has.
struct RowsHeader {
  long long rows;         ///< of the program
  float* sums;            ///< vector programs: sums that later stages read
  unsigned* error_flag;   ///< set to 1 when a target or position is out of range
};

/// One vector to be made of its partials (see Extents): data[g * stride + i], i < count.
struct FinishJob {
  const float* data;
  float* out;            ///< [count]; online: the maxima, then at out + plane the log sums
  long long stride;
  long long plane;
  long long count;
  int granules;
  int kind;              ///< kFinishSum, ...
};

constexpr int kFinishSum = 0;
constexpr int kFinishMax = 1;
constexpr int kFinishOnline = 2;

constexpr int kFinishColumns = 32;   ///< elements that a block finishes
constexpr int kFinishSlices = 32;    ///< runs of granules that it adds side by side

}  // namespace coda_device
