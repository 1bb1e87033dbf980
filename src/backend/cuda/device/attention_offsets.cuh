// Lengths of sequences and where each begins in every matrix, as cuDNN's attention reads them. One
// CTA: it lies between two kernels of a plan, so lengths may differ from run to run.
#pragma once

namespace coda_device {

/// An offset, kept inside the tokens whatever the list holds. Places without a sequence: the end.
CODA_DEVICE long long place_begin(const AttentionOffsetsParams& p, int i) {
  if (i >= p.sequences) return p.tokens;
  const long long value = p.wide_offsets ? static_cast<const long long*>(p.cu_seqlens)[i]
                                         : static_cast<const int*>(p.cu_seqlens)[i];
  return value < 0 ? 0 : value > p.tokens ? p.tokens : value;
}

extern "C" __global__ void __launch_bounds__(256)
    coda_attention_offsets(const AttentionOffsetsParams p) {
  for (int i = threadIdx.x; i <= p.places; i += 256) {
    const long long begin = place_begin(p, i);
    if (i < p.places) {
      const long long end = place_begin(p, i + 1);
      p.lengths[i] = end > begin ? static_cast<int>(end - begin) : 0;
    }
#pragma unroll
    for (int m = 0; m < 9; ++m) {  // unrolled: parameters cannot be indexed at run time
      if (m < p.matrices) p.offsets[m * (p.places + 1) + i] = begin * p.strides[m];
    }
  }
}

}  // namespace coda_device
