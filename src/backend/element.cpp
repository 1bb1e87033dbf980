#include "backend/element.h"

#include "base/check.h"
#include "base/convert.h"

namespace coda {

double read_element(const TensorView& view, std::int64_t row, std::int64_t col) {
  const std::int64_t i = row * view.stride + col;
  switch (view.dtype) {
    case DType::f32:
      return view.as<const float>()[i];
    case DType::bf16:
      return f32_from_bf16(view.as<const std::uint16_t>()[i]);
    case DType::f16:
      return f32_from_f16(view.as<const std::uint16_t>()[i]);
    case DType::f64:
      return view.as<const double>()[i];
    case DType::i32:
      return view.as<const std::int32_t>()[i];
    case DType::i64:
      return static_cast<double>(view.as<const std::int64_t>()[i]);
  }
  throw InternalError("read_element: unknown dtype");
}

void write_element(const TensorView& view, std::int64_t row, std::int64_t col, double value) {
  const std::int64_t i = row * view.stride + col;
  switch (view.dtype) {
    case DType::f32:
      view.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      view.as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(value));
      return;
    case DType::f16:
      view.as<std::uint16_t>()[i] = f16_from_f32(static_cast<float>(value));
      return;
    case DType::f64:
      view.as<double>()[i] = value;
      return;
    case DType::i32:
      view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      view.as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
      return;
  }
  throw InternalError("write_element: unknown dtype");
}

}  // namespace coda
