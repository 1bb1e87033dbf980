// Public: include/coda/plan.h.
#pragma once

#include "coda/plan.h"
