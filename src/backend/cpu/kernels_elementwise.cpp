// Elementwise kernels: whole vectors, any mix of tile, row, col and scalar operands.
#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_elementwise.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

/// Rows that follow one another without a gap in every operand are one long row.
HWY_INLINE void flatten(Strip y, Arg a, i64& rows, i64& n) {
  const i64 width = padded(n);
  if (!a.uniform && y.row_stride == width && a.row_stride == width) n = width * rows, rows = 1;
}

template <class F>
HWY_INLINE void map(Strip y, Arg x, i64 rows, i64 n, F f) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  flatten(y, x, rows, n);
  for (i64 r = 0; r < rows; ++r) {
    float* out = y.data + r * y.row_stride;
    const float* in = x.data + r * x.row_stride;
    if (x.uniform) {
      const VF value = f(hn::Set(d, *in));
      for (i64 c = 0; c < n; c += lanes) hn::Store(value, d, out + c);
    } else {
      for (i64 c = 0; c < n; c += lanes) hn::Store(f(hn::LoadU(d, in + c)), d, out + c);
    }
  }
}

template <class F>
HWY_INLINE void map2(Strip y, Arg a, Arg b, i64 rows, i64 n, F f) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  if (!b.uniform && a.row_stride == b.row_stride) flatten(y, a, rows, n);
  for (i64 r = 0; r < rows; ++r) {
    float* out = y.data + r * y.row_stride;
    const float* pa = a.data + r * a.row_stride;
    const float* pb = b.data + r * b.row_stride;
    if (b.uniform) {
      const VF vb = hn::Set(d, *pb);
      if (a.uniform) {
        const VF value = f(hn::Set(d, *pa), vb);
        for (i64 c = 0; c < n; c += lanes) hn::Store(value, d, out + c);
      } else {
        for (i64 c = 0; c < n; c += lanes) hn::Store(f(hn::LoadU(d, pa + c), vb), d, out + c);
      }
    } else if (a.uniform) {
      const VF va = hn::Set(d, *pa);
      for (i64 c = 0; c < n; c += lanes) hn::Store(f(va, hn::LoadU(d, pb + c)), d, out + c);
    } else {
      for (i64 c = 0; c < n; c += lanes)
        hn::Store(f(hn::LoadU(d, pa + c), hn::LoadU(d, pb + c)), d, out + c);
    }
  }
}

#define CODA_UNARY(name, expression)                                \
  void name(Strip y, Arg arg, i64 rows, i64 n) {                    \
    map(y, arg, rows, n, [](VF x) HWY_ATTR { return expression; }); \
  }
#define CODA_BINARY(name, expression)                                               \
  void name(Strip y, Arg arg_a, Arg arg_b, i64 rows, i64 n) {                       \
    map2(y, arg_a, arg_b, rows, n, [](VF a, VF b) HWY_ATTR { return expression; }); \
  }

CODA_UNARY(copy_kernel, x)
CODA_UNARY(neg_kernel, hn::Neg(x))
CODA_UNARY(exp_kernel, exp(x))
CODA_UNARY(log_kernel, log(x))
CODA_UNARY(tanh_kernel, tanh(x))
CODA_UNARY(sigmoid_kernel, sigmoid(x))
CODA_UNARY(rsqrt_kernel, rsqrt(x))
CODA_UNARY(erf_kernel, erf(x))
CODA_UNARY(round_bf16_kernel, round_to_bf16(x))
CODA_UNARY(round_f16_kernel, round_to_f16(x))
CODA_BINARY(add_kernel, hn::Add(a, b))
CODA_BINARY(sub_kernel, hn::Sub(a, b))
CODA_BINARY(mul_kernel, hn::Mul(a, b))
CODA_BINARY(mul_sigmoid_kernel, hn::Mul(a, sigmoid(b)))
CODA_BINARY(div_kernel, hn::Div(a, b))
CODA_BINARY(add_bf16_kernel, round_to_bf16(hn::Add(a, b)))
CODA_BINARY(sub_bf16_kernel, round_to_bf16(hn::Sub(a, b)))
CODA_BINARY(mul_bf16_kernel, round_to_bf16(hn::Mul(a, b)))
CODA_BINARY(mul_sigmoid_bf16_kernel, round_to_bf16(hn::Mul(a, sigmoid(b))))
CODA_BINARY(maximum_kernel, maximum(a, b))
CODA_BINARY(greater_kernel, hn::IfThenElseZero(hn::Gt(a, b), constant(1.0f)))
CODA_BINARY(equal_kernel, hn::IfThenElseZero(hn::Eq(a, b), constant(1.0f)))
#undef CODA_UNARY
#undef CODA_BINARY

}  // namespace

void fill_elementwise(Kernels& table) {
  table.copy = copy_kernel;
  table.unary[index_of(Op::neg)] = neg_kernel;
  table.unary[index_of(Op::exp)] = exp_kernel;
  table.unary[index_of(Op::log)] = log_kernel;
  table.unary[index_of(Op::tanh)] = tanh_kernel;
  table.unary[index_of(Op::sigmoid)] = sigmoid_kernel;
  table.unary[index_of(Op::rsqrt)] = rsqrt_kernel;
  table.unary[index_of(Op::erf)] = erf_kernel;
  table.round[index_of(DType::f32)] = copy_kernel;
  table.round[index_of(DType::bf16)] = round_bf16_kernel;
  table.round[index_of(DType::f16)] = round_f16_kernel;
  table.mul_sigmoid = mul_sigmoid_kernel;
  table.rounded_mul_sigmoid[index_of(DType::bf16)] = mul_sigmoid_bf16_kernel;
  auto& to_bf16 = table.rounded[index_of(DType::bf16)];
  to_bf16[index_of(Op::add)] = add_bf16_kernel;
  to_bf16[index_of(Op::sub)] = sub_bf16_kernel;
  to_bf16[index_of(Op::mul)] = mul_bf16_kernel;
  table.binary[index_of(Op::add)] = add_kernel;
  table.binary[index_of(Op::sub)] = sub_kernel;
  table.binary[index_of(Op::mul)] = mul_kernel;
  table.binary[index_of(Op::div)] = div_kernel;
  table.binary[index_of(Op::maximum)] = maximum_kernel;
  table.binary[index_of(Op::greater)] = greater_kernel;
  table.binary[index_of(Op::equal)] = equal_kernel;
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(fill_elementwise);
void add_elementwise_kernels(Kernels& table) { HWY_DYNAMIC_DISPATCH(fill_elementwise)(table); }
}  // namespace coda::cpu
#endif
