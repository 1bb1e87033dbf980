// Vector kernels on strips: a few rows of a tile, fp32, in first-level cache. Each kernel is chosen
// once for the processor's instruction set (Highway run-time dispatch).
//
// A strip's rows start a multiple of kPad floats apart, and what stands between a row's end and the
// next row may be read and overwritten: elementwise kernels work on whole vectors. Kernels that
// touch users' memory or that reduce take exact widths.
#pragma once

#include <array>
#include <cstdint>

#include "coda/op.h"

namespace coda::cpu {

inline constexpr std::int64_t kPad = 32;
inline constexpr std::int64_t padded(std::int64_t n) { return (n + kPad - 1) / kPad * kPad; }

/// An operand: element (r, c) is data[r * row_stride + c], or data[r * row_stride] for every c if
/// uniform. A tile has its own row stride, a row vector has row stride 0, a col is uniform with row
/// stride 1, a scalar is uniform with row stride 0.
struct Arg {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  bool uniform = false;
};

/// Where a kernel writes.
struct Strip {
  float* data = nullptr;
  std::int64_t row_stride = 0;
};

/// Integers of a col (targets, positions), i32 or i64, one every `stride` elements.
struct IntColumn {
  const void* data = nullptr;
  std::int64_t stride = 1;
  bool wide = false;
  std::int64_t operator[](std::int64_t row) const {
    return wide ? static_cast<const std::int64_t*>(data)[row * stride]
                : static_cast<const std::int32_t*>(data)[row * stride];
  }
};

using i64 = std::int64_t;
using UnaryKernel = void (*)(Strip y, Arg x, i64 rows, i64 n);
using BinaryKernel = void (*)(Strip y, Arg a, Arg b, i64 rows, i64 n);
using PairKernel = void (*)(Strip y, Arg x, i64 rows, i64 n, i64 period);
using LoadKernel = void (*)(Strip y, const void* x, i64 stride, i64 rows, i64 n);
using StoreKernel = void (*)(void* y, i64 stride, Arg x, i64 rows, i64 n);
/// Makes a tile out of up to three, stores it, and leaves it in `keep` as well if that has data.
using ChainKernel = void (*)(void* y, i64 stride, Strip keep, Arg a, Arg b, Arg c, i64 rows, i64 n);
/// Reduces each granule of kColumnGranule columns of each row: y[granule * stride + row].
using ReduceKernel = void (*)(float* y, i64 stride, Arg x, i64 rows, i64 n);

inline constexpr std::size_t kOpCount = static_cast<std::size_t>(Op::proj) + 1;
inline constexpr std::size_t kDTypeCount = 6;
inline constexpr std::size_t index_of(Op op) { return static_cast<std::size_t>(op); }
inline constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

/// Ops in a row whose result is stored, made in one pass. Only b of the first three may be uniform.
enum class Chain : std::uint8_t {
  add,              ///< a + b
  sub,              ///< a - b
  mul,              ///< a * b
  mul_sigmoid,      ///< a * sigmoid(b)
  mul_mul_sigmoid,  ///< a * sigmoid(b) * c
};
inline constexpr std::size_t kChainCount = 5;

/// gate = a * scale, up = b * scale and gate * sigmoid(gate) * up, all three stored. With
/// interleaved pairs a holds both factors, and gate_out takes both.
struct GatedProduct {
  Arg a, b, scale;  ///< scale is uniform, the others are not
  bool interleaved = false;
  void *gate_out = nullptr, *up_out = nullptr, *y = nullptr;
  i64 gate_stride = 0, up_stride = 0, stride = 0;
};
using GatedKernel = void (*)(const GatedProduct& product, i64 rows, i64 n);

struct Kernels {
  std::array<UnaryKernel, kOpCount> unary{};     ///< neg exp log tanh sigmoid rsqrt erf
  std::array<BinaryKernel, kOpCount> binary{};   ///< add sub mul div maximum greater equal
  std::array<UnaryKernel, kDTypeCount> round{};  ///< to bf16, f16; f32 copies
  /// Ops with what follows them, in one pass: a * sigmoid(b), and a result rounded to a type. Bits
  /// are those of the ops one by one.
  BinaryKernel mul_sigmoid = nullptr;
  std::array<std::array<BinaryKernel, kOpCount>, kDTypeCount> rounded{};  ///< bf16: add sub mul
  std::array<BinaryKernel, kDTypeCount> rounded_mul_sigmoid{};            ///< bf16
  UnaryKernel copy = nullptr;                  ///< also spreads a col, row or scalar
  std::array<LoadKernel, kDTypeCount> load{};  ///< f32 bf16 f16
  std::array<StoreKernel, kDTypeCount> store{};
  StoreKernel accumulate = nullptr;                      ///< f32: y += x
  std::array<StoreKernel, kDTypeCount> store_rounded{};  ///< of values that have been rounded: bf16

  // Chains of ops that end in memory of type f32 or bf16; what is kept or read again has been
  // rounded to it. Bits are those of the ops one by one.
  std::array<std::array<ChainKernel, kChainCount>, kDTypeCount> chain{};
  std::array<GatedKernel, kDTypeCount> gated{};

  // Interleaved pairs; n counts pairs, `period` is unused.
  PairKernel first_interleaved = nullptr, second_interleaved = nullptr;
  void (*join_interleaved)(Strip y, Arg first, Arg second, i64 rows, i64 n) = nullptr;
  /// n columns in groups of `period`; the angles' cosines, then sines, are table[row * period].
  void (*rotate)(Strip y, Arg x, const float* table, i64 rows, i64 n, i64 period, PairLayout layout,
                 bool inverse) = nullptr;
  /// cos and sin of 2 pi position * (frequencies[j] + frequencies[half + j]), 2 * half numbers.
  void (*angles)(float* table, i64 position, const float* frequencies, i64 half) = nullptr;
  /// n columns of x in segments of `period` -> n / period columns.
  PairKernel segment_sum = nullptr;

  ReduceKernel row_sum = nullptr, row_max = nullptr;
  /// Online log-sum-exp: maxima at y, sums at y + plane.
  void (*lse)(float* y, i64 plane, i64 stride, Arg x, i64 rows, i64 n) = nullptr;
  /// y[c] += (or =, if first) the sum of x over rows, in ascending order.
  void (*col_sum)(float* y, Arg x, i64 rows, i64 n, bool first) = nullptr;
  /// (max, sum) += (more_max, more_sum), n pairs.
  void (*combine_lse)(float* max, float* sum, const float* more_max, const float* more_sum,
                      i64 n) = nullptr;
  /// max + log(sum), n numbers in place of max.
  void (*finish_lse)(float* max, const float* sum, i64 n) = nullptr;
  /// log(sum), n numbers in place of max; 0 where that is infinite.
  void (*finish_log_sum)(float* max, const float* sum, i64 n) = nullptr;
};

const Kernels& kernels();

// What kernels() is made of; one source file each.
void add_chain_kernels(Kernels& table);
void add_elementwise_kernels(Kernels& table);
void add_memory_kernels(Kernels& table);
void add_pair_kernels(Kernels& table);
void add_reduction_kernels(Kernels& table);

}  // namespace coda::cpu
