// The plain kernel that runs a generated epilogue: any strides, any types, any alignment, on the
// ordinary arithmetic units. It fills the accumulators in the fragment layout of wgmma (ring.cuh), so
// the epilogue is the same text as behind the fast mainloop. One CTA a tile; consumer threads only.
#pragma once

namespace coda_device {

constexpr int kPlainDepth = 32;   // k a step; also the length of a partial sum (see plain_gemm.cuh)
constexpr int kPlainThreads = kPingPong ? 128 : 256;
static_assert((kTileM + kTileN) * kPlainDepth * 4 <= kStageBytes, "a step fits in a stage");

template <class Input>
CODA_DEVICE float load_plain(const PlainOperand& from, int i, int p) {
  const bool in = i < from.rows && p < from.columns;
  return in ? Input::load(from.pointer, i * from.row + p * from.column) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(kPlainThreads, 1)
    coda_plain_fragments(const __grid_constant__ PlainFragmentParams operands,
                         const __grid_constant__ EpilogueParams epilogue_params,
                         const __grid_constant__ Schedule schedule) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group_row = warp / 4 * kWgRows;
  float* tile_a = reinterpret_cast<float*>(memory);   // [k][row]
  float* tile_b = tile_a + kPlainDepth * kTileM;      // [k][column]
  const Tile tile = decode_tile(schedule, blockIdx.x, 0);

  Accumulators acc;
#pragma unroll
  for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) acc[i][j] = 0.0f;
  }
  for (int list = 0; list < kPlainLists; ++list) {
    const int k_count = operands.k_first[list + 1] - operands.k_first[list];
    for (int k0 = 0; k0 < k_count; k0 += kPlainDepth) {
      // Step 1: tiles to shared memory, zero outside; neighbouring threads read along unit strides.
      for (int at = thread; at < kTileM * kPlainDepth; at += kPlainThreads) {
        const bool along_k = operands.a.column == 1;
        const int row = along_k ? at / kPlainDepth : at % kTileM;
        const int k = along_k ? at % kPlainDepth : at / kTileM;
        tile_a[k * kTileM + row] =
            k0 + k < k_count
                ? load_plain<InputA>(operands.a, tile.a_row + row, operands.k_first[list] + k0 + k)
                : 0.0f;
      }
      for (int at = thread; at < kTileN * kPlainDepth; at += kPlainThreads) {
        const bool along_k = operands.b[0].column == 1;
        const int column = along_k ? at / kPlainDepth : at % kTileN;
        const int k = along_k ? at % kPlainDepth : at / kTileN;
        constexpr int kPart = kTileN / kPartsN;
        const int matrix = (tile.b_block * kPartsN + column / kPart) * kPlainLists + list;
        tile_b[k * kTileN + column] =
            load_plain<InputB>(operands.b[matrix], tile.b_row + column % kPart, k0 + k);
      }
      __syncthreads();

      // Step 2: a partial sum over this step, then one addition.
#pragma unroll
      for (int i = 0; i < kWgBlocks; ++i) {
        const int row = group_row + 64 * i + 16 * (warp % 4) + lane / 4;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) {
          const int column = 8 * j + 2 * (lane % 4);
          float partial[4] = {};
          for (int k = 0; k < kPlainDepth; ++k) {
            const float a0 = tile_a[k * kTileM + row], a1 = tile_a[k * kTileM + row + 8];
            const float b0 = tile_b[k * kTileN + column], b1 = tile_b[k * kTileN + column + 1];
            partial[0] = __fmaf_rn(a0, b0, partial[0]);
            partial[1] = __fmaf_rn(a0, b1, partial[1]);
            partial[2] = __fmaf_rn(a1, b0, partial[2]);
            partial[3] = __fmaf_rn(a1, b1, partial[3]);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[i][4 * j + e] = __fadd_rn(acc[i][4 * j + e], partial[e]);
        }
      }
      __syncthreads();
    }
  }

  // Step 3: the epilogue. Tile operands, where its text takes them from the ring, for comparing it on
  // the host: what this kernel is for elsewhere, TMA cannot address.
  if constexpr (Epilogue::kRingLoads > 0) {
    static_assert(Epilogue::kRingLoads <= kStages, "all of them at once");
    if (thread == 0) {
      for (int load = 0; load < Epilogue::kRingLoads; ++load) {
        mbarrier_init(shared.full(load), 1);
        mbarrier_init(shared.empty(load), kReleases);
      }
      mbarrier_init_fence();
      for (int load = 0; load < Epilogue::kRingLoads; ++load) {
        Epilogue::load(epilogue_params, tile, load, shared.full(load), shared.a(load));
      }
    }
    __syncthreads();
  }

  run_epilogue(epilogue_params, schedule, shared, tile, acc);
}

}  // namespace coda_device
