// d_k and d_v by wgmma, after coda_attention_delta:
//   p = e^(scale q k^T - lse)   ds = p (d_o v^T - delta)   d_v = p^T d_o   d_k = scale ds^T q
#pragma once

namespace coda_device {

/// A CTA has 128 keys of one key-value head, a consumer warpgroup 64 of them; all its query heads, in
/// order, and the queries at and after its keys, 64 at a time. Numbers are transposed: rows are
/// keys, columns queries.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    coda_attention_wgmma_backward_kv(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int kv_heads = p.n_heads / p.group;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  AttentionBlock block;
  if (!find_block(p, static_cast<int>(blockIdx.x) / kv_heads, block)) return;
  const Ring ring = make_ring<32>(memory);
  const int group = static_cast<int>(threadIdx.x) / kWgThreads;
  const int steps = (block.end - block.first + kStepRows - 1) / kStepRows;  // of a head
  const int first_head = kv_head * p.group;

  if (group == 0) {
    set_max_registers_down<40>();
    Producer producer(ring);
    copy_rows<kFixedRows>(ring.fixed(0), p.k, block.first, block.end, kv_head * kHeadDim);
    copy_rows<kFixedRows>(ring.fixed(1), p.v, block.first, block.end, kv_head * kHeadDim);
    const int thread = static_cast<int>(threadIdx.x);
    for (int head = first_head; head < first_head + p.group; ++head) {
      for (int i = 0; i < steps; ++i) {
        const int stage = producer.wait(), query = block.first + i * kStepRows;
        copy_rows<kStepRows>(ring.step(stage, 0), p.q, query, block.end, head * kHeadDim);
        copy_rows<kStepRows>(ring.step(stage, 1), p.d_o, query, block.end, head * kHeadDim);
        // 64 threads fetch lse, the others delta.
        const int row = query + thread % kStepRows;
        const float* from = thread < kStepRows
                                ? p.lse + row * p.lse_stride + head
                                : p.delta + static_cast<long long>(row) * p.n_heads + head;
        const bool exists = row < block.end;
        copy_async_word(ring.vectors(stage) + 4 * thread, exists ? from : p.lse, !exists);
        producer.commit();
      }
    }
    producer.finish();
    return;
  }

  set_max_registers_up<232>();
  const int consumer = group - 1, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) % kWgThreads / 32 * 16;  // of my 64 keys
  Consumer<32> stages(ring);
  const u32 k_tile = ring.fixed(0) + consumer * 64 * 128;
  const u32 v_tile = ring.fixed(1) + consumer * 64 * 128;
  float d_k[kHalves][32] = {}, d_v[kHalves][32] = {};
  int last = -1;  // the stage that products on their way may read
  for (int head = 0; head < p.group; ++head) {
    for (int i = 0; i < min(consumer, steps); ++i) stages.release(stages.wait());
    for (int i = consumer; i < steps; ++i) {
      const int stage = stages.wait();
      // Step 1: both products over features; the last step's sums are complete when the first is.
      float s[32], d_p[32];
      wgmma_fence();
      multiply_rows(s, k_tile, ring.step(stage, 0));
      wgmma_commit();
      multiply_rows(d_p, v_tile, ring.step(stage, 1));
      wgmma_commit();
      wgmma_wait<1>();
      pin(s);
      if (last >= 0) stages.release(last);
      last = stage;

      // Step 2: p, and ds when d_p is there. Hidden: a query before its key, and what is no query.
      const u32 vectors = ring.vectors(stage) + lane % 4 * 8;
      const int queries = block.end - block.first - i * kStepRows;
      const bool diagonal = i == consumer, edge = diagonal || queries < kStepRows;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float lse[2];
        load_shared_v2(vectors + 32 * j, lse[0], lse[1]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = 8 * j + lane % 4 * 2 + e;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& x = s[4 * j + 2 * h + e];
            x = probability(x, p.scale, lse[e]);
            const int key = warp_row + lane / 4 + 8 * h;
            if (edge && ((diagonal && key > query) || query >= queries)) x = 0.0f;
          }
        }
      }
      u32 weights[4][4], ds[4][4];
      pack_left(s, weights);
      wgmma_wait<0>();
      pin(d_p);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float delta[2];
        load_shared_v2(vectors + 4 * kStepRows + 32 * j, delta[0], delta[1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) s[4 * j + e] *= d_p[4 * j + e] - delta[e % 2];
      }
      pack_left(s, ds);

      // Step 3: d_v += p^T d_o, d_k += ds^T q.
      wgmma_fence();
      multiply_tokens(d_v, weights, ring.step(stage, 1));
      multiply_tokens(d_k, ds, ring.step(stage, 0));
      wgmma_commit();
      if constexpr (kHalves > 1) wgmma_wait<0>();  // no registers to have them on their way
    }
    // Queries before all my keys follow: nothing is on its way while they pass.
    wgmma_wait<0>();
    if (last >= 0) stages.release(last);
    last = -1;
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    pin(d_k[half]);
    pin(d_v[half]);
  }
  const int row = block.first + 64 * consumer + warp_row;
  const float scale[2] = {p.scale, p.scale}, one[2] = {1.0f, 1.0f};
  store_rows(p.d_k, row, block.end, kv_head, scale, d_k);
  store_rows(p.d_v, row, block.end, kv_head, one, d_v);
}

}  // namespace coda_device
