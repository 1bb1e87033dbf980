// Whether a model can fit at all. Asking for more memory than there is does not fail on Linux: the
// machine slows down and kills some process.
#pragma once

#include <cstdint>
#include <string_view>

namespace coda {

/// Throws UsageError, opening with `what`, if weights * bytes_per_weight is more than the machine's
/// memory.
void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight);

/// Throws UsageError unless a step over batch * seq tokens, which takes `bytes` (or at the least so
/// many: what can be told before there is a plan), fits into this machine's memory beside the
/// weights' bytes.
void check_step_memory(std::int64_t batch, std::int64_t seq, double bytes, double weight_bytes);

/// Bytes that this process may use: the machine's memory, or less where its control group or its
/// limits (ulimit -v) say so. Not positive where the system does not tell.
double usable_memory();

}  // namespace coda
