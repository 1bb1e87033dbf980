// What generated epilogues reduce of their fragments (epilogue_fragment.cuh): sums, maxima, picks and
// log-sum-exp of a row's granules, sums of columns.
#pragma once

namespace coda_device {

/// Over the four lanes that hold a row.
CODA_DEVICE float quad_sum(float v) {
  v = op::add(v, __shfl_xor_sync(0xffffffff, v, 1));
  return op::add(v, __shfl_xor_sync(0xffffffff, v, 2));
}
CODA_DEVICE float quad_max(float v) {
  v = op::maximum(v, __shfl_xor_sync(0xffffffff, v, 1));
  return op::maximum(v, __shfl_xor_sync(0xffffffff, v, 2));
}

// ---- Reductions of a granule: 64 columns of both rows. Fixed order: a lane's values ascending, step
// by step, then the four lanes as a tree (finish_*); lanes of layout 0 hold everything and need no
// tree. What lies outside `width` does not take part.

template <int L, int kCount, bool kRagged>
CODA_DEVICE void add_sum(float (&sum)[2], const float* values, int column, int width, int lane) {
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    const bool in = !kRagged || column + column_of<L>(x, lane) < width;
    if (in) sum[row_of<L>(x)] = op::add(sum[row_of<L>(x)], values[x]);
  }
}
/// The sum of products of 16-bit values, which fp32 holds exactly: so fused, it has the bits of the
/// products one by one.
template <int L, int kCount, bool kRagged>
CODA_DEVICE void add_products(float (&sum)[2], const float* a, const float* b, int column, int width,
                              int lane) {
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    const bool in = !kRagged || column + column_of<L>(x, lane) < width;
    if (in) sum[row_of<L>(x)] = __fmaf_rn(a[x], b[x], sum[row_of<L>(x)]);
  }
}
template <int L, int kCount, bool kRagged>
CODA_DEVICE void add_max(float (&top)[2], const float* values, int column, int width, int lane) {
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    const bool in = !kRagged || column + column_of<L>(x, lane) < width;
    if (in) top[row_of<L>(x)] = op::maximum(top[row_of<L>(x)], values[x]);
  }
}
/// The value in column target[h], if that is here.
template <int L, int kCount, bool kRagged>
CODA_DEVICE void add_pick(float (&picked)[2], const float* values, int column, int width,
                          const int (&target)[2], int lane) {
  // Most chunks have no row's target.
  constexpr int kColumns = kCount * 2;
  const auto here = [&](int h) { return static_cast<u32>(target[h] - column) < kColumns; };
  if (!__any_sync(0xffffffff, here(0) || here(1))) return;
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    const int h = row_of<L>(x);
    const int c = column + column_of<L>(x, lane);
    if (c == target[h] && (!kRagged || c < width)) picked[h] = values[x];
  }
}
template <int L>
CODA_DEVICE void finish_sum(float (&sum)[2]) {
  if constexpr (L > 0) {
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
  }
}
template <int L>
CODA_DEVICE void finish_pick(float (&picked)[2]) {
  if (__any_sync(0xffffffff, picked[0] != 0.0f || picked[1] != 0.0f)) finish_sum<L>(picked);
}
template <int L>
CODA_DEVICE void finish_max(float (&top)[2]) {
  if constexpr (L > 0) {
    top[0] = quad_max(top[0]);
    top[1] = quad_max(top[1]);
  }
}

/// A lane's values of a granule, and the largest of each row among those that are `in`.
struct ArrayValues {
  const float* values;
  CODA_DEVICE float at(int x) const { return values[x]; }
  CODA_DEVICE bool is(int x, float value) const { return values[x] == value; }
  template <int L, int kCount, class In>
  CODA_DEVICE void maxima(float (&top)[2], const In& in) const {
    top[0] = top[1] = minus_infinity();
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      if (in(x)) top[row_of<L>(x)] = op::maximum(top[row_of<L>(x)], values[x]);
    }
  }
};
/// Held in 16 bits, in the accumulator's layout (L = 2): there are no registers for all of them
/// unpacked beside the accumulators.
template <class Element>
struct HeldValues {
  const u32* held;
  CODA_DEVICE float at(int x) const {
    return unpack_half<Element>(static_cast<u16>(held[x / 2] >> (x % 2 * 16)));
  }
  /// By its bits, so that nothing unpacked has to stay for it. Not for zeros.
  CODA_DEVICE bool is(int x, float value) const {
    const u32 bits = pack_pair<Element>(value, value) & 0xffff;
    return (held[x / 2] >> (x % 2 * 16) & 0xffff) == bits;
  }
  template <int L, int kCount, class In>
  CODA_DEVICE void maxima(float (&top)[2], const In& in) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      u32 pair = pack_pair<Element>(minus_infinity(), minus_infinity());
#pragma unroll
      for (int j = h; j < kCount / 2; j += 2) {
        if (!in(2 * j)) continue;
        const u32 both = in(2 * j + 1) ? held[j] : (held[j] & 0xffff) * 0x10001u;
        pair = larger_pair_or_nan<Element>(pair, both);
      }
      top[h] = op::maximum(unpack_half<Element>(static_cast<u16>(pair & 0xffff)),
                           unpack_half<Element>(static_cast<u16>(pair >> 16)));
    }
  }
};

/// A granule's log-sum-exp: its maximum, and the sum of e^(x - maximum).
template <int L, int kCount, bool kRagged, class Values>
CODA_DEVICE void log_sum_maximum(float (&top)[2], Values values, int column, int width, int lane) {
  values.template maxima<L, kCount>(
      top, [&](int x) { return !kRagged || column + column_of<L>(x, lane) < width; });
  finish_max<L>(top);
}
/// The largest term is 1, so what ex2.approx and its rounded argument err in the others stays below
/// 2^-21 of the sum.
template <int L, int kCount, bool kRagged, class Values>
CODA_DEVICE void log_sum_terms(const float (&top)[2], float (&sum)[2], Values values, int column,
                               int width, int lane) {
  constexpr float kLog2E = 1.44269504f;
  const auto in = [&](int x) { return !kRagged || column + column_of<L>(x, lane) < width; };
  // x log2(e) - shift is one operation; what shift, rounded, is beside maximum log2(e) is the same
  // for every term, and comes off the sum.
  const auto base = [&](int h) { return top[h] == minus_infinity() ? 0.0f : top[h]; };
  const float shift[2] = {op::mul(base(0), kLog2E), op::mul(base(1), kLog2E)};
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    const int h = row_of<L>(x);
    const float term = approximate_exp2(__fmaf_rn(values.at(x), kLog2E, -shift[h]));
    if (in(x)) sum[h] = op::add(sum[h], term);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = op::mul(sum[h], approximate_exp2(__fmaf_rn(-base(h), kLog2E, shift[h])));
  }
  // Beside an infinite or huge maximum the others vanish, and it counts as often as it occurs: from
  // here on neighbouring numbers are 64 apart.
  constexpr float kHuge = 536870912.0f;
  if (fabsf(base(0)) >= kHuge || fabsf(base(1)) >= kHuge) {
    float count[2] = {};
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      if (in(x) && values.is(x, top[row_of<L>(x)])) count[row_of<L>(x)] += 1.0f;
    }
    if (fabsf(base(0)) >= kHuge) sum[0] = count[0];
    if (fabsf(base(1)) >= kHuge) sum[1] = count[1];
  }
  finish_sum<L>(sum);
}

/// Partial `granule` of both rows; one lane of the four stores.
CODA_DEVICE void store_granule(const float (&values)[2], const EpilogueOperand& to, long long granule,
                               const Rows& rows, int lane) {
  if ((lane & 3) == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (rows.in[h]) F32::store(to.pointer, granule * to.stride + rows.at(h), values[h]);
    }
  }
}

// ---- Column sums. Each warp leaves the sums of its 16 rows in its staging buffers, at `base` floats;
// then the 8 sums that make kRowGranule = 128 rows are added in ascending order.

constexpr int kSlabs = 8;

/// Adds up kCount columns over the 8 lanes that hold each, 8 rows: as a tree over lanes 4, 8 and 16
/// apart. At each level of the tree a lane passes half of its columns on while it has several.
template <int kCount, int kApart = 4>
CODA_DEVICE void sum_columns(float (&sums)[kCount], int lane) {
  if constexpr (kApart < 32) {
    if constexpr (kCount % 2 == 0) {
      constexpr int kHalf = kCount / 2;
      const bool upper = (lane & kApart) != 0;
      float kept[kHalf];
#pragma unroll
      for (int c = 0; c < kHalf; ++c) {
        const float passed = upper ? sums[c] : sums[c + kHalf];
        kept[c] = op::add(upper ? sums[c + kHalf] : sums[c],
                          __shfl_xor_sync(0xffffffff, passed, kApart));
      }
      sum_columns<kHalf, 2 * kApart>(kept, lane);
#pragma unroll
      for (int c = 0; c < kHalf; ++c) sums[c] = kept[c];
    } else {
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        sums[c] = op::add(sums[c], __shfl_xor_sync(0xffffffff, sums[c], kApart));
      }
      sum_columns<kCount, 2 * kApart>(sums, lane);
    }
  }
}
/// Levels of that tree at which columns are passed on.
CODA_DEVICE constexpr int passing_levels(int count) {
  return count % 2 != 0 ? 0 : count % 4 != 0 ? 1 : count % 8 != 0 ? 2 : 3;
}

template <int L, int kCount>
CODA_DEVICE void sum_slab(u32 staging, int base, const float* values, int column,
                          const Rows& rows, int lane) {
  constexpr int kColumns = kCount / 2;
  float sums[kColumns];
#pragma unroll
  for (int x = 0; x < kCount; ++x) {
    if (row_of<L>(x) == 0) {
      const float upper = rows.in[0] ? values[x] : 0.0f;
      const float lower = rows.in[1] ? values[L == 0 ? x + 1 : x + L] : 0.0f;
      sums[y_of<L>(x)] = op::add(upper, lower);
    }
  }
  sum_columns(sums, lane);
  constexpr int kLevels = passing_levels(kColumns);
  constexpr int kLeft = kColumns >> kLevels;
  // Lanes that differ in other bits hold the same sums.
  const int others = 28 & ~((1 << (2 + kLevels)) - 4);
  if ((lane & (L == 0 ? others | 3 : others)) != 0) return;
  int first = 0;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((lane & (4 << level)) != 0) first += kColumns >> (level + 1);
  }
#pragma unroll
  for (int c = 0; c < kLeft; ++c) {
    const int y = first + c;
    const int ahead = columns_ahead<L>(y);
    store_shared(staging + 4 * (base + column + column_of<L>(0, lane) + ahead), sums[c]);
  }
}

/// The consumer threads that work on one tile, and their barrier.
constexpr int kTileThreads = kPingPong ? 128 : 256;
CODA_DEVICE void sync_tile(int warp) {
  named_barrier_sync(kPingPong ? kGroupBarrier + warp / 4 : kOrderBarrier, kTileThreads);
}

/// Adds slabs of `columns` columns at `base` and stores a partial a granule. Call between two
/// sync_tile. `warp`: of all consumer warps. A warp's block i has its slab at base + i * columns.
CODA_DEVICE void store_slabs(const Shared& shared, u32 offset, int warp, int lane, int base, int columns,
                             const EpilogueOperand& to, int tile_row, int rows, int column, int width,
                             int column_offset) {
  const int first_warp = kPingPong ? warp / 4 * 4 : 0;
  const int thread = (warp - first_warp) * 32 + lane;
#pragma unroll
  for (int granule = 0; granule < kTileM / 128; ++granule) {
    if (tile_row + granule * 128 < rows) {
      for (int c = thread; c < columns; c += kTileThreads) {
        float sum = 0.0f;
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab) {
          // Row 16 r of the tile belongs to warpgroup r / (4 kWgBlocks), block and warp after that.
          const int r = granule * kSlabs + slab;
          const int group = r / (4 * kWgBlocks);
          const int i = r / 4 % kWgBlocks;
          const u32 from = shared.staging(first_warp + group * 4 + r % 4) + offset;
          sum = op::add(sum, load_shared(from + 4 * (base + i * columns + c)));
        }
        if (column + c < width) {
          F32::store(to.pointer, (tile_row / 128 + granule) * to.stride + column_offset + column + c,
                     sum);
        }
      }
    }
  }
}

}  // namespace coda_device
