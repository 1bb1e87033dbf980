// Graph -> Plan: defer, merge, differentiate, partition, recover, save or recompute, schedule
// (docs/design.md). No rule here names an operator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "coda/plan.h"

namespace coda {

/// A value the caller wants in memory, under a name (letters, digits, '_' and '.') that is no
/// input's. A cotangent (an input of the graph with the kind and extents of the value, or a
/// constant for a scalar) makes it a root of the backward phase. Tiles are stored in
/// CompileOptions::output_dtype, all else in f32.
struct Output {
  std::string name;
  Tensor value;
  Tensor cotangent;   ///< null: not differentiated
  bool store = true;  ///< false: only the cotangent matters
};

struct CompileRequest {
  std::vector<Output> outputs;
  /// Inputs of floats, each once, whose gradients are wanted; stored as "d_" + input name with the
  /// extents of the input. That of an input which no output depends on is stored as zeros. Empty: a
  /// plan without a backward phase, which stores (and rounds) only what forward itself needs.
  std::vector<Tensor> wrt;
};

struct CompileOptions {
  // f32, bf16 or f16; programs compute in fp32 whatever they load and store.
  DType dtype = DType::f32;              ///< of tiles that the plan materialises
  DType output_dtype = DType::f32;       ///< of tile outputs and tile gradients
  DType weight_grad_dtype = DType::f32;  ///< of gradients of weights and row vectors
  /// Those are added to what their memory holds, which must be f32, not written over.
  bool accumulate_weight_grads = false;
  /// Those are the plan's (Role::result), in memory that backward needs no longer when it writes
  /// them. Not with accumulate_weight_grads.
  bool own_weight_grads = false;
  // Passes, each can be switched off (tests compile every combination).
  bool defer = true;
  bool merge = true;
  bool recover = true;
  bool fuse = true;  ///< false: every operation is a program of its own
  /// Price of a byte held between forward and backward, in bytes moved: 0 saves
  /// whatever is cheaper to re-read, 1.5 re-emits y1 and x*w. memory_budget overrides it when > 0:
  /// the smallest price (up to 16) whose plan holds at most that many bytes at budget_tokens, or
  /// what holds least of those tried; with recompute_products, then as few products as it takes run
  /// again, those first that cost least for what they free. Finite, 0 or more.
  double held_price = 0;
  /// Products of forward may run again in backward, where they cost less than the bytes held: their
  /// operations count as the bytes that an H200 moves meanwhile: K / 175 for a byte of 16-bit
  /// results.
  bool recompute_products = false;
  double memory_budget = 0;
  /// Into how many pieces of rows the widest tile that forward ends in is cut, 1 to 24: what makes
  /// it (the head, mostly) and all that reads it run piece by piece, at the beginning of backward,
  /// so that one piece is held at a time. Outputs that depend on it, the loss mostly, are then
  /// written by backward. Weight gradients and losses are summed piece after piece, which changes
  /// their last bits (and others' where a backend cuts products of fewer rows along K). Weight
  /// gradients must be f32. Plan::rewrites says what became of it, or why nothing did.
  std::int32_t pieces = 1;
  std::int64_t budget_tokens = 16384;  ///< M at which bytes are compared, 0 or more
  bool search = true;                  ///< R7: hill climbing on the saved set
};

/// Adds nodes to the graph, and needs it no longer when it returns. Throws UsageError for a request
/// that makes no sense (Tensors of another graph, a cotangent of another type, wrt that is not an
/// input of floats, duplicate names, nothing to store), options out of range, or a gradient through
/// an op without derivative. The plan returned has been verified; several sessions may share it.
std::shared_ptr<const Plan> compile(Graph& graph, const CompileRequest& request,
                                    const CompileOptions& options);

}  // namespace coda
