// A product of one row, bound by reading B: each warp sums columns of its own, its lanes along K, and
// the epilogue finds row 0 of the fragment that it knows (ring.cuh). The rows of B lie at multiples of
// 16 bytes and K is a multiple of 8. Parameters are the plain kernel's (epilogue_plain.cuh).
#pragma once

namespace coda_device {

constexpr int kRowThreads = 32 * 4 * kConsumers;          // the warps that the epilogue knows
constexpr int kRowPiece = 8;                              // values of k a lane loads at once
constexpr int kRowColumns = kTileN / (kRowThreads / 32);  // of a warp
constexpr int kColumnsAtOnce = 4;
constexpr int kPart = kTileN / kPartsN;
static_assert(kPart % kRowColumns == 0 && kRowColumns % kColumnsAtOnce == 0, "columns of a warp");

/// Columns [row, row + kColumnsAtOnce) of the product: dot products with these rows of B.
CODA_DEVICE void dot_columns(const PlainOperand& a, const PlainOperand& b, int row,
                             float (&sum)[kColumnsAtOnce]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  long long from[kColumnsAtOnce];
#pragma unroll
  for (int c = 0; c < kColumnsAtOnce; ++c) {
    sum[c] = 0.0f;
    from[c] = min(row + c, b.rows - 1) * b.row;  // columns outside are cleared below
  }
#pragma unroll 8
  for (int k = lane * kRowPiece; k < b.columns; k += 32 * kRowPiece) {
    float x[kRowPiece], y[kColumnsAtOnce][kRowPiece];
    load_chunk<InputA>(a.pointer, k, x);
#pragma unroll
    for (int c = 0; c < kColumnsAtOnce; ++c) load_chunk<InputB>(b.pointer, from[c] + k, y[c]);
#pragma unroll
    for (int c = 0; c < kColumnsAtOnce; ++c) {
#pragma unroll
      for (int e = 0; e < kRowPiece; ++e) sum[c] = __fmaf_rn(x[e], y[c][e], sum[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kColumnsAtOnce; ++c) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      sum[c] = __fadd_rn(sum[c], __shfl_xor_sync(0xffffffffu, sum[c], other));
    }
    if (row + c >= b.rows) sum[c] = 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(kRowThreads, 1)
    coda_one_row(const __grid_constant__ PlainFragmentParams operands,
                 const __grid_constant__ EpilogueParams epilogue_params,
                 const __grid_constant__ Schedule schedule) {
  extern __shared__ __align__(1024) u8 memory[];
  const Shared shared{shared_address(memory)};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* sums = reinterpret_cast<float*>(memory);  // [kTileN]
  const Tile tile = decode_tile(schedule, blockIdx.x, 0);

  // Step 1: every warp its columns.
  const int first = warp * kRowColumns;
  const PlainOperand& b = operands.b[tile.b_block * kPartsN + first / kPart];
  for (int c = 0; c < kRowColumns; c += kColumnsAtOnce) {
    float sum[kColumnsAtOnce];
    dot_columns(operands.a, b, tile.b_row + first % kPart + c, sum);
#pragma unroll
    for (int i = 0; i < kColumnsAtOnce; ++i) {
      if (lane == 0) sums[first + c + i] = sum[i];
    }
  }
  __syncthreads();

  // Step 2: the epilogue.
  Accumulators acc;
#pragma unroll
  for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) {
      const bool row_0 = i == 0 && j % 4 < 2 && warp == 0 && lane < 4;
      acc[i][j] = row_0 ? sums[j / 4 * 8 + lane * 2 + j % 2] : 0.0f;
    }
  }
  run_epilogue(epilogue_params, schedule, shared, tile, acc);
}

}  // namespace coda_device
