// What runs on the GPU for a plan, for people (`coda explain --device cuda`): kernel by kernel the
// generated source, the configuration, what the compiler made of it, and everything that the plan
// fixes and that changes bits. Needs no GPU; without NVRTC what the compiler knows is missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace coda::cuda {

struct KernelReport {
  std::string name, entry;
  std::string configuration;  ///< of a GEMM: which one, and how it works
  std::string order;          ///< of sums: what the plan fixed; empty: as the source reads
  std::string source;         ///< everything that NVRTC gets
  std::int64_t grid = 0, grid_y = 1, block = 0, cluster = 1;  ///< 0: not known before memory is
  std::int64_t shared_bytes = 0;  ///< a launch asks for; compiled: and static
  bool compiled = false;
  std::string problem;   ///< why it is not compiled
  int registers = 0;     ///< a thread, at launch
  int frame_bytes = 0;   ///< of a thread's stack: spilled registers
  int ctas_per_sm = 0;   ///< that fit together
  double occupancy = 0;  ///< of an SM's 64 warps
};

struct StepKernels {
  std::string phase, name, form;
  std::vector<KernelReport> kernels;
  std::string note;  ///< what is not shown, and why
};

/// Of every step, in order, on memory as aligned as the plan's own, for runs of `tokens` rows on a
/// GPU of `sm_count` SMs. Compiles what the cache does not hold, several kernels at once.
std::vector<StepKernels> plan_kernels(const std::shared_ptr<const Plan>& plan, std::int64_t tokens,
                                      int sm_count);

/// SMs of the GPU, or of an H200 where there is none.
int explained_sm_count();

/// What holds for all kernels.
std::string order_of_sums();

/// As text; sources: with the generated part of each source. Hand-written files are named only.
std::string to_string(const StepKernels& step, bool sources);

/// A source without the hand-written files of device/, which leave a line each.
std::string generated_part(const std::string& source);

}  // namespace coda::cuda
