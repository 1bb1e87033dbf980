// Public: include/coda/tensor.h.
#pragma once

#include "coda/tensor.h"
