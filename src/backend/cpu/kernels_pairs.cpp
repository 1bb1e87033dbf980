// Pairs of columns, rotations and segments.
#include <cmath>

#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_pairs.cpp"
#include "backend/cpu/simd_targets.h"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coda::cpu::HWY_NAMESPACE {
namespace {

template <int which>
void split_interleaved(Strip y, Arg x, i64 rows, i64 n, i64) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 r = 0; r < rows; ++r) {
    const float* in = x.data + r * x.row_stride;
    float* out = y.data + r * y.row_stride;
    for (i64 c = 0; c < n; c += lanes) {
      VF first, second;
      hn::LoadInterleaved2(d, in + 2 * c, first, second);
      hn::Store(which == 0 ? first : second, d, out + c);
    }
  }
}

void join_interleaved(Strip y, Arg first, Arg second, i64 rows, i64 n) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 r = 0; r < rows; ++r) {
    const float* a = first.data + r * first.row_stride;
    const float* b = second.data + r * second.row_stride;
    float* out = y.data + r * y.row_stride;
    for (i64 c = 0; c < n; c += lanes)
      hn::StoreInterleaved2(hn::LoadU(d, a + c), hn::LoadU(d, b + c), d, out + 2 * c);
  }
}

HWY_INLINE void rotate_vectors(VF& first, VF& second, VF cosine, VF sine) {
  const VF turned = hn::Sub(hn::Mul(first, cosine), hn::Mul(second, sine));
  second = hn::Add(hn::Mul(second, cosine), hn::Mul(first, sine));
  first = turned;
}

/// One group of 2 * half columns; y may be x.
HWY_INLINE void rotate_halves(float* y, const float* x, const float* table, i64 half, float sign) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 j = 0;
  for (; j + lanes <= half; j += lanes) {
    VF first = hn::LoadU(d, x + j), second = hn::LoadU(d, x + half + j);
    const VF sine = hn::Mul(hn::Set(d, sign), hn::LoadU(d, table + half + j));
    rotate_vectors(first, second, hn::LoadU(d, table + j), sine);
    hn::StoreU(first, d, y + j);
    hn::StoreU(second, d, y + half + j);
  }
  for (; j < half; ++j) {
    const float first = x[j], second = x[half + j], sine = sign * table[half + j];
    y[j] = first * table[j] - second * sine;
    y[half + j] = second * table[j] + first * sine;
  }
}

HWY_INLINE void rotate_interleaved(float* y, const float* x, const float* table, i64 half,
                                   float sign) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 j = 0;
  for (; j + lanes <= half; j += lanes) {
    VF first, second;
    hn::LoadInterleaved2(d, x + 2 * j, first, second);
    const VF sine = hn::Mul(hn::Set(d, sign), hn::LoadU(d, table + half + j));
    rotate_vectors(first, second, hn::LoadU(d, table + j), sine);
    hn::StoreInterleaved2(first, second, d, y + 2 * j);
  }
  for (; j < half; ++j) {
    const float first = x[2 * j], second = x[2 * j + 1], sine = sign * table[half + j];
    y[2 * j] = first * table[j] - second * sine;
    y[2 * j + 1] = second * table[j] + first * sine;
  }
}

void rotate_kernel(Strip y, Arg x, const float* table, i64 rows, i64 n, i64 period,
                   PairLayout layout, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  for (i64 r = 0; r < rows; ++r) {
    const float* in = x.data + r * x.row_stride;
    float* out = y.data + r * y.row_stride;
    const float* angles = table + r * period;
    for (i64 c = 0; c + period <= n; c += period) {
      if (layout == PairLayout::halves)
        rotate_halves(out + c, in + c, angles, period / 2, sign);
      else
        rotate_interleaved(out + c, in + c, angles, period / 2, sign);
    }
  }
}

/// sin and cos of a quarter turn's fraction r in [-0.5, 0.5], then put in their quadrant.
HWY_INLINE void quarter_turns(VF r, hn::Vec<I32> quadrant, VF& cosine, VF& sine) {
  const I32 di;
  static constexpr float kSin[] = {0x1.921fb6p+0f, -0x1.4abbbap-1f, 0x1.465ec4p-4f, -0x1.2d9b3p-8f};
  static constexpr float kCos[] = {0x1p+0f, -0x1.3bd3ccp+0f, 0x1.03c1dcp-2f, -0x1.55c578p-6f,
                                   0x1.d9c29p-11f};
  const VF square = hn::Mul(r, r);
  const VF s = hn::Mul(r, polynomial(square, kSin));
  const VF c = polynomial(square, kCos);
  const auto one = hn::Set(di, 1);
  const auto swap = hn::RebindMask(F32(), hn::Eq(hn::And(quadrant, one), one));
  const auto sine_sign = hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2)));
  const auto cosine_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), hn::Set(di, 2)));
  sine = hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(F32(), sine_sign));
  cosine = hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(F32(), cosine_sign));
}

void angles_kernel(float* table, i64 position, const float* frequencies, i64 half) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const double p = static_cast<double>(position);
  for (i64 j = 0; j < half; j += lanes) {
    HWY_ALIGN float rest[16] = {};
    HWY_ALIGN std::int32_t quadrant[16] = {};
    HWY_ALIGN float cosine[16], sine[16];
    const i64 count = half - j < lanes ? half - j : lanes;
    for (i64 i = 0; i < count; ++i) {
      // The product with the high part is exact in double for positions below 2^29.
      const double high = p * static_cast<double>(frequencies[j + i]);
      const double low = p * static_cast<double>(frequencies[half + j + i]);
      const double quarters = 4.0 * ((high - std::nearbyint(high)) + low);
      const double nearest = std::nearbyint(quarters);
      rest[i] = static_cast<float>(quarters - nearest);
      quadrant[i] = static_cast<std::int32_t>(static_cast<i64>(nearest) & 3);
    }
    VF c, s;
    quarter_turns(hn::Load(d, rest), hn::Load(I32(), quadrant), c, s);
    hn::Store(c, d, cosine);
    hn::Store(s, d, sine);
    for (i64 i = 0; i < count; ++i) {
      table[j + i] = cosine[i];
      table[half + j + i] = sine[i];
    }
  }
}

void segment_sum_kernel(Strip y, Arg x, i64 rows, i64 n, i64 period) {
  const F32 d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 r = 0; r < rows; ++r) {
    const float* in = x.data + r * x.row_stride;
    float* out = y.data + r * y.row_stride;
    for (i64 c = 0; c + period <= n; c += period, ++out) {
      HWY_ALIGN float lane[16] = {};
      i64 j = 0;
      for (; j + 16 <= period; j += 16)
        for (i64 i = 0; i < 16; i += lanes)
          hn::Store(hn::Add(hn::Load(d, lane + i), hn::LoadU(d, in + c + j + i)), d, lane + i);
      for (i64 i = 0; j < period; ++i, ++j) lane[i] += in[c + j];
      for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
      *out = lane[0];
    }
  }
}

}  // namespace

void fill_pairs(Kernels& table) {
  table.first_interleaved = split_interleaved<0>;
  table.second_interleaved = split_interleaved<1>;
  table.join_interleaved = join_interleaved;
  table.rotate = rotate_kernel;
  table.angles = angles_kernel;
  table.segment_sum = segment_sum_kernel;
}

}  // namespace coda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
HWY_EXPORT(fill_pairs);
void add_pair_kernels(Kernels& table) { HWY_DYNAMIC_DISPATCH(fill_pairs)(table); }
}  // namespace coda::cpu
#endif
