// wgmma as attention uses it: one warpgroup, m64 n64 k16, sums in 32 registers: d[4 j + 2 h + e] is row
// 16 warp + lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e. Tiles in shared memory have rows of 128
// bytes with 128-byte swizzle, 1024 bytes from eight rows to the next.
#pragma once

namespace coda_device {

#define CODA_SUMS(d)                                                                             \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),            \
      "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
      "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),              \
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),              \
      "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define CODA_SUMS_TEXT                                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

/// d = a b^T (+ d if add): 64 rows of a, 64 rows of b, 16 columns of both, at shared-memory addresses.
#define CODA_MULTIPLY_ROWS(type)                                                                 \
  CODA_DEVICE void multiply_rows_##type(float (&d)[32], u32 a, u32 b, int add) {                 \
    asm volatile(                                                                                \
        "{ .reg .pred p; .reg .b32 high; .reg .b64 x, y;\n"                                      \
        "setp.ne.b32 p, %34, 0; mov.b32 high, 1073741888;\n"                                     \
        "mov.b64 x, {%32, high}; mov.b64 y, {%33, high};\n"                                      \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " CODA_SUMS_TEXT         \
        ", x, y, p, 1, 1, 0, 0; }"                                                               \
        : CODA_SUMS(d)                                                                           \
        : "r"((a & 0x3ffff) >> 4 | 1u << 16), "r"((b & 0x3ffff) >> 4 | 1u << 16), "r"(add));     \
  }                                                                                              \
  /* d += w x: w in registers, laid out as warp_multiply's a; 16 rows of x, 64 columns. */       \
  CODA_DEVICE void multiply_tokens_##type(float (&d)[32], const u32 (&w)[4], u32 x) {            \
    asm volatile(                                                                                \
        "{ .reg .b32 high; .reg .b64 y;\n"                                                       \
        "mov.b32 high, 1073741888; mov.b64 y, {%36, high};\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " CODA_SUMS_TEXT         \
        ", {%32, %33, %34, %35}, y, 1, 1, 1, 1; }"                                               \
        : CODA_SUMS(d)                                                                           \
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]),                                            \
          "r"((x & 0x3ffff) >> 4 | (8192u >> 4) << 16));                                         \
  }
CODA_MULTIPLY_ROWS(bf16)
CODA_MULTIPLY_ROWS(f16)
#undef CODA_MULTIPLY_ROWS
#undef CODA_SUMS_TEXT
#undef CODA_SUMS

CODA_DEVICE void load_shared_v2(u32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
/// 4 bytes from global to shared memory, or 4 zero bytes (then nothing is read).
CODA_DEVICE void copy_async_word(u32 destination, const void* source, bool zero) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source),
               "r"(zero ? 0 : 4)
               : "memory");
}

}  // namespace coda_device
