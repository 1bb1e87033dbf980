// Finds ops in a row whose result is stored and that one kernel can make in a pass: on structure
// alone, and only where the nodes in between have no other reader.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "ir/lower.h"

namespace coda::cpu {

using lowering::Lowered;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;

/// A store, and the chain of nodes that it ends.
struct StoredChain {
  const Sink* sink = nullptr;
  ChainKernel kernel = nullptr;
  Ref a, b, c;  ///< of the kernel; c may be unset
  // A gated product, instead: what its factors are made of, and where they are stored. With
  // interleaved pairs only `gate` is.
  GatedKernel gated = nullptr;
  Ref scale;
  bool interleaved = false;
  const Sink *gate = nullptr, *up = nullptr;
};

class Chains {
 public:
  /// `uses` counts the readers of each node, sinks too.
  Chains(const Program& program, const Lowered& lowered, std::span<const Sink> sinks,
         std::span<const int> uses);

  /// The chain that ends in `node`, or null.
  const StoredChain* ending_in(std::int32_t node) const {
    const StoredChain& chain = ends_[static_cast<std::size_t>(node)];
    return chain.sink ? &chain : nullptr;
  }
  /// True for nodes that a chain makes on its way; their own stores, if any, are done by then.
  bool absorbs(std::int32_t node) const { return absorbed_[static_cast<std::size_t>(node)]; }

 private:
  /// A product with its sigmoid factor: a * sigmoid(b).
  struct Gate {
    Ref a, b;
    std::int32_t sigmoid = -1;
  };
  /// A stored x * scale.
  struct Scaled {
    const Sink* sink = nullptr;
    Ref x, scale;
    std::vector<std::int32_t> nodes;
  };

  const Node& node(const Ref& ref) const;
  bool only_use(const Ref& ref, Op op) const;
  DType stored_type(const Sink& sink) const;
  const Node* computed(const Sink& sink, std::vector<std::int32_t>& absorbed) const;
  bool find_gate(const Node& product, Gate& gate) const;
  bool find_scaled(const Ref& ref, int readers, DType dtype, Scaled& scaled) const;
  bool find_gated(const Sink& sink);
  void find_chain(const Sink& sink);
  void absorb(std::span<const std::int32_t> nodes);

  const Program& program_;
  const Lowered& lowered_;
  std::span<const Sink> sinks_;
  std::span<const int> uses_;
  std::vector<StoredChain> ends_;
  std::vector<bool> absorbed_;
};

}  // namespace coda::cpu
