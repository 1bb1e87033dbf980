#include "train/memory.h"

#include <unistd.h>

#include "base/check.h"

namespace coda {

namespace {

/// Bytes; not positive where the system does not say.
double physical_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight) {
  const double have = physical_memory();
  const double need = static_cast<double>(weights) * static_cast<double>(bytes_per_weight);
  if (have <= 0.0 || need <= have) return;
  throw_error<UsageError>(
      "{}: expected a model that fits into {:.1f} GB of memory, got {} weights of {} bytes each "
      "({:.1f} GB). Use a smaller model.",
      what, have * 1e-9, weights, bytes_per_weight, need * 1e-9);
}

void check_activations(std::int64_t batch, std::int64_t seq, std::int64_t bytes_per_token) {
  const double have = physical_memory();
  const double need =
      static_cast<double>(batch) * static_cast<double>(seq) * static_cast<double>(bytes_per_token);
  if (have <= 0.0 || need <= have) return;
  throw_error<UsageError>(
      "--batch, --seq: expected a step that fits into {:.1f} GB of memory, got {} * {} tokens, "
      "which hold {:.1f} GB at the least. Lower them, and raise --accumulate for as large a step.",
      have * 1e-9, batch, seq, need * 1e-9);
}

}  // namespace coda
