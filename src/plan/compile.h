// Public: include/coda/compile.h.
#pragma once

#include "coda/compile.h"
