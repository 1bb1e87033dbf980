// Graph -> Plan: defer, merge, differentiate, partition, recover, save or recompute, schedule
// (docs/design.md). No rule here names an operator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "coda/plan.h"

namespace coda {

/// A value the caller wants in memory, under a name. A cotangent (an input of the graph, or the
/// constant 1 for a scalar) makes it a root of the backward phase.
struct Output {
  std::string name;
  Tensor value;
  Tensor cotangent;   ///< null: not differentiated
  bool store = true;  ///< false: only the cotangent matters
};

struct CompileRequest {
  std::vector<Output> outputs;
  /// Inputs whose gradients are wanted; stored as "d_" + input name. That of an input which no
  /// output depends on is stored as zeros. Empty: a plan without a backward phase, which stores
  /// (and rounds) only what forward itself needs.
  std::vector<Tensor> wrt;
};

struct CompileOptions {
  DType dtype = DType::f32;         ///< of tiles that the plan materialises
  DType output_dtype = DType::f32;  ///< of tile outputs and tile gradients
  DType weight_grad_dtype = DType::f32;
  bool accumulate_weight_grads = false;  ///< d_weight and d_row outputs are added to (f32)
  // Passes, each can be switched off (tests compile every combination).
  bool defer = true;
  bool merge = true;
  bool recover = true;
  bool fuse = true;  ///< false: every operation is a program of its own
  /// Price of a byte held between forward and backward, in bytes moved: 0 saves
  /// whatever is cheaper to re-read, 1.5 re-emits y1 and x*w. memory_budget overrides it when > 0:
  /// the smallest price whose plan holds at most that many bytes at budget_tokens.
  double held_price = 0;
  double memory_budget = 0;
  std::int64_t budget_tokens = 16384;  ///< M at which bytes are compared
  bool search = true;                  ///< R7: hill climbing on the saved set
};

/// Throws UsageError for a request that makes no sense (a cotangent of another type, wrt that is
/// not an input, duplicate names). The plan returned has been verified.
std::shared_ptr<const Plan> compile(Graph& graph, const CompileRequest& request,
                                    const CompileOptions& options);

}  // namespace coda
