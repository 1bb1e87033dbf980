// Public: include/coda/backend.h.
#pragma once

#include "coda/backend.h"
