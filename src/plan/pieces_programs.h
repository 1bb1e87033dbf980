// Programs changed for pieces of rows (plan/pieces.h): parts of them, and sums that are added to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coda/plan.h"

namespace coda {

/// A vector program that stores nothing but sums over rows, in f32: a loss.
bool sums_vectors(const Step& step);

/// The same, its results added to what their memory holds.
std::shared_ptr<Program> adding(const Program& program);

/// The program without an operand that it only adds to what it stores.
std::shared_ptr<Program> without_addend(const Program& program, std::int32_t operand);

/// The step with those stores only for which `keep` (by value) is true, and what they are made of.
Step with_stores(const Step& step, const std::vector<char>& keep);

}  // namespace coda
