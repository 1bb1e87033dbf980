// d_q by wgmma, after coda_attention_delta:
//   p = e^(scale q k^T - lse)   ds = p (d_o v^T - delta)   d_q = scale ds k
#pragma once

namespace coda_device {

/// A CTA has 128 queries of one head, a consumer warpgroup 64 of them, and walks over the keys that
/// they may see, 64 at a time.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    coda_attention_wgmma_backward_q(const AttentionParams p) {
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
    copy_rows<kFixedRows>(ring.fixed(1), p.d_o, block.first, block.end, head * kHeadDim);
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
  const int warp_row = 64 * consumer + static_cast<int>(threadIdx.x) % kWgThreads / 32 * 16;
  const int mine = min(before + consumer + 1, steps);  // the others are ahead of my queries
  float lse[2] = {}, delta[2] = {};  // of rows g and g + 8
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = block.first + warp_row + lane / 4 + 8 * h;
    if (row < block.end) {
      lse[h] = p.lse[row * p.lse_stride + head];
      delta[h] = p.delta[static_cast<long long>(row) * p.n_heads + head];
    }
  }

  Consumer<1> stages(ring);
  const u32 q_tile = ring.fixed(0) + consumer * 64 * 128;
  const u32 d_o_tile = ring.fixed(1) + consumer * 64 * 128;
  float d_q[kHalves][32] = {};
  int last = -1;  // the stage that products on their way may read
  for (int i = 0; i < mine; ++i) {
    const int stage = stages.wait();
    // Step 1: both products over features; the last step's d_q is complete when the first is.
    float s[32], d_p[32];
    wgmma_fence();
    multiply_rows(s, q_tile, ring.step(stage, 0));
    wgmma_commit();
    multiply_rows(d_p, d_o_tile, ring.step(stage, 1));
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    if (last >= 0) stages.release(last);
    last = stage;

    // Step 2: p, and ds when d_p is there; in the last step a query must not look ahead.
    const bool diagonal = i == before + consumer;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int h = j / 2 % 2;
      s[j] = probability(s[j], p.scale, lse[h]);
      const int query = warp_row % 64 + lane / 4 + 8 * h;
      const int key = j / 4 * 8 + lane % 4 * 2 + j % 2;
      if (diagonal && key > query) s[j] = 0.0f;
    }
    wgmma_wait<0>();
    pin(d_p);
#pragma unroll
    for (int j = 0; j < 32; ++j) s[j] *= d_p[j] - delta[j / 2 % 2];
    u32 ds[4][4];
    pack_left(s, ds);

    // Step 3: d_q += ds k.
    wgmma_fence();
    multiply_tokens(d_q, ds, ring.step(stage, 0));
    wgmma_commit();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int half = 0; half < kHalves; ++half) pin(d_q[half]);
  if (last >= 0) stages.release(last);
  for (int i = mine; i < steps; ++i) stages.release(stages.wait());
  const float factor[2] = {p.scale, p.scale};
  store_rows(p.d_q, block.first + warp_row, block.end, head, factor, d_q);
}

}  // namespace coda_device
