// The mainloop for Hopper: C tile = A[tile rows, :] . B[tile columns, :]^T, fp32 accumulators, handed
// to an Epilogue while still in registers. Persistent and warp-specialised: one warpgroup feeds a
// ring of shared-memory stages by TMA, two consume it by wgmma.
//   cooperative  both consumer warpgroups work on one tile, each on its rows.
//   ping-pong    they take alternate tiles: one multiplies while the other runs its epilogue.
// The prelude (gemm_source.cpp) defines the constants and types used here; docs/cuda.md explains the
// whole. Measured numbers behind the choices: docs/performance-log.md.
#pragma once

namespace coda_device {

// ---- Loading operands

/// One operand tile of kRows rows (of M or N) and kTileK columns (of K) into shared memory, in the
/// layout that wgmma reads with 128-byte swizzle. K-major: boxes of 64 columns of K, all rows.
/// M/N-major: boxes of 64 rows (contiguous in memory) by 64 columns of K, one after the other.
/// If kShared, this CTA loads its half and multicasts it to the pair.
template <Major kMajor, int kRows, bool kShared>
CODA_DEVICE void load_operand(const TensorMap* map, u32 barrier, u32 destination, int row, int k,
                              int rank) {
  constexpr int kSlice = kShared ? kRows / kClusterSize : kRows;
  constexpr u16 kEveryone = (1 << kClusterSize) - 1;
  static_assert(!kShared || kSlice % 64 == 0, "a multicast slice is whole boxes");
  const int first = kShared ? rank * kSlice : 0;
  if constexpr (kMajor == Major::k) {
    if constexpr (kShared) {
      tma_load_2d_multicast(map, barrier, destination + first * 128, k, row + first, kEveryone);
    } else {
      tma_load_2d(map, barrier, destination, k, row);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSlice; i += 64) {
      const u32 box = destination + (first + i) * 128;
      if constexpr (kShared) {
        tma_load_2d_multicast(map, barrier, box, row + first + i, k, kEveryone);
      } else {
        tma_load_2d(map, barrier, box, row + i, k);
      }
    }
  }
}

/// A tile of B. With kPartsN > 1 it is made of as many blocks of columns of the product that lie
/// apart (gate and up): part p fills rows [p, p + 1) * kTileN / kPartsN, so that columns c of all
/// parts end in one thread. A CTA that shares B loads whole parts.
CODA_DEVICE void load_b(const OperandParams& operands, u32 barrier, u32 destination, int block,
                        int row, int k, int rank) {
  if constexpr (kPartsN == 1) {
    load_operand<kMajorB, kTileN, (kClusterM > 1)>(&operands.b[block], barrier, destination, row, k,
                                                   rank);
  } else {
    constexpr u16 kEveryone = (1 << kClusterSize) - 1;
    constexpr int kPartRows = kTileN / kPartsN;
    constexpr int kOwn = kClusterM > 1 ? kPartsN / kClusterSize : kPartsN;
    static_assert(kPartsN == 1 || (kOwn >= 1 && kPartRows % 64 == 0),
                  "parts are whole boxes, and whole parts are shared");
    const int first = kClusterM > 1 ? rank * kOwn : 0;
    constexpr int kBox = kMajorB == Major::k ? kPartRows : 64;
#pragma unroll
    for (int part = first; part < first + kOwn; ++part) {
      const TensorMap* map = &operands.b[block + part * kBlocksK];
#pragma unroll
      for (int i = 0; i < kPartRows; i += kBox) {
        const u32 box = destination + (part * kPartRows + i) * 128;
        const int x = kMajorB == Major::k ? k : row + i;
        const int y = kMajorB == Major::k ? row : k;
        if constexpr (kClusterM > 1) {
          tma_load_2d_multicast(map, barrier, box, x, y, kEveryone);
        } else {
          tma_load_2d(map, barrier, box, x, y);
        }
      }
    }
  }
}

/// The producer: one thread, fills the ring for all segments of this worker.
CODA_DEVICE void produce(const OperandParams& operands, const EpilogueParams& epilogue,
                         const Schedule& schedule, const Shared& shared, Claim claim, int rank) {
  Work work(schedule, claim);
  Segment segment;
  RingPosition ring;
  ring.parity = 1;   // the first lap finds every stage empty
  while (work.next(segment)) {
    const Tile tile = decode_tile(schedule, segment.tile, rank);
    const int blocks = tile.b_block * kPartsN * kBlocksK;   // before this block's maps
    int block = blocks;
    for (int kb = segment.k_begin; kb < segment.k_end; ++kb) {
      int k_in_block = kb * kTileK;
      if constexpr (kBlocksK > 1) {
        const int list = block_of<kBlocksK>(schedule.axis_k, kb);
        block = blocks + list;
        k_in_block = (kb - schedule.axis_k.first[list]) * kTileK;
      }
      const u32 full = shared.full(ring.stage);
      mbarrier_wait(shared.empty(ring.stage), ring.parity);
      mbarrier_arrive_expect(full, kStageBytes);
      load_operand<kMajorA, kTileM, (kClusterN > 1)>(&operands.a, full, shared.a(ring.stage),
                                                     tile.a_row, kb * kTileK, rank);
      load_b(operands, full, shared.b(ring.stage), block, tile.b_row, k_in_block, rank);
      ring.advance();
    }
    if constexpr (Epilogue::kRingLoads > 0) {
      if (segment.k_begin == 0) {
        for (int load = 0; load < Epilogue::kRingLoads; ++load) {
          mbarrier_wait(shared.empty(ring.stage), ring.parity);
          Epilogue::load(epilogue, tile, load, shared.full(ring.stage), shared.a(ring.stage));
          ring.advance();
        }
      }
    }
  }
  // Nobody leaves while the other CTA may still write to its memory or barriers: not before all stages
  // have been released by both.
  if constexpr (kClusterSize > 1) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity);
      ring.advance();
    }
  }
}

// ---- Multiplying

/// wgmma's view of an operand tile at a shared-memory address: the low word of its descriptor; the
/// high word is a constant (wgmma_multiply). M/N-major: 8192 bytes to the next 64 of M or N. Only
/// the low 18 bits of the address count: in a cluster the upper ones hold the CTA's rank.
template <Major kMajor>
CODA_DEVICE u32 describe(u32 address) {
  constexpr u32 kLeading = kMajor == Major::k ? 1 : 8192 >> 4;
  return ((address & 0x3ffff) >> 4) | kLeading << 16;
}
/// Descriptor units (16 bytes) from one k16 slice to the next.
template <Major kMajor>
constexpr u32 kSliceStep = (kMajor == Major::k ? 32 : 2048) >> 4;

CODA_DEVICE void pin(Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) pin_register(acc[i][j]);
  }
}

/// Issues the wgmmas of one ring stage. a, b: descriptors of its operand tiles. `fresh`: the first of a
/// tile, overwrite the accumulators.
CODA_DEVICE void multiply_stage(Accumulators& acc, u32 a, u32 b, bool fresh) {
#pragma unroll
  for (int slice = 0; slice < kTileK / 16; ++slice) {
#pragma unroll
    for (int i = 0; i < kWgBlocks; ++i) {
      wgmma_multiply(acc[i], a + slice * kSliceStep<kMajorA> + i * (8192 >> 4),
                     b + slice * kSliceStep<kMajorB>, slice > 0 || !fresh);
    }
  }
}

// ---- Split tiles: workers hand their accumulators to the tile's owner through memory

constexpr int kPartialFloats = kWgBlocks * kTileN / 2 * 128;   // of one warpgroup

CODA_DEVICE int handover_slot(int worker, int rank, int group) {
  return (worker * kClusterSize + rank) * kConsumers + group;
}

CODA_DEVICE void hand_over(const Schedule& s, Accumulators& acc, int slot, int group, int thread) {
  float* to = s.partials + static_cast<long long>(slot) * kPartialFloats + thread * 4;
#pragma unroll
  for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      store_global_v4(to + (i * (kTileN / 8) + j) * 512, acc[i][4 * j], acc[i][4 * j + 1],
                      acc[i][4 * j + 2], acc[i][4 * j + 3]);
    }
  }
  __threadfence();
  named_barrier_sync(kGroupBarrier + group, 128);
  if (thread == 0) store_release(&s.flags[slot], 1);
}

/// Adds what a helper handed over, and makes its slot ready for the next launch.
CODA_DEVICE void take_over(const Schedule& s, Accumulators& acc, int slot, int group, int thread) {
  while (load_acquire(&s.flags[slot]) == 0) {
  }
  const float* from = s.partials + static_cast<long long>(slot) * kPartialFloats + thread * 4;
#pragma unroll
  for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      float v0, v1, v2, v3;
      load_global_v4(from + (i * (kTileN / 8) + j) * 512, v0, v1, v2, v3);
      acc[i][4 * j] += v0;
      acc[i][4 * j + 1] += v1;
      acc[i][4 * j + 2] += v2;
      acc[i][4 * j + 3] += v3;
    }
  }
  named_barrier_sync(kGroupBarrier + group, 128);   // every thread has read the flag
  if (thread == 0) store_release(&s.flags[slot], 0);
}

// ---- A consumer warpgroup

/// Stages of the ring that the producer fills for a segment. Whoever starts a tile finishes it, so
/// the tile operands come with the segment that begins at k-block 0.
CODA_DEVICE int loads_of(const Segment& segment) {
  return segment.k_begin == 0 ? Epilogue::kRingLoads : 0;
}
CODA_DEVICE int stages_of(const Segment& segment) {
  return segment.k_end - segment.k_begin + loads_of(segment);
}
/// Waits until the tile operands that follow a segment's k-blocks have landed (without using them).
CODA_DEVICE void await_loads(const Shared& shared, const Segment& segment, RingPosition ring) {
  if constexpr (Epilogue::kRingLoads > 0) {
    for (int load = 0; load < loads_of(segment); ++load) {
      mbarrier_wait(shared.full(ring.stage), ring.parity);
      ring.advance();
    }
  }
}

/// The k-blocks of a segment. One group of wgmmas stays in flight: issue block k, then wait for
/// k - 1 and release its stage. Returns the stage of the last block, still being multiplied.
CODA_DEVICE int multiply_segment(Accumulators& acc, const Shared& shared, RingPosition& ring,
                                 const Segment& segment, Epilogue& epilogue, int group_row,
                                 int lane) {
  constexpr u32 kStageStep = kStageBytes >> 4;
  const u32 a = describe<kMajorA>(shared.a(0) + group_row * 128);
  const u32 b = describe<kMajorB>(shared.b(0));
  int previous = 0;
  for (int kb = segment.k_begin; kb < segment.k_end; ++kb) {
    mbarrier_wait(shared.full(ring.stage), ring.parity);
    wgmma_fence();
    multiply_stage(acc, a + ring.stage * kStageStep, b + ring.stage * kStageStep,
                   kb == segment.k_begin);
    wgmma_commit();
    epilogue.overlap();
    if (kb > segment.k_begin) {
      wgmma_wait<1>();
      release_stage(shared, previous, lane);
    }
    previous = ring.stage;
    ring.advance();
  }
  return previous;
}

CODA_DEVICE void consume(const EpilogueParams& params, const Schedule& schedule,
                         const Shared& shared, Claim claim, int rank, int group, int thread) {
  const int warp = uniform(thread / 32);
  const int lane = thread % 32;
  const int group_row = kPingPong ? 0 : group * kWgRows;   // rows of the tile this group holds
  Epilogue epilogue(params, schedule, shared.staging(group * 4 + warp), group_row + warp * 16, lane);
  Work work(schedule, claim);
  RingPosition ring;
  Accumulators acc;
  Segment segment;

  // Step 1: the first segment. In ping-pong, tile i of a worker belongs to warpgroup i % 2.
  Segment next;
  bool more = work.next(segment);
  int turn = 0;
  if constexpr (kPingPong) {
    if (group == 1) {
      if (more) ring.skip(stages_of(segment));
      more = more && work.next(segment);
      turn = 1;
    }
  }
  Tile tile = decode_tile(schedule, more ? segment.tile : 0, rank);
  bool vectors_ready = !kVectorsFirst;

  while (more) {
    // Step 2 (ping-pong): wait until the other warpgroup has seen all stages of its tile. Ours come
    // next in the ring, and a stage's parity alone cannot tell this lap from the one before.
    if constexpr (kPingPong) {
      if (turn > 0) named_barrier_sync(kOrderBarrier + (turn & 1), 256);
    }

    // Step 3: multiply, while what is left of the tile before leaves.
    const int last = multiply_segment(acc, shared, ring, segment, epilogue, group_row, lane);

    // Step 4: find out what comes next while the last block is still multiplied.
    bool more_after = work.next(next);
    int others_stages = 0;
    if constexpr (kPingPong) {
      if (more_after) {
        await_loads(shared, segment, ring);
        named_barrier_arrive(kOrderBarrier + ((turn + 1) & 1), 256);
        others_stages = stages_of(next);
        more_after = work.next(next);
      }
      turn += 2;
    }
    const Tile next_tile = decode_tile(schedule, more_after ? next.tile : 0, rank);
    if (!vectors_ready) await_dependencies();   // here the epilogue begins to read, then to store
    vectors_ready = true;
    if (!kSplitTail || segment.k_begin == 0) epilogue.prepare(tile);
    wgmma_wait<0>();
    pin(acc);
    release_stage(shared, last, lane);

    // Step 5: the rest of the tile before leaves, if there were few k-blocks. Of a split tile, what
    // another worker owns is handed over; the owner adds what others hand over, in ascending order.
    epilogue.flush();
    if constexpr (kSplitTail) {
      if (segment.k_begin > 0) {
        hand_over(schedule, acc, handover_slot(claim.ticket, rank, group), group, thread);
      }
      for (int helper = claim.ticket + 1; helper <= segment.last_helper; ++helper) {
        take_over(schedule, acc, handover_slot(helper, rank, group), group, thread);
      }
    }

    // Step 6: the epilogue, by whoever has the tile's first k-block.
    if (!kSplitTail || segment.k_begin == 0) epilogue.finish(acc, tile, shared, ring);
    if constexpr (kPingPong) ring.skip(others_stages);
    segment = next;
    tile = next_tile;
    more = more_after;
  }
  epilogue.drain();
}

// ---- The kernel

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    coda_gemm(const __grid_constant__ OperandParams operands,
              const __grid_constant__ EpilogueParams epilogue,
              const __grid_constant__ Schedule schedule) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};
  const int group = uniform(threadIdx.x / 128);   // 0 produces
  const int rank = kClusterSize > 1 ? uniform(cluster_rank()) : 0;

  // Step 1: one thread claims this cluster's work, and prepares the barriers while the claim travels.
  // A CTA's memory may be written from outside only once it runs and its barriers are ready.
  PendingClaim pending{0, 0, 0};
  if (threadIdx.x == 0) {
    if (rank == 0) pending = begin_claim(schedule);
    prefetch_tensor_map(&operands.a);
    prefetch_tensor_map(&operands.b[0]);
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full(stage), 1);
      mbarrier_init(shared.empty(stage), kReleases);
    }
    mbarrier_init(shared.claimed(), 1);
    mbarrier_init_fence();
    if (kClusterSize > 1) mbarrier_arrive_expect(shared.claimed(), 8);
  }
  if constexpr (kClusterSize > 1) {
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
  }

  // Step 2: all CTAs of the cluster learn what was claimed.
  int* claimed = reinterpret_cast<int*>(memory + kClaimOffset);
  if (threadIdx.x == 0 && rank == 0) {
    const Claim claim = complete_claim(schedule, pending);
    if constexpr (kClusterSize > 1) {
      for (int peer = 0; peer < kClusterSize; ++peer) {
        store_async_cluster(map_to_rank(shared.claim(), peer), claim.ticket, claim.worker,
                            map_to_rank(shared.claimed(), peer));
      }
    } else {
      claimed[0] = claim.ticket;
      claimed[1] = claim.worker;
    }
  }
  if constexpr (kClusterSize > 1) {
    __syncwarp();
    mbarrier_wait(shared.claimed(), 0);
  } else {
    __syncthreads();
  }
  const Claim claim{claimed[0], claimed[1]};

  // Step 3: everything above may run before the kernels before this one have ended; what follows reads
  // and writes what they may still use. With kVectorsFirst only the program's own vectors are still
  // being made, by kernels that let this one start once all before them had ended. They change nothing
  // that is multiplied or loaded as a tile, nor claims, flags and partials; whatever reads them, or
  // stores where they may still read, comes after the consumers' own wait.
  if constexpr (!kVectorsFirst) await_dependencies();

  // Step 4: each warpgroup takes its role.
  if (group == 0) {
    set_max_registers_down<kProducerRegisters>();
    if (threadIdx.x < 32) {
      if (elect_one()) produce(operands, epilogue, schedule, shared, claim, rank);
      __syncwarp();
    } else if (threadIdx.x == 32) {
      if constexpr (kVectorsFirst) await_dependencies();   // so that at most two are under way
      if (rank == 0) retire_claim(schedule);
      __threadfence();       // the counters are ready before
      launch_dependents();   // the next launch claims
    }
  } else {
    set_max_registers_up<kConsumerRegisters>();
    consume(epilogue, schedule, shared, claim, rank, group - 1, threadIdx.x % 128);
  }
}

}  // namespace coda_device
