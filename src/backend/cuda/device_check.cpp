#include "backend/cuda/device_check.h"

#include <cmath>
#include <string>

#include "base/check.h"

namespace coda::cuda {
namespace {

Kernel check_kernel(const std::string& entry) {
  return KernelStore::get().load(check_source(entry));
}

constexpr unsigned kGrid = 1056, kBlock = 256;

}  // namespace

DeviceCheck::DeviceCheck(const Stream& stream) : stream_(stream) {}

void DeviceCheck::fill(DevicePointer pointer, DType dtype, std::int64_t count, std::uint64_t seed,
                       bool integers) const {
  long long n = count;
  unsigned long long s = seed;
  int flag = integers;
  check_kernel(fmt::format("coda_fill_{}", name_of(dtype)))
      .launch(stream_, kGrid, kBlock, 1, {&pointer, &n, &s, &flag});
}

void DeviceCheck::make_reference(const GemmShape& shape, const GemmOperands& operands,
                                 std::int64_t first, std::int64_t rows) {
  internal_check(operands.b.size() == 1, "DeviceCheck: expected one block of B");
  const std::size_t bytes = rows * shape.n * sizeof(double);
  if (reference_.bytes() < bytes) reference_ = DeviceBuffer(bytes);
  rows_ = rows;
  columns_ = shape.n;
  const bool a_k = shape.a == Major::k, b_k = shape.b == Major::k;
  coda_device::PlainParams p{};
  p.a_row = a_k ? operands.a.stride : 1;
  p.a_column = a_k ? 1 : operands.a.stride;
  p.b_row = b_k ? operands.b[0].stride : 1;
  p.b_column = b_k ? 1 : operands.b[0].stride;
  p.a = reinterpret_cast<void*>(operands.a.pointer + first * p.a_row * size_of(shape.operand));
  p.b = reinterpret_cast<void*>(operands.b[0].pointer);
  p.c = reinterpret_cast<void*>(reference_.pointer());
  p.c_row = shape.n;
  p.m = static_cast<int>(rows);
  p.n = static_cast<int>(shape.n);
  p.k = static_cast<int>(shape.k);
  const auto kernel =
      KernelStore::get().load(plain_gemm_source(shape.operand, DType::f64, false, DType::f64));
  const std::int64_t grid = (rows + 63) / 64 * ((shape.n + 63) / 64);
  kernel.launch(stream_, static_cast<unsigned>(grid), 256, 1, {&p});
}

ErrorReport DeviceCheck::compare(const MatrixBlock& c, DType dtype) const {
  DeviceBuffer sums(3 * sizeof(double));
  sums.fill(0, stream_);
  DevicePointer x = c.pointer, reference = reference_.pointer(), out = sums.pointer();
  long long stride = c.stride, m = rows_, n = columns_;
  check_kernel(fmt::format("coda_compare_{}", name_of(dtype)))
      .launch(stream_, kGrid, kBlock, 1, {&x, &stride, &reference, &m, &n, &out});
  double host[3];
  sums.download(host, sizeof(host), stream_);
  return {std::sqrt(host[0] / (host[1] > 0 ? host[1] : 1)), host[2]};
}

std::uint64_t DeviceCheck::count_differences(DevicePointer x, DevicePointer y,
                                             std::int64_t bytes) const {
  DeviceBuffer count(sizeof(std::uint64_t));
  count.fill(0, stream_);
  DevicePointer out = count.pointer();
  long long words = bytes / 4;
  check_kernel("coda_count_differences").launch(stream_, kGrid, kBlock, 1, {&x, &y, &words, &out});
  std::uint64_t host = 0;
  count.download(&host, sizeof(host), stream_);
  return host;
}

}  // namespace coda::cuda
