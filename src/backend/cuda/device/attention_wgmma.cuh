// What the wgmma kernels of attention share: a producer warpgroup that fills a ring of
// stages, two consumer warpgroups of 64 rows each, tiles of 128-byte rows with 128-byte swizzle. The
// prelude defines kHeadDim (64 or 128), kBf16 and Element. Rows lie at multiples of 16 bytes.
#pragma once

namespace coda_device {

constexpr int kWgThreads = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWgThreads;
constexpr int kFixedRows = 64 * kConsumers;  // of the tiles that stay
constexpr int kStepRows = 64;                // of the tiles that pass by
constexpr int kHalves = kHeadDim / 64;       // a row of a tile has 64 features; a matrix 1 or 2 tiles
constexpr int kFixedBytes = kFixedRows * kHeadDim * 2;
constexpr int kStepBytes = kStepRows * kHeadDim * 2;
constexpr int kRingStages = 4;
constexpr int kAhead = 2;  // stages on their way while the producer goes on; the others are in use
constexpr int kVectorBytes = 2 * kStepRows * 4;
constexpr float kLog2E = 1.44269504f;

/// Shared memory, 1024-byte aligned: two matrices that stay, stages of two that pass by, two vectors
/// a stage, barriers.
struct Ring {
  u32 base;
  CODA_DEVICE u32 fixed(int i) const { return base + i * kFixedBytes; }
  CODA_DEVICE u32 step(int stage, int i) const {
    return base + 2 * kFixedBytes + (2 * stage + i) * kStepBytes;
  }
  CODA_DEVICE u32 vectors(int stage) const {
    return base + 2 * kFixedBytes + 2 * kRingStages * kStepBytes + stage * kVectorBytes;
  }
  CODA_DEVICE u32 full(int stage) const { return vectors(kRingStages) + 8 * stage; }
  CODA_DEVICE u32 empty(int stage) const { return full(kRingStages) + 8 * stage; }
};

/// Every thread of the CTA, at the start. kReleases: how many lanes of a consumer's warp say that a
/// stage may be written again: one if only wgmma reads stages, all 32 if lanes read vectors themselves.
template <int kReleases>
CODA_DEVICE Ring make_ring(const unsigned char* memory) {
  const Ring ring{(shared_address(memory) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRingStages; ++i) {
      mbarrier_init(ring.full(i), kWgThreads);
      mbarrier_init(ring.empty(i), kConsumers * kWgThreads / 32 * kReleases);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  return ring;
}

/// Rows [first, first + kRows) of a head's columns into tiles, zeros from row `end` on. Asynchronous;
/// by the 128 threads of the producer.
template <int kRows>
CODA_DEVICE void copy_rows(u32 tile, const AttentionRows& x, int first, int end, int column) {
  constexpr int kPieces = kHeadDim / 8, kRowsAtOnce = kWgThreads / kPieces;
  const int thread = static_cast<int>(threadIdx.x) % kWgThreads;
  const int row = thread / kPieces, piece = thread % kPieces;
  const u32 to =
      tile + piece / 8 * (kRows * 128) + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
  const u16* base = static_cast<const u16*>(x.pointer) + column + piece * 8;
#pragma unroll 4
  for (int r = 0; r < kRows; r += kRowsAtOnce) {
    const bool inside = first + row + r < end;
    copy_async(to + r * 128, inside ? base + (first + row + r) * x.stride : base, !inside);
  }
}

/// The producer's side of the ring. Use: wait(); copies; commit(); ... finish().
class Producer {
 public:
  CODA_DEVICE explicit Producer(const Ring& ring) : ring_(ring) {}

  /// Waits until the next stage may be written; returns it. Whoever must free it may need what is on
  /// its way first.
  CODA_DEVICE int wait() {
    const int stage = count_ % kRingStages, lap = count_ / kRingStages;
    if (lap > 0 && !mbarrier_try_wait(ring_.empty(stage), (lap - 1) & 1)) {
      finish();
      mbarrier_wait(ring_.empty(stage), (lap - 1) & 1);
    }
    return stage;
  }
  CODA_DEVICE void commit() {
    copy_async_commit();
    ++count_;
    copy_async_wait<kAhead>();
    arrive(count_ - kAhead);
  }
  CODA_DEVICE void finish() {
    copy_async_wait<0>();
    arrive(count_);
  }

 private:
  /// Of all stages before the `end`th, which have landed. wgmma reads through another proxy than
  /// copies write.
  CODA_DEVICE void arrive(int end) {
    if (arrived_ < end) fence_proxy_async();
    for (; arrived_ < end; ++arrived_) mbarrier_arrive(ring_.full(arrived_ % kRingStages));
  }
  const Ring& ring_;
  int count_ = 0, arrived_ = 0;
};

/// A consumer's side: wait() gives the next stage; release() when no wgmma of this warp, and no lane,
/// reads it any more.
template <int kReleases>
class Consumer {
 public:
  CODA_DEVICE explicit Consumer(const Ring& ring) : ring_(ring) {}
  CODA_DEVICE int wait() {
    const int stage = count_ % kRingStages;
    mbarrier_wait(ring_.full(stage), count_ / kRingStages & 1);
    ++count_;
    return stage;
  }
  CODA_DEVICE void release(int stage) {
    if constexpr (kReleases == 1) __syncwarp();
    if (threadIdx.x % 32 < kReleases) mbarrier_arrive(ring_.empty(stage));
  }

 private:
  const Ring& ring_;
  int count_ = 0;
};

CODA_DEVICE void pin(float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) pin_register(x[i]);
}
CODA_DEVICE u32 pack(float low, float high) {
  return kBf16 ? pack_bf16(low, high) : pack_f16(low, high);
}

/// d = a b^T over all features: 64 rows from `a` on, of tiles of kFixedRows rows, and the 64 rows of b.
/// Left factors in registers would spare shared memory a third of its reads; NVRTC 13.0 gave those
/// registers to other values inside the loop, without a word.
CODA_DEVICE void multiply_rows(float (&d)[32], u32 a, u32 b) {
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const u32 from_a = a + k / 4 * (kFixedRows * 128) + k % 4 * 32;
    const u32 from_b = b + k / 4 * (kStepRows * 128) + k % 4 * 32;
    if constexpr (kBf16) {
      multiply_rows_bf16(d, from_a, from_b, k > 0);
    } else {
      multiply_rows_f16(d, from_a, from_b, k > 0);
    }
  }
}
/// d += w x: w is 64 x 64, rounded to 16 bits, x 64 rows.
CODA_DEVICE void multiply_tokens(float (&d)[kHalves][32], const u32 (&w)[4][4], u32 x) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const u32 from = x + half * (kStepRows * 128) + k * 2048;
      if constexpr (kBf16) {
        multiply_tokens_bf16(d[half], w[k], from);
      } else {
        multiply_tokens_f16(d[half], w[k], from);
      }
    }
  }
}
/// The sums of a product as the left factor of the next.
CODA_DEVICE void pack_left(const float (&d)[32], u32 (&w)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[k][i] = pack(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
  }
}

/// p of one score. The product is rounded by itself, as it was for lse: fused with the subtraction,
/// a huge largest score would leave its rounding error in the exponent.
CODA_DEVICE float probability(float score, float scale, float lse) {
  return exp2_approximate((__fmul_rn(score, scale) - lse) * kLog2E);
}

/// Rows g and g + 8 of a warp's 16 times factor[0], factor[1], from row `row` of x on.
CODA_DEVICE void store_rows(const AttentionRows& x, int row, int end, int head,
                            const float (&factor)[2], const float (&value)[kHalves][32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + lane / 4 + 8 * h;
    if (r >= end) continue;
    u16* to = static_cast<u16*>(x.pointer) + r * x.stride + head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* v = &value[half][4 * j + 2 * h];
        *reinterpret_cast<u32*>(to + 64 * half + 8 * j) = pack(v[0] * factor[h], v[1] * factor[h]);
      }
    }
  }
}

}  // namespace coda_device
