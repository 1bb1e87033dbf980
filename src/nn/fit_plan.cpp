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
  double least = size_of(*best), size = least;
  double held = saved_bytes(*best, max_tokens);
  // What is held between the phases is most of the memory, not all, and comes in steps of a layer.
  constexpr int kTries = 8;
  for (int i = 0; i < kTries && least > bytes && held > 1; ++i) {
    held = std::max(1.0, held - (size - bytes));
    std::shared_ptr<const Plan> next = compile(held);
    size = size_of(*next);
    if (size >= least) continue;
    least = size;
    best = std::move(next);
  }
  return best;
}

}  // namespace coda
