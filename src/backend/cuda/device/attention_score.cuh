// What a score is, for all attention kernels; params have scale and softcap. The prelude says
// whether there is a cap: kSoftcap.
#pragma once

namespace coda_device {

/// The score of q . k. Products are rounded by themselves, never fused into an addition: a largest
/// score must be the same number wherever it is computed, or its rounding error stays in the
/// exponent.
template <class Params>
CODA_DEVICE float score_of(const Params& p, float product) {
  const float scaled = __fmul_rn(product, p.scale);
  if (!kSoftcap) return scaled;
  return __fmul_rn(p.softcap, tanhf(scaled / p.softcap));
}

/// Its derivative by the scaled product: 1 / cosh^2 where there is a cap.
template <class Params>
CODA_DEVICE float score_slope(const Params& p, float product) {
  if (!kSoftcap) return 1.0f;
  const float e = expf(-2.0f * fabsf(__fmul_rn(product, p.scale) / p.softcap));
  return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

}  // namespace coda_device
