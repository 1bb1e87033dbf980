// Reverse mode, driven by the derivative rules of the op table and by the registry of opaque nodes.
#include <map>

#include "base/check.h"
#include "coda/graph.h"
#include "graph/rebuild.h"
#include "graph/rule.h"
#include "ops/op_table.h"
#include "ops/opaque.h"

namespace coda {
namespace {

/// Sums x down to a smaller type that was broadcast, or broadcasts what a reduction summed.
Tensor fit(Tensor x, const Type& type) {
  const Type from = x.type();
  if (same_shape(from, type)) return x;
  const bool matrix = from.kind == Kind::tile || from.kind == Kind::weight;
  switch (type.kind) {
    case Kind::col:
      if (from.kind == Kind::tile) return row_sum(x);
      break;
    case Kind::row:
      if (matrix) return col_sum(x);
      break;
    case Kind::scalar:
      return sum(from.kind == Kind::tile ? row_sum(x) : matrix ? col_sum(x) : x);
    default:
      break;
  }
  return broadcast(x, type);
}

class ReverseMode {
 public:
  ReverseMode(Graph& graph, const std::vector<NodeId>& wrt)
      : graph_(graph), depends_(depends_on(graph, wrt)), cotangents_(depends_.size()) {}

  void seed(Tensor value, Tensor cotangent) { add(value.id(), cotangent); }

  void run() {
    for (auto id = static_cast<NodeId>(depends_.size()); id-- > 0;) {
      if (!depends_[static_cast<std::size_t>(id)]) continue;
      const Node node = graph_.node(id);  // a copy: making nodes moves the graph's
      if (node.op == Op::opaque) {
        through_opaque(id, node);
      } else if (const Tensor dy = cotangent(id)) {
        if (node.op == Op::proj) {
          projected_[node.in[0]].emplace(node.attrs.index, dy);
        } else {
          through(id, node, dy);
        }
      }
    }
  }

  Tensor cotangent(NodeId id) const { return cotangents_[static_cast<std::size_t>(id)]; }

 private:
  void add(NodeId id, Tensor contribution) {
    if (!contribution || !depends_[static_cast<std::size_t>(id)]) return;
    Tensor& total = cotangents_[static_cast<std::size_t>(id)];
    const Tensor fitted = fit(contribution, graph_.node(id).type);
    total = total ? total + fitted : fitted;
  }

  void through(NodeId id, const Node& node, Tensor dy) {
    const auto rules = derivative_of(node.op, node.attrs);
    const bool any_arity = row_of(node.op).arity < 0;
    std::vector<Tensor> contributions(node.in.size());
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      const std::string_view rule = any_arity ? rules[0] : i < rules.size() ? rules[i] : "";
      if (!depends_[static_cast<std::size_t>(node.in[i])]) continue;
      if (rule.empty()) {
        throw_error<UsageError>(
            "gradients: {}: operand {} ({}) has no derivative. Leave it out of wrt.",
            name_of(node.op), i + 1, label_of(graph_, node.in[i]));
      }
      const Tensor term = apply_rule(rule, {graph_, id, i, dy, graph_.at(id)});
      // One term for an operand that occurs twice: x * x gives dy * (2 x), not two sums.
      std::size_t first = 0;
      while (node.in[first] != node.in[i]) ++first;
      Tensor& sum = contributions[first];
      sum = sum ? sum + term : term;
    }
    for (std::size_t i = 0; i < node.in.size(); ++i) add(node.in[i], contributions[i]);
  }

  void through_opaque(NodeId id, const Node& node) {
    const auto it = projected_.find(id);
    if (it == projected_.end()) return;
    const OpaqueRow& row = row_of(node.attrs.opaque);
    if (row.backward == Opaque::none) {
      throw_error<UsageError>(
          "gradients: {}: expected an operation with a derivative, got one with none. Use another, "
          "such as attention for cached_attention.",
          row.name);
    }
    for (const auto& [index, dy] : it->second) {
      if (index == 0) continue;
      throw_error<UsageError>(
          "gradients: {}: result {} has no derivative. Differentiate {} only, or do not use {}.",
          row.name, row.outputs[static_cast<std::size_t>(index)], row.outputs[0],
          row.outputs[static_cast<std::size_t>(index)]);
    }
    Attrs attrs = node.attrs;
    std::vector<Tensor> operands;
    for (const OpaqueSource& source : row.backward_inputs) {
      switch (source.from) {
        case OpaqueSource::From::input:
          operands.push_back(graph_.at(node.in[static_cast<std::size_t>(source.index)]));
          break;
        case OpaqueSource::From::output:
          operands.push_back(projection(graph_.at(id), source.index));
          break;
        case OpaqueSource::From::cotangent:
          operands.push_back(it->second.at(source.index));
          break;
      }
    }
    attrs.opaque = row.backward;
    const Tensor backward = graph_.make(Op::opaque, operands, attrs);
    for (std::size_t i = 0; i < row.gradient_of.size(); ++i) {
      const NodeId in = node.in[static_cast<std::size_t>(row.gradient_of[i])];
      if (depends_[static_cast<std::size_t>(in)])
        add(in, projection(backward, static_cast<int>(i)));
    }
  }

  Tensor projection(Tensor opaque, int index) {
    Attrs attrs;
    attrs.index = index;
    return graph_.make(Op::proj, {opaque}, attrs);
  }

  Graph& graph_;
  const std::vector<bool> depends_;  // on wrt, for the nodes there were at the start
  std::vector<Tensor> cotangents_;
  std::map<NodeId, std::map<int, Tensor>> projected_;  // opaque node -> result -> cotangent
};

}  // namespace

std::vector<Tensor> gradients(const std::vector<Seed>& seeds, const std::vector<Tensor>& wrt) {
  std::vector<Tensor> result(wrt.size());
  if (seeds.empty() || wrt.empty()) return result;
  std::vector<NodeId> ids;
  for (Tensor t : wrt) {
    if (!t || &t.graph() != &wrt[0].graph()) {
      throw_error<UsageError>(
          "gradients: wrt: expected Tensors of one Graph, got {}. Make all of them in one.",
          t ? "those of two" : "an empty one");
    }
    if (!is_float(t.type().dtype) || t.type().kind == Kind::list) {
      throw_error<UsageError>("gradients: wrt: expected floating-point tensors, got {} {} {}",
                              name_of(t.type().dtype), to_string(t.type()),
                              label_of(t.graph(), t.id()));
    }
    ids.push_back(t.id());
  }
  Graph& graph = wrt[0].graph();
  ReverseMode reverse(graph, ids);
  for (const Seed& seed : seeds) {
    for (const Tensor& t : {seed.value, seed.cotangent}) {
      if (t && &t.graph() == &graph) continue;
      throw_error<UsageError>(
          "gradients: expected a value and its cotangent, both of the Graph of wrt, got {}. Make "
          "all of them in one.",
          t ? "one of another Graph" : "an empty Tensor");
    }
    if (!same_shape(seed.value.type(), seed.cotangent.type())) {
      throw_error<UsageError>("gradients: expected a cotangent like its value, {}, got {}",
                              to_string(seed.value.type()), to_string(seed.cotangent.type()));
    }
    reverse.seed(seed.value, seed.cotangent);
  }
  const AtomsBelow atoms(graph, graph.size());
  reverse.run();
  for (std::size_t i = 0; i < wrt.size(); ++i) result[i] = reverse.cotangent(ids[i]);
  return result;
}

}  // namespace coda
