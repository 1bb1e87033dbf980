// What the elementwise ops mean on the GPU: one function an op, of the op table's name, as
// ops/scalar.h defines it in double. Shared by GEMM epilogues and row programs (op_text.h). No
// operation is contracted into another, so equal ops give equal bits in whatever kernel.
#pragma once

namespace coda_device {

CODA_DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

namespace op {

CODA_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
CODA_DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
CODA_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
CODA_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
CODA_DEVICE float neg(float a) { return -a; }
CODA_DEVICE float exp(float a) { return ::expf(a); }
CODA_DEVICE float log(float a) { return ::logf(a); }
CODA_DEVICE float tanh(float a) { return ::tanhf(a); }
CODA_DEVICE float erf(float a) { return ::erff(a); }
CODA_DEVICE float rsqrt(float a) { return __fdiv_rn(1.0f, __fsqrt_rn(a)); }
/// 1 / (1 + e^-a) by ex2.approx and rcp.approx: relative error at most 2^-22 (2 + |a|) where a < 0,
/// 2^-22 elsewhere.
CODA_DEVICE float sigmoid(float a) {
  const float power = approximate_exp2(__fmul_rn(a, -1.44269504f));
  return approximate_reciprocal(__fadd_rn(1.0f, power));
}
/// NaN if either is NaN.
CODA_DEVICE float maximum(float a, float b) { return larger_or_nan(a, b); }
CODA_DEVICE float greater(float a, float b) { return a > b ? 1.0f : 0.0f; }
CODA_DEVICE float equal(float a, float b) { return a == b ? 1.0f : 0.0f; }

CODA_DEVICE float cast_bf16(float a) {
  return __uint_as_float(pack_bf16(0.0f, a) & 0xffff0000u);
}
CODA_DEVICE float cast_f16(float a) { return unpack_f16(static_cast<u16>(pack_f16(a, 0.0f))); }
CODA_DEVICE float cast_f32(float a) { return a; }

}  // namespace op

/// A running log-sum-exp: the maximum and the sum of e^(x - max). Empty: (-inf, 0). A NaN anywhere
/// makes max NaN; an infinite max needs no sum.
struct LogSum {
  float max = minus_infinity();
  float sum = 0.0f;

  CODA_DEVICE void add(float other_max, float other_sum) {
    const float top = op::maximum(max, other_max);
    sum = op::add(scaled(max, sum, top), scaled(other_max, other_sum, top));
    max = top;
  }
  CODA_DEVICE void add(float x) { add(x, x == minus_infinity() ? 0.0f : 1.0f); }
  CODA_DEVICE float log_sum() const {
    const bool infinite = max == minus_infinity() || max == -minus_infinity();
    return infinite ? 0.0f : max != max ? max : ::logf(sum);
  }
  CODA_DEVICE float value() const { return op::add(max, log_sum()); }

 private:
  /// An empty part has sum 0 whatever its scale.
  static CODA_DEVICE float scaled(float part_max, float part_sum, float top) {
    const bool as_it_is = part_sum == 0.0f || part_max == top;
    return as_it_is ? part_sum : op::mul(part_sum, ::expf(op::sub(part_max, top)));
  }
};

/// Cosine and sine of position * (hi + lo) turns. In double, so that at position 131071 the angle
/// is right to 1e-7 turns.
CODA_DEVICE void angle_of(long long position, float hi, float lo, float& cosine, float& sine) {
  const double whole = static_cast<double>(position) * hi;
  const double turn = (whole - ::rint(whole)) + static_cast<double>(position) * lo;
  const float half_turns = static_cast<float>(2.0 * (turn - ::rint(turn)));
  cosine = ::cospif(half_turns);
  sine = ::sinpif(half_turns);
}

/// Integer vectors (targets, positions) are i32 or i64 and stay integers.
CODA_DEVICE long long load_integer(const void* pointer, long long index, bool is_i64) {
  return is_i64 ? static_cast<const long long*>(pointer)[index]
                : static_cast<const int*>(pointer)[index];
}

}  // namespace coda_device
