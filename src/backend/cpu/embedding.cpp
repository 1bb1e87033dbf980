#include "backend/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"

namespace coda::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 64;
constexpr std::int64_t kColumnsPerTask = 64;

std::int64_t id_at(const TensorView& ids, std::int64_t row) {
  return ids.dtype == DType::i64 ? ids.as<std::int64_t>()[row * ids.stride]
                                 : ids.as<std::int32_t>()[row * ids.stride];
}

std::byte* address(const TensorView& view, std::int64_t row, std::int64_t col) {
  return view.as<std::byte>() +
         static_cast<std::size_t>(row * view.stride + col) * size_of(view.dtype);
}

/// Calls use(i, value) with elements [0, n) from `source` as fp32.
template <class Use>
void for_each_f32(const std::byte* source, DType dtype, std::int64_t n, const Use& use) {
  switch (dtype) {
    case DType::bf16: {
      const auto* x = reinterpret_cast<const std::uint16_t*>(source);
      for (std::int64_t i = 0; i < n; ++i) use(i, f32_from_bf16(x[i]));
      break;
    }
    case DType::f16: {
      const auto* x = reinterpret_cast<const std::uint16_t*>(source);
      for (std::int64_t i = 0; i < n; ++i) use(i, f32_from_f16(x[i]));
      break;
    }
    default: {
      const auto* x = reinterpret_cast<const float*>(source);
      for (std::int64_t i = 0; i < n; ++i) use(i, x[i]);
    }
  }
}

void copy_row(const TensorView& from, std::int64_t from_row, const TensorView& to,
              std::int64_t to_row) {
  const std::byte* source = address(from, from_row, 0);
  std::byte* target = address(to, to_row, 0);
  if (from.dtype == to.dtype) {
    std::memcpy(target, source, static_cast<std::size_t>(to.cols) * size_of(to.dtype));
    return;
  }
  for_each_f32(source, from.dtype, to.cols, [&](std::int64_t i, float value) {
    switch (to.dtype) {
      case DType::bf16:
        reinterpret_cast<std::uint16_t*>(target)[i] = bf16_from_f32(value);
        break;
      case DType::f16:
        reinterpret_cast<std::uint16_t*>(target)[i] = f16_from_f32(value);
        break;
      default:
        reinterpret_cast<float*>(target)[i] = value;
    }
  });
}

void run_forward(const OpaqueCall& call) {
  const TensorView &table = call.inputs[0], &ids = call.inputs[1], &x = call.outputs[0];
  const std::int64_t tasks = (call.tokens + kRowsPerTask - 1) / kRowsPerTask;
  call.pool.parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(call.tokens, (task + 1) * kRowsPerTask);
    for (std::int64_t r = task * kRowsPerTask; r < end; ++r) copy_row(table, id_at(ids, r), x, r);
  });
}

void run_backward(const OpaqueCall& call) {
  const TensorView &ids = call.inputs[0], &d_x = call.inputs[1], &d_table = call.outputs[0];
  const std::int64_t tasks = (d_table.cols + kColumnsPerTask - 1) / kColumnsPerTask;
  call.pool.parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t col = task * kColumnsPerTask;
    const std::int64_t n = std::min(kColumnsPerTask, d_table.cols - col);
    for (std::int64_t row = 0; row < d_table.rows && !call.accumulates; ++row) {
      std::memset(address(d_table, row, col), 0, static_cast<std::size_t>(n) * sizeof(float));
    }
    for (std::int64_t r = 0; r < call.tokens; ++r) {
      auto* sums = reinterpret_cast<float*>(address(d_table, id_at(ids, r), col));
      for_each_f32(address(d_x, r, col), d_x.dtype, n,
                   [&](std::int64_t i, float value) { sums[i] += value; });
    }
  });
}

}  // namespace

const OpaqueKernel kEmbedding{nullptr, run_forward};
const OpaqueKernel kEmbeddingBackward{nullptr, run_backward};

}  // namespace coda::cpu
