// PTX that attention needs beside ptx.cuh: warp-wide products and asynchronous copies.
#pragma once

namespace coda_device {

/// As load_matrix_x4, each matrix transposed.
CODA_DEVICE void load_matrix_x4_transposed(u32 address, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}

/// d[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and c = 2 (lane % 4): d holds rows g, g, g + 8,
/// g + 8 and columns c, c + 1, c, c + 1; a[i] rows g + 8 (i % 2), columns c + 8 (i / 2) and the next;
/// b[i] rows c + 8 i and the next, column g.
CODA_DEVICE void warp_multiply_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
CODA_DEVICE void warp_multiply_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 bytes from global to shared memory, or 16 zero bytes (then nothing is read).
CODA_DEVICE void copy_async(u32 destination, const void* source, bool zero) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(zero ? 0 : 16)
               : "memory");
}
CODA_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the newest kPending groups of this thread have landed.
template <int kPending>
CODA_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
CODA_DEVICE void store_shared_v4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

/// 2^x, relative error at most 2^-22 (PTX ISA, ex2.approx.ftz.f32); subnormal results are 0.
CODA_DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace coda_device
