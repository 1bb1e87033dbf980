// The text of a Graph.
#include <algorithm>
#include <set>

#include "base/check.h"
#include "coda/graph.h"
#include "graph/rewrite.h"
#include "ops/op_table.h"
#include "ops/opaque.h"

namespace coda {
namespace {

std::string shape_of(const Type& type) {
  const auto extent = [](std::int64_t n) { return n == kTokens ? "M" : std::to_string(n); };
  switch (type.kind) {
    case Kind::tile:
    case Kind::weight:
      return fmt::format("[{}, {}]", extent(type.rows), extent(type.cols));
    case Kind::col:
      return fmt::format("[{}]", extent(type.rows));
    case Kind::row:
      return fmt::format("[{}]", extent(type.cols));
    case Kind::scalar:
      return "[]";
    case Kind::list:
      return "[any]";
  }
  return "";
}

std::string pairs_text(const Attrs& attrs) {
  if (attrs.layout == PairLayout::interleaved) return "interleaved";
  return fmt::format("halves({})", attrs.period);
}

/// Attention with heads, key-value heads, head dimension, scale and, if cached, capacity; then
/// options that are set.
std::string opaque_text(const Attrs& a) {
  const std::string_view name = row_of(a.opaque).name;
  if (a.period == 0) return std::string(name);
  std::string text = fmt::format("{}({}, {}, {}, {}", name, a.index, a.index2, a.period, a.value);
  if (a.hi > 0) text += fmt::format(", {}", a.hi);
  if (a.lo > 0) text += fmt::format(", window {}", a.lo);
  if (a.softcap > 0) text += fmt::format(", softcap {}", a.softcap);
  return text + ")";
}

/// What stands between the op's name and its operands, and after them.
std::pair<std::string, std::string> attrs_text(const Node& node) {
  const Attrs& a = node.attrs;
  switch (node.op) {
    case Op::constant:
      return {fmt::format("{}", a.value), ""};
    case Op::cast:
      return {std::string(name_of(a.dtype)), ""};
    case Op::first_of_pair:
    case Op::second_of_pair:
    case Op::join:
      return {pairs_text(a), ""};
    case Op::rotate:
    case Op::unrotate:
      return {a.layout == PairLayout::interleaved ? fmt::format("interleaved({})", a.period)
                                                  : pairs_text(a),
              ""};
    case Op::cols:
    case Op::rows:
      return {"", fmt::format(", {}, {}", a.lo, a.hi)};
    case Op::segment_sum:
    case Op::segment_broadcast:
      return {std::to_string(a.period), ""};
    case Op::repeat:
    case Op::fold:
      return {std::to_string(a.hi), ""};
    case Op::pick:
    case Op::onehot:
    case Op::valid:
      return {a.ignore_index == -100 ? "" : fmt::format("ignore {}", a.ignore_index), ""};
    case Op::matmul:
      return {fmt::format("{}{}", a.transpose_a ? 't' : 'n', a.transpose_b ? 't' : 'n'), ""};
    case Op::opaque:
      return {opaque_text(a), ""};
    case Op::proj:
      return {"", fmt::format(", {}", a.index)};
    default:
      return {"", ""};
  }
}

class Printer {
 public:
  /// Nodes without a name are labelled by id, or by their place in the order.
  Printer(const Graph& graph, const std::vector<NodeId>& order, bool by_id) : graph_(graph) {
    labels_.resize(static_cast<std::size_t>(graph.size()));
    std::set<std::string> used;
    for (NodeId id : order) used.insert(graph.node(id).op == Op::input ? graph.node(id).name : "");
    int number = 0;
    for (NodeId id : order) {
      const Node& node = graph.node(id);
      std::string& label = labels_[static_cast<std::size_t>(id)];
      if (node.op == Op::input || (!node.name.empty() && used.insert(node.name).second)) {
        label = node.name;
      } else {
        label = std::to_string(by_id ? id : number++);
      }
    }
  }

  std::string label(NodeId id) const { return "%" + labels_[static_cast<std::size_t>(id)]; }

  std::string line(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.op == Op::input) {
      return fmt::format("{} = input : {}{}\n", label(id), name_of(node.type.dtype),
                         shape_of(node.type));
    }
    const auto [before, after] = attrs_text(node);
    std::string text = fmt::format("{} = {}", label(id), name_of(node.op));
    if (!before.empty()) text += " " + before;
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      text += (i == 0 ? " " : ", ") + label(node.in[i]);
    }
    return fmt::format("{}{} : {}\n", text, after, shape_of(node.type));
  }

 private:
  const Graph& graph_;
  std::vector<std::string> labels_;
};

}  // namespace

std::string to_string(const Type& type) {
  if (type.kind == Kind::scalar || type.kind == Kind::list) return std::string(name_of(type.kind));
  return fmt::format("{} {}", name_of(type.kind), shape_of(type));
}

std::string to_string(const Graph& graph) {
  std::vector<NodeId> order;
  for (NodeId id = 0; id < graph.size(); ++id) order.push_back(id);
  const Printer printer(graph, order, true);
  std::string text;
  for (NodeId id : order) text += printer.line(id);
  return text;
}

std::string to_string(const Graph& graph, const std::vector<Tensor>& roots) {
  std::vector<NodeId> ids;
  for (Tensor root : roots) {
    if (root && &root.graph() != &graph) {
      throw_error<UsageError>(
          "to_string: expected roots of the graph that is printed, got one of another Graph. Print "
          "the graph that it was made in.");
    }
    if (root) ids.push_back(root.id());
  }
  const std::vector<NodeId> order = needed_by(graph, ids);
  const Printer printer(graph, order, false);
  std::string text;
  for (NodeId id : order) text += printer.line(id);
  text += "roots";
  for (Tensor root : roots) text += root ? " " + printer.label(root.id()) : " none";
  return text + "\n";
}

}  // namespace coda
