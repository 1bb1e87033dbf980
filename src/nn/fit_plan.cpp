#include "nn/fit_plan.h"

#include <algorithm>

#include "backend/arena.h"

namespace coda {

std::shared_ptr<const Plan> fit_plan(const CompileHeld& compile, std::int64_t max_tokens,
                                     double bytes) {
  const auto size_of = [&](const Plan& plan) {
    return static_cast<double>(layout_arena(plan, max_tokens).bytes);
  };
  std::shared_ptr<const Plan> best = compile(0);
  double best_size = size_of(*best);
  if (best_size <= bytes) return best;
  // What is held between the phases is most of the memory, not all, and comes in steps of a layer:
  // the budget that is wanted lies between one that is too small and one that is too large.
  constexpr int kTries = 8;
  double small = 0, large = saved_bytes(*best, max_tokens);
  double held = std::max(1.0, large - (best_size - bytes));
  for (int i = 0; i < kTries; ++i) {
    std::shared_ptr<const Plan> next = compile(held);
    const double size = size_of(*next), left = bytes - size;
    if (best_size > bytes ? size < best_size : left >= 0 && size > best_size) {
      best = std::move(next);
      best_size = size;
    }
    (left >= 0 ? small : large) = held;
    if (large - small < 0.02 * bytes) break;
    const double margin = 0.1 * (large - small);
    held = std::clamp(held + left, small + margin, large - margin);
  }
  return best;
}

}  // namespace coda
