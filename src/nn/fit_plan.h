// A plan that fits into so much memory: as little as possible is computed again in backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "coda/plan.h"

namespace coda {

/// What compile() gives with CompileOptions::memory_budget = held, 0 for none.
using CompileHeld = std::function<std::shared_ptr<const Plan>(double held)>;

/// Compiles without a budget, and then with smaller and smaller ones until the plan's own memory
/// for runs of up to max_tokens rows (layout_arena) is at most `bytes`. Returns that plan, or the
/// one with the smallest memory if none fits.
std::shared_ptr<const Plan> fit_plan(const CompileHeld& compile, std::int64_t max_tokens,
                                     double bytes);

}  // namespace coda
