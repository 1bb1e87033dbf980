// What a plan does and why, for people: the math, each program, bytes and FLOPs of the plan that
// runs, the time no machine with given peaks can beat, what is fused, and what is not and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/plan.h"

namespace coda {

/// What a machine can do at best: floating-point operations and bytes a second; 0: unknown. A step
/// takes at least the larger of its two times; where both are unknown no floor is given.
struct Peaks {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

struct StepReport {
  std::string phase;  ///< "forward", "backward"
  std::string name;
  std::string form;   ///< "gemm", "rows", "vectors", "opaque"
  std::string text;   ///< the program
  std::string fused;  ///< what a GEMM's epilogue does besides storing acc; empty: nothing
  std::string note;   ///< why it is not part of another step
  Piece piece;        ///< the rows that it sees
  Cost cost;
  /// false: cost.flops is not known (what attention computes depends on the sequences' lengths).
  bool counted = true;
  double floor_seconds = 0;
};

struct PlanReport {
  std::int64_t tokens = 0;
  std::string math;
  std::vector<std::string> rewrites;
  std::vector<StepReport> steps;
  Cost forward, backward;
  bool counted = true;       ///< false: the costs leave out operations of opaque steps
  double saved_bytes = 0;    ///< held between the phases
  double floor_seconds = 0;  ///< of all steps, one after the other
  /// Bytes of the same GEMMs' operands and results alone: what no fusion can go below.
  double gemm_bytes = 0;
};

/// Throws UsageError if tokens is negative.
PlanReport report(const Plan& plan, std::int64_t tokens, const Peaks& peaks = {});

/// The report as text; programs: with the text of every program.
std::string explain(const Plan& plan, std::int64_t tokens, const Peaks& peaks = {},
                    bool programs = true);

}  // namespace coda
