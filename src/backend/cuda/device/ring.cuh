// The ring of shared-memory stages between the producer and the consumers, and where everything
// lies in shared memory. Used by the mainloop and by epilogues that read tile operands.
#pragma once

namespace coda_device {

/// What a consumer thread holds of C. Thread t of its warpgroup (warp t / 32, lane t % 32) holds in
/// acc[i][4 j + 2 h + e] row 64 i + 16 warp + lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e.
using Accumulators = float[kWgBlocks][kTileN / 2];

/// A position in the ring: stage index and the parity of its current phase.
struct RingPosition {
  int stage = 0;
  u32 parity = 0;

  CODA_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  CODA_DEVICE void skip(int count) {
    const int position = stage + count;
    const int laps = position / kStages;
    stage = position - laps * kStages;
    parity ^= laps & 1;
  }
};

struct Shared {
  u32 base;
  CODA_DEVICE u32 a(int stage) const { return base + stage * kStageBytes; }
  CODA_DEVICE u32 b(int stage) const { return base + stage * kStageBytes + kBytesA; }
  CODA_DEVICE u32 staging(int warp) const {
    return base + kStagingOffset + warp * 2 * kStagingBytes;
  }
  CODA_DEVICE u32 full(int stage) const { return base + kBarrierOffset + stage * 8; }
  CODA_DEVICE u32 empty(int stage) const { return base + kBarrierOffset + (kStages + stage) * 8; }
  CODA_DEVICE u32 claim() const { return base + kClaimOffset; }
  CODA_DEVICE u32 claimed() const { return base + kClaimOffset + 8; }   // the claim's barrier
};

/// Called by a whole warp: this warp no longer reads the stage, in any CTA that fills it.
CODA_DEVICE void release_stage(const Shared& shared, int stage, int lane) {
  if constexpr (kClusterSize == 1) {
    if (lane == 0) mbarrier_arrive(shared.empty(stage));
  } else {
    if (lane < kClusterSize) mbarrier_arrive_cluster(map_to_rank(shared.empty(stage), lane));
  }
}

}  // namespace coda_device
