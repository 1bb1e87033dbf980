// PTX, one instruction a function. Names follow the PTX ISA; nothing here knows about GEMM.
// Shared-memory addresses are 32-bit (the shared window).
#pragma once

namespace coda_device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define CODA_DEVICE __device__ __forceinline__

CODA_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- Identity

CODA_DEVICE u32 sm_id() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
/// A value that all lanes of the warp hold alike, made known as such to the compiler: what is computed
/// from it, and loops over it, then run on the uniform datapath, once a warp and not once a lane.
CODA_DEVICE int uniform(int value) {
  int same;
  asm("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(same) : "r"(value));
  return same;
}
/// True in one lane of a converged warp, always the same one. The compiler knows that it is one lane.
CODA_DEVICE bool elect_one() {
  u32 elected;
  asm volatile(
      "{ .reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(elected));
  return elected != 0;
}
CODA_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- Registers of a warpgroup

template <int kCount>
CODA_DEVICE void set_max_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
CODA_DEVICE void set_max_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- Barriers between threads

/// Named barrier `id` (1..15; 0 is __syncthreads): waits until `threads` have arrived.
CODA_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
CODA_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Orders nothing: whoever wrote what the others will read has fenced it.
CODA_DEVICE void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
CODA_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- Launches that overlap (programmatic dependent launch)

/// The next kernel of the stream may start once every CTA has come here (or has ended), if it was
/// launched so that it may.
CODA_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits until the kernels before have ended and what they wrote can be read.
CODA_DEVICE void await_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- mbarrier: an arrival count and a byte count in shared memory

CODA_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the cluster and to the copy engine.
CODA_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
CODA_DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
CODA_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// `barrier` is an address in the cluster's window (map_to_rank). No .release: it would cost a
/// memory barrier each, and what is released here was read by wgmma, already waited for.
CODA_DEVICE void mbarrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
CODA_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{ .reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
/// Blocks until the phase of this parity has completed.
CODA_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// ---- The other CTAs of a cluster

CODA_DEVICE u32 map_to_rank(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
/// Two words into a CTA, and 8 bytes on a barrier there. Addresses in the cluster's window.
CODA_DEVICE void store_async_cluster(u32 address, u32 x, u32 y, u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// ---- TMA: tiles between global and shared memory

CODA_DEVICE void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
CODA_DEVICE void tma_load_2d(const TensorMap* map, u32 barrier, u32 destination, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
/// Writes to the same offset in every CTA of `mask` and signals the same barrier there.
CODA_DEVICE void tma_load_2d_multicast(const TensorMap* map, u32 barrier, u32 destination, int x,
                                       int y, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}
CODA_DEVICE void tma_store_2d(const TensorMap* map, u32 source, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   map),
               "r"(source), "r"(x), "r"(y)
               : "memory");
}
/// Called by a whole warp: one lane, always the same, stores the tile and commits it as a group. All in
/// one text, because a branch here would cost the code around it its uniform registers.
CODA_DEVICE void warp_tma_store_2d(const TensorMap* map, u32 source, int x, int y) {
  asm volatile(
      "{ .reg .pred p; elect.sync _|p, 0xffffffff;\n"
      "@p cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
      "@p cp.async.bulk.commit_group; }" ::"l"(map),
      "r"(source), "r"(x), "r"(y)
      : "memory");
}
/// The same for C += tile, element by element. fp32 subnormals may be flushed to zero.
CODA_DEVICE void warp_tma_reduce_add_2d(const TensorMap* map, u32 source, int x, int y) {
  asm volatile(
      "{ .reg .pred p; elect.sync _|p, 0xffffffff;\n"
      "@p cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];\n"
      "@p cp.async.bulk.commit_group; }" ::"l"(map),
      "r"(source), "r"(x), "r"(y)
      : "memory");
}
CODA_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all but the newest kPending groups have read their shared memory.
template <int kPending>
CODA_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Orders this thread's ordinary shared-memory accesses before the copy engine's.
CODA_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Shared memory by ordinary accesses

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
CODA_DEVICE void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
CODA_DEVICE void load_matrix_x4(u32 address, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}
CODA_DEVICE u32 load_shared_u32(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
CODA_DEVICE void store_shared_v2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
CODA_DEVICE void store_shared(u32 address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
CODA_DEVICE float load_shared(u32 address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// ---- Conversion, round to nearest even; `low` lands in the lower half

CODA_DEVICE u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
CODA_DEVICE u32 pack_f16(float low, float high) {
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
CODA_DEVICE float unpack_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
CODA_DEVICE float unpack_f16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// A branch around this stays a branch.
CODA_DEVICE void keep_branch() { asm volatile(""); }

/// rcp.approx: at most 1 ulp; 0 for infinity and where the result would be subnormal.
CODA_DEVICE float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 2^x: relative error at most 2^-22; 0 for -infinity and where the result would be subnormal.
CODA_DEVICE float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Of two pairs of bf16 or f16.
CODA_DEVICE u32 larger_bf16_or_nan(u32 a, u32 b) {
  u32 y;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
CODA_DEVICE u32 larger_f16_or_nan(u32 a, u32 b) {
  u32 y;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
CODA_DEVICE float larger_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// ---- Global memory

CODA_DEVICE void store_global_v4(float* address, float a, float b, float c, float d) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}
CODA_DEVICE void load_global_v4(const float* address, float& a, float& b, float& c, float& d) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
               : "l"(address)
               : "memory");
}
/// Two 16-bit elements that nobody writes while the kernel runs: the compiler may move it anywhere.
CODA_DEVICE u32 load_global_once(const u16* address) {
  u32 value;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

/// *address += value. fp32 subnormals may be flushed to zero.
CODA_DEVICE void reduce_add(float* address, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
/// The same for address[0] and address[1], 8-byte aligned.
CODA_DEVICE void reduce_add_two(float* address, float low, float high) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(low), "f"(high)
               : "memory");
}
CODA_DEVICE u32 load_acquire(const u32* address) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
CODA_DEVICE void store_release(u32* address, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
CODA_DEVICE u32 atomic_add(u32* address, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}
/// Adds and orders: accesses before it are visible to whoever reads the result, and the reverse.
CODA_DEVICE u32 atomic_add_ordered(u32* address, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

// ---- wgmma: the tensor cores, by warpgroup. The multiply itself depends on the tile's width and
// on the operands' type, and comes from the generated prelude (wgmma_multiply).

CODA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CODA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
CODA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving reads or writes of an accumulator across this point.
CODA_DEVICE void pin_register(u32& value) { asm volatile("" : "+r"(value)); }
CODA_DEVICE void pin_register(float& value) { asm volatile("" : "+f"(value)::"memory"); }

}  // namespace coda_device
