// Which of the compiled instruction sets kernels are chosen from. CODA_CPU caps them, in Highway
// and in oneDNN, for the whole process: to see what a smaller machine computes, or how fast.
#pragma once

#include <cstdint>
#include <string_view>

namespace coda::cpu {

/// Highway's targets that `name` (a value of CODA_CPU) forbids. Throws UsageError if it is none.
std::int64_t forbidden_targets(std::string_view name);

/// Applies CODA_CPU, the first time that it is called: before any kernel is chosen and before
/// anything is asked of oneDNN. Throws UsageError for an unknown value.
void cap_instruction_sets();

}  // namespace coda::cpu
