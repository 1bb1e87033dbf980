#include "backend/cpu/chains.h"

#include <utility>

namespace coda::cpu {
namespace {

using i32 = std::int32_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

bool is_tile(const Ref& ref) { return ref.kind == Ref::Kind::tile; }
bool is_uniform(const Ref& ref) {
  return ref.kind == Ref::Kind::col || ref.kind == Ref::Kind::scalar;
}

}  // namespace

Chains::Chains(const Program& program, const Lowered& lowered, std::span<const Sink> sinks,
               std::span<const int> uses)
    : program_(program),
      lowered_(lowered),
      sinks_(sinks),
      uses_(uses),
      ends_(lowered.nodes.size()),
      absorbed_(lowered.nodes.size(), false) {
  const auto is_plain_store = [&](const Sink& sink) {
    return sink.op == Op::store_tile && !program_.operands[at(sink.operand)].accumulate;
  };
  // The longest first.
  for (const Sink& sink : sinks)
    if (is_plain_store(sink)) find_gated(sink);
  for (const Sink& sink : sinks)
    if (is_plain_store(sink) && !absorbed_[at(sink.node)] && !ends_[at(sink.node)].sink)
      find_chain(sink);
}

const Node& Chains::node(const Ref& ref) const { return lowered_.nodes[at(ref.index)]; }

bool Chains::only_use(const Ref& ref, Op op) const {
  return is_tile(ref) && node(ref).op == op && uses_[at(ref.index)] == 1;
}

DType Chains::stored_type(const Sink& sink) const {
  return program_.operands[at(sink.operand)].dtype;
}

/// The op whose result is stored, before it is rounded; null if others read the unrounded value or
/// it is rounded to another type.
const Node* Chains::computed(const Sink& sink, std::vector<i32>& absorbed) const {
  const Node& stored = lowered_.nodes[at(sink.node)];
  const DType dtype = stored_type(sink);
  if (stored.op != Op::cast)
    return dtype == DType::f32 || uses_[at(sink.node)] == 1 ? &stored : nullptr;
  const Ref& from = stored.args[0];
  if (stored.attrs.dtype != dtype || !is_tile(from) || uses_[at(from.index)] != 1) return nullptr;
  absorbed.push_back(from.index);
  return &node(from);
}

bool Chains::find_gate(const Node& product, Gate& gate) const {
  if (product.op != Op::mul) return false;
  for (std::size_t i = 0; i < 2; ++i) {
    if (!only_use(product.args[i], Op::sigmoid)) continue;
    gate = {product.args[1 - i], node(product.args[i]).args[0], product.args[i].index};
    return !is_uniform(gate.a) && !is_uniform(gate.b);
  }
  return false;
}

/// A factor: x times a col or scalar, stored, and read `readers` times besides.
bool Chains::find_scaled(const Ref& ref, int readers, DType dtype, Scaled& scaled) const {
  if (!is_tile(ref) || uses_[at(ref.index)] != readers + 1) return false;
  for (const Sink& sink : sinks_)
    if (sink.node == ref.index && sink.op == Op::store_tile) scaled.sink = &sink;
  if (!scaled.sink || stored_type(*scaled.sink) != dtype) return false;
  if (program_.operands[at(scaled.sink->operand)].accumulate) return false;
  scaled.nodes.push_back(ref.index);
  const Node* product = computed(*scaled.sink, scaled.nodes);
  if (!product || product->op != Op::mul) return false;
  scaled.x = product->args[0], scaled.scale = product->args[1];
  if (is_uniform(scaled.x)) std::swap(scaled.x, scaled.scale);
  return is_tile(scaled.x) && is_uniform(scaled.scale);
}

/// gate * sigmoid(gate) * up, both factors scaled alike and stored, or pairs of one such.
bool Chains::find_gated(const Sink& sink) {
  const DType dtype = stored_type(sink);
  StoredChain found;
  found.sink = &sink;
  found.gated = kernels().gated[index_of(dtype)];
  std::vector<i32> nodes;
  const Node* product = found.gated ? computed(sink, nodes) : nullptr;
  if (!product || product->op != Op::mul) return false;
  Gate gate;
  Ref up;
  for (std::size_t i = 0; i < 2 && gate.sigmoid < 0; ++i) {
    Gate inner;
    if (!only_use(product->args[i], Op::mul) || !find_gate(node(product->args[i]), inner)) continue;
    gate = inner;
    up = product->args[1 - i];
    nodes.push_back(product->args[i].index);
  }
  if (gate.sigmoid < 0 || gate.a != gate.b || !is_tile(gate.a) || !is_tile(up)) return false;
  nodes.push_back(gate.sigmoid);
  Scaled first, second;
  const Node& low = node(gate.a);
  const Node& high = node(up);
  const auto interleaved = [](const Node& n, Op op) {
    return n.op == op && n.attrs.layout == PairLayout::interleaved;
  };
  if (interleaved(low, Op::first_of_pair) && interleaved(high, Op::second_of_pair)) {
    if (low.args != high.args || uses_[at(gate.a.index)] != 2 || uses_[at(up.index)] != 1)
      return false;
    if (!find_scaled(low.args[0], 2, dtype, first)) return false;
    nodes.insert(nodes.end(), {gate.a.index, up.index});
    found.interleaved = true;
    second = first;
  } else {
    if (gate.a == up || !find_scaled(gate.a, 2, dtype, first)) return false;
    if (!find_scaled(up, 1, dtype, second) || first.scale != second.scale) return false;
    absorb(second.nodes);
  }
  absorb(nodes);
  absorb(first.nodes);
  found.a = first.x, found.b = second.x, found.scale = first.scale;
  found.gate = first.sink, found.up = second.sink;
  ends_[at(sink.node)] = found;
  return true;
}

void Chains::find_chain(const Sink& sink) {
  std::vector<i32> nodes;
  const Node* n = computed(sink, nodes);
  if (!n || (n->op != Op::add && n->op != Op::sub && n->op != Op::mul)) return;
  StoredChain found;
  found.sink = &sink;
  const auto take = [&](Chain chain) {
    found.kernel = kernels().chain[index_of(stored_type(sink))][static_cast<std::size_t>(chain)];
  };
  Gate gate;
  if (find_gate(*n, gate)) {
    found.a = gate.a, found.b = gate.b;
    nodes.push_back(gate.sigmoid);
    take(Chain::mul_sigmoid);
  }
  for (std::size_t i = 0; n->op == Op::mul && !found.kernel && i < 2; ++i) {
    const Ref& inner = n->args[i];
    const Ref& other = n->args[1 - i];
    if (!only_use(inner, Op::mul) || is_uniform(other) || !find_gate(node(inner), gate)) continue;
    found.a = gate.a, found.b = gate.b, found.c = other;
    nodes.insert(nodes.end(), {gate.sigmoid, inner.index});
    take(Chain::mul_mul_sigmoid);
  }
  if (!found.kernel) {
    found.a = n->args[0], found.b = n->args[1];
    if (is_uniform(found.a) && n->op != Op::sub) std::swap(found.a, found.b);
    if (is_uniform(found.a)) return;
    take(n->op == Op::add ? Chain::add : n->op == Op::sub ? Chain::sub : Chain::mul);
  }
  if (!found.kernel) return;
  absorb(nodes);
  ends_[at(sink.node)] = found;
}

void Chains::absorb(std::span<const i32> nodes) {
  for (const i32 index : nodes) absorbed_[at(index)] = true;
}

}  // namespace coda::cpu
