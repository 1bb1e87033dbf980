// Public: include/coda/explain.h.
#pragma once

#include "coda/explain.h"
