// One element of a TensorView as a double, and back with one rounding. Slow and obvious: for the
// reference backend, checks and tests.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace coda {

double read_element(const TensorView& view, std::int64_t row, std::int64_t col);
/// Rounds to the view's dtype to nearest even (f32: from double; 16 bits: from f32).
void write_element(const TensorView& view, std::int64_t row, std::int64_t col, double value);

}  // namespace coda
