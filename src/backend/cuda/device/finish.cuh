// Makes complete vectors of partials where there are many. The granules are cut into runs; each run
// is combined in ascending order, then the runs are: the bits depend on the number of granules
// only. The prelude defines kJobs.
#pragma once

namespace coda_device {

struct FinishParams {
  FinishJob jobs[kJobs];
};

/// Block (x, y) finishes elements 32 x .. of job y. A warp reads 32 neighbours of one granule.
extern "C" __global__ void __launch_bounds__(kFinishColumns* kFinishSlices)
    coda_finish(const __grid_constant__ FinishParams p) {
  const FinishJob& job = p.jobs[blockIdx.y];
  if (blockIdx.x * static_cast<long long>(kFinishColumns) >= job.count) return;
  __shared__ float max_of[kFinishSlices][kFinishColumns];
  __shared__ float sum_of[kFinishSlices][kFinishColumns];
  const int column = threadIdx.x % kFinishColumns;
  const int slice = threadIdx.x / kFinishColumns;
  const long long i = blockIdx.x * static_cast<long long>(kFinishColumns) + column;
  const int run = (job.granules + kFinishSlices - 1) / kFinishSlices;
  const int first = slice * run;
  const int last = first + run < job.granules ? first + run : job.granules;

  // Step 1: every thread combines a run of granules of one element.
  LogSum part;
  if (i < job.count) {
    const float* data = job.data + i;
    if (job.kind == kFinishSum) {
#pragma unroll 4
      for (int g = first; g < last; ++g) part.sum = op::add(part.sum, data[g * job.stride]);
    } else if (job.kind == kFinishMax) {
#pragma unroll 4
      for (int g = first; g < last; ++g) part.max = op::maximum(part.max, data[g * job.stride]);
    } else {
      const float* sums = data + job.granules * job.stride;
#pragma unroll 4
      for (int g = first; g < last; ++g) part.add(data[g * job.stride], sums[g * job.stride]);
    }
  }
  max_of[slice][column] = part.max;
  sum_of[slice][column] = part.sum;
  __syncthreads();

  // Step 2: one thread an element combines the runs.
  if (slice != 0 || i >= job.count) return;
  LogSum all = part;
  for (int other = 1; other < kFinishSlices; ++other) {
    if (job.kind == kFinishSum) {
      all.sum = op::add(all.sum, sum_of[other][column]);
    } else {
      all.add(max_of[other][column], sum_of[other][column]);
    }
  }
  if (job.kind == kFinishSum) {
    job.out[i] = all.sum;
  } else {
    job.out[i] = all.max;
    if (job.kind == kFinishOnline) job.out[job.plane + i] = all.log_sum();
  }
}

}  // namespace coda_device
