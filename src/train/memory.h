// Whether a model can fit at all. Asking for more memory than there is does not fail on Linux: the
// machine slows down and kills some process.
#pragma once

#include <cstdint>
#include <string_view>

namespace coda {

/// Throws UsageError, opening with `what`, if weights * bytes_per_weight is more than the machine's
/// memory.
void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight);

/// Throws UsageError unless what a step over batch * seq tokens holds at the least,
/// `bytes_per_token` for each, fits into this machine's memory.
void check_activations(std::int64_t batch, std::int64_t seq, std::int64_t bytes_per_token);

}  // namespace coda
