// The order of steps where the partition leaves it open. Must not change what a step computes.
#pragma once

#include "coda/plan.h"

namespace coda {

/// Sets first_step and last_step of each buffer that a step touches.
void set_lifetimes(Plan& plan);

/// What backward computes again from inputs and saved values alone could run at any time: it runs
/// right before the first step that reads it, so that it is not held, unless a saved tile would be
/// held longer instead. Lifetimes and roles must be set; lifetimes are set again.
void delay_repeated(Plan& plan);

}  // namespace coda
