#include "train/memory.h"

#include <unistd.h>

#include "base/check.h"

namespace coda {

void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight) {
  const double have =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double need = static_cast<double>(weights) * static_cast<double>(bytes_per_weight);
  if (have <= 0.0 || need <= have) return;
  throw_error<UsageError>(
      "{}: expected a model that fits into {:.1f} GB of memory, got {} weights of {} bytes each "
      "({:.1f} GB). Use a smaller model.",
      what, have * 1e-9, weights, bytes_per_weight, need * 1e-9);
}

}  // namespace coda
