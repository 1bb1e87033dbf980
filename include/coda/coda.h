// All of coda's public headers. Inside the project include the one that is needed.
#pragma once

#include "coda/backend.h"
#include "coda/compile.h"
#include "coda/dtype.h"
#include "coda/error.h"
#include "coda/explain.h"
#include "coda/graph.h"
#include "coda/nn.h"
#include "coda/op.h"
#include "coda/plan.h"
#include "coda/program.h"
#include "coda/program_builder.h"
#include "coda/tensor.h"
#include "coda/trainer.h"
#include "coda/version.h"
