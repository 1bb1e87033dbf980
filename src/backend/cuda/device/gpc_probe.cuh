// Which SMs sit in one GPC: clusters never span GPCs, so CTAs of one cluster share theirs. Launched
// with several cluster sizes, one CTA an SM; the host joins the SMs that met (gpc_map.cpp).
#pragma once

namespace coda_device {

extern "C" __global__ void coda_gpc_probe(unsigned* sm_of_cta) {
  if (threadIdx.x == 0) sm_of_cta[blockIdx.x] = sm_id();
  // Stay long enough that no SM gets a second CTA of this launch.
  const long long start = clock64();
  while (clock64() - start < 20000) {
  }
}

}  // namespace coda_device
