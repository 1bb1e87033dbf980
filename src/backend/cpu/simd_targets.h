// Which instruction sets kernels are compiled for: the compiler's baseline, AVX2, AVX-512; NEON on
// Arm. The ones between them gain nothing here and cost build time. Included before Highway.
#pragma once

#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
