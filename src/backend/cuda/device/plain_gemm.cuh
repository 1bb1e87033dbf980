// The plain kernel: C = A B^T or C += A B^T for any strides and types, on the ordinary arithmetic
// units. For fp32 (and, in tests, fp64) operands and for what TMA cannot address. Slow and right.
// The prelude defines Input, Output, Sum (float or double) and kAccumulate.
#pragma once

namespace coda_device {

constexpr int kPlainTile = 64;     // rows and columns of C a CTA computes; 256 threads, 4x4 each
constexpr int kPlainDepth = 32;    // k a step; also the length of a partial sum (see below)

extern "C" __global__ void __launch_bounds__(256) coda_plain_gemm(const PlainParams p) {
  __shared__ Sum tile_a[kPlainDepth][kPlainTile + 1];
  __shared__ Sum tile_b[kPlainDepth][kPlainTile + 1];
  const int thread = threadIdx.x;
  const int row = thread / 16 * 4;
  const int column = thread % 16 * 4;
  const int tiles_m = (p.m + kPlainTile - 1) / kPlainTile;
  const int m0 = static_cast<int>(blockIdx.x % tiles_m) * kPlainTile;
  const int n0 = static_cast<int>(blockIdx.x / tiles_m) * kPlainTile;

  Sum total[4][4] = {};
  for (int k0 = 0; k0 < p.k; k0 += kPlainDepth) {
    // Step 1: tiles to shared memory, zero outside; neighbouring threads read along unit strides.
    for (int i = thread; i < kPlainTile * kPlainDepth; i += 256) {
      const bool along_k_a = p.a_column == 1;
      const int ra = along_k_a ? i / kPlainDepth : i % kPlainTile;
      const int ka = along_k_a ? i % kPlainDepth : i / kPlainTile;
      const bool in_a = m0 + ra < p.m && k0 + ka < p.k;
      tile_a[ka][ra] =
          in_a ? Sum(Input::load(p.a, (m0 + ra) * p.a_row + (k0 + ka) * p.a_column)) : Sum(0);
      const bool along_k_b = p.b_column == 1;
      const int rb = along_k_b ? i / kPlainDepth : i % kPlainTile;
      const int kb = along_k_b ? i % kPlainDepth : i / kPlainTile;
      const bool in_b = n0 + rb < p.n && k0 + kb < p.k;
      tile_b[kb][rb] =
          in_b ? Sum(Input::load(p.b, (n0 + rb) * p.b_row + (k0 + kb) * p.b_column)) : Sum(0);
    }
    __syncthreads();

    // Step 2: a partial sum over this step, then one addition: the rounding error grows with
    // 32 + k / 32 instead of k.
    Sum partial[4][4] = {};
    for (int k = 0; k < kPlainDepth; ++k) {
      Sum a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = tile_a[k][row + i];
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j] = tile_b[k][column + j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) partial[i][j] += a[i] * b[j];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) total[i][j] += partial[i][j];
    }
    __syncthreads();
  }

  // Step 3: guarded stores.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (m0 + row + i < p.m && n0 + column + j < p.n) {
        const long long at = (m0 + row + i) * p.c_row + n0 + column + j;
        Sum value = total[i][j];
        if constexpr (kAccumulate) value += Output::load(p.c, at);
        Output::store(p.c, at, value);
      }
    }
  }
}

}  // namespace coda_device
