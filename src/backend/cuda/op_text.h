// Ops as CUDA text: the one table that GEMM epilogues and row programs share. The functions that
// the text calls are in device/op_math.cuh; whoever generates a kernel puts kOpFiles in front.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "coda/op.h"

namespace coda::cuda {

/// Files of device/ that the expressions need, in order, after params.cuh.
inline constexpr std::initializer_list<const char*> kOpFiles = {"ptx.cuh", "elements.cuh",
                                                                "op_math.cuh"};

/// Can op_text write it? True for elementwise ops other than broadcast.
bool has_op_text(Op op);

/// An elementwise op of fp32 expressions as an expression: "op::mul(preact, rstd)". b is not read
/// by ops of one operand. Throws InternalError for ops without text.
std::string op_text(Op op, const Attrs& attrs, std::string_view a, std::string_view b = {});

/// An fp32 literal of exactly this value (rounded to fp32), NaN and infinities too.
std::string literal_text(double value);

/// The class of elements.cuh that loads and stores a memory type: "Bf16", "F16", "F32", "F64".
std::string_view element_text(DType dtype);

/// A value's name as a C++ identifier; names that C++ or device code has taken get "_v" behind
/// them.
std::string identifier_text(std::string_view name);

}  // namespace coda::cuda
