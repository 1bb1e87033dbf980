// Whether a model can fit at all. Asking for more memory than there is does not fail on Linux: the
// machine slows down and kills some process.
#pragma once

#include <cstdint>
#include <string_view>

namespace coda {

/// Throws UsageError, opening with `what`, if weights * bytes_per_weight is more than the machine's
/// memory.
void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight);

}  // namespace coda
