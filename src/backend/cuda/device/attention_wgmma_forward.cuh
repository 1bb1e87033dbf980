// Attention forward by wgmma: o = softmax(scale q k^T) v with running (largest, total), and lse.
#pragma once

namespace coda_device {

/// What a lane knows of its rows g and g + 8 while keys pass by.
struct RunningRows {
  float largest[2], total[2] = {};

  CODA_DEVICE RunningRows() { largest[0] = largest[1] = __int_as_float(0xff800000); }

  /// Scores of 64 keys become exponentials against the running largest; shrink: of what was summed
  /// so far. Hidden in the last step (diagonal): keys behind the query, which is `query` + 8 h.
  CODA_DEVICE void step(float (&s)[32], float scale, bool diagonal, int query, float (&shrink)[2]) {
    const float infinity = __int_as_float(0x7f800000);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float here[2] = {-infinity, -infinity}, origin[2];
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int h = j / 2 % 2;
      s[j] = __fmul_rn(s[j], scale);  // rounded by itself: see probability()
      if (diagonal && j / 4 * 8 + lane % 4 * 2 + j % 2 > query + 8 * h) s[j] = -infinity;
      here[h] = fmaxf(here[h], s[j]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      here[h] = fmaxf(here[h], __shfl_xor_sync(0xffffffffu, here[h], 1));
      here[h] = fmaxf(here[h], __shfl_xor_sync(0xffffffffu, here[h], 2));
      const float now = fmaxf(largest[h], here[h]);
      origin[h] = now == -infinity ? 0.0f : now;  // rows that have seen no number yet
      shrink[h] = exp2_approximate((largest[h] - origin[h]) * kLog2E);
      largest[h] = now;
      total[h] *= shrink[h];
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int h = j / 2 % 2;
      s[j] = exp2_approximate((s[j] - origin[h]) * kLog2E);
      total[h] += s[j];  // this lane's columns; the quad's are added at the end
    }
  }
};

/// A CTA has 128 queries of one head, a consumer warpgroup 64 of them, and walks over the keys that
/// they may see, 64 at a time. The product with v of a step runs beside the exponentials of the next.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    coda_attention_wgmma_forward(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int head = static_cast<int>(blockIdx.x) % p.n_heads;
  AttentionBlock block;
  // The last tiles of a sequence see most keys: they go first.
  if (!find_block(p, p.slots - 1 - static_cast<int>(blockIdx.x) / p.n_heads, block)) return;
  const Ring ring = make_ring<1>(memory);
  const int group = static_cast<int>(threadIdx.x) / kWgThreads;
  const int before = (block.first - block.begin) / kStepRows;  // steps of keys before all queries
  const int steps = before + (block.first + 64 < block.end ? 2 : 1);

  if (group == 0) {
    set_max_registers_down<40>();
    Producer producer(ring);
    copy_rows<kFixedRows>(ring.fixed(0), p.q, block.first, block.end, head * kHeadDim);
    const int column = head / p.group * kHeadDim;
    for (int i = 0; i < steps; ++i) {
      const int stage = producer.wait(), key = block.begin + i * kStepRows;
      copy_rows<kStepRows>(ring.step(stage, 0), p.k, key, block.end, column);
      copy_rows<kStepRows>(ring.step(stage, 1), p.v, key, block.end, column);
      producer.commit();
    }
    producer.finish();
    return;
  }

  set_max_registers_up<232>();
  const int consumer = group - 1, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) % kWgThreads / 32 * 16;  // of my 64 queries
  const int mine = min(before + consumer + 1, steps);  // the others are ahead of my queries
  const int diagonal = before + consumer;              // the step that holds keys behind a query
  Consumer<1> stages(ring);
  const u32 q_tile = ring.fixed(0) + consumer * 64 * 128;
  RunningRows rows;
  float o[kHalves][32] = {}, s[32], shrink[2];
  u32 weights[4][4];

  // The first step has nothing to run beside.
  int last = stages.wait();
  wgmma_fence();
  multiply_rows(s, q_tile, ring.step(last, 0));
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
  rows.step(s, p.scale, diagonal == 0, warp_row + lane / 4, shrink);
  pack_left(s, weights);
  for (int i = 1; i < mine; ++i) {
    const int stage = stages.wait();
    wgmma_fence();
    multiply_rows(s, q_tile, ring.step(stage, 0));
    wgmma_commit();
    multiply_tokens(o, weights, ring.step(last, 1));
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    rows.step(s, p.scale, i == diagonal, warp_row + lane / 4, shrink);
    wgmma_wait<0>();
    stages.release(last);
    last = stage;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      pin(o[half]);
#pragma unroll
      for (int j = 0; j < 32; ++j) o[half][j] *= shrink[j / 2 % 2];
    }
    pack_left(s, weights);
  }
  wgmma_fence();
  multiply_tokens(o, weights, ring.step(last, 1));
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int half = 0; half < kHalves; ++half) pin(o[half]);
  stages.release(last);
  for (int i = mine; i < steps; ++i) stages.release(stages.wait());

  const int row = block.first + 64 * consumer + warp_row;
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.total[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    factor[h] = 1.0f / sum;
    const int r = row + lane / 4 + 8 * h;
    if (lane % 4 == 0 && r < block.end) {
      p.lse[r * p.lse_stride + head] = rows.largest[h] + logf(sum);
    }
  }
  store_rows(p.o, row, block.end, head, factor, o);
}

}  // namespace coda_device
