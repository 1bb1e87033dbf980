// Sizes that follow from the prelude's constants (gemm_source.cpp): tile, threads, shared memory.
#pragma once

namespace coda_device {

// Shared memory: ring stages, then a staging area a consumer warp, then barriers.
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kWgRows = 64 * kWgBlocks;                        // rows of C a warpgroup holds
constexpr int kTileM = kPingPong ? kWgRows : kConsumers * kWgRows;
constexpr int kTileK = 64;                                     // 128 bytes of 16-bit values
constexpr int kClusterSize = kClusterM * kClusterN;
constexpr u32 kBytesA = kTileM * kTileK * 2;
constexpr u32 kBytesB = kTileN * kTileK * 2;
constexpr u32 kStageBytes = kBytesA + kBytesB;
constexpr u32 kStagingBytes = 16 * 128;                        // one TMA store box of a warp
constexpr u32 kRingBytes = kStages * kStageBytes;
constexpr u32 kStagingOffset = kRingBytes;
constexpr u32 kBarrierOffset = kStagingOffset + kConsumers * 4 * 2 * kStagingBytes;
constexpr u32 kClaimOffset = kBarrierOffset + 2 * kStages * 8;
constexpr u32 kSharedBytes = kClaimOffset + 16;
static_assert(kSharedBytes <= kSharedLimit, "the prelude asks for too many stages");
static_assert(!(kPingPong && kSplitTail), "split tiles need both warpgroups on one tile");
static_assert(kClusterM == 1 || kClusterN == 1, "a cluster shares one operand");

constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;

// Warps that must release a stage: all that read it, in every CTA that a multicast writes to.
constexpr u32 kReleases = (kPingPong ? 4 : kConsumers * 4) * kClusterSize;

// Named barriers
constexpr int kOrderBarrier = 1;      // +0, +1: ping-pong turns
constexpr int kGroupBarrier = 3;      // +0, +1: one warpgroup among itself

}  // namespace coda_device
