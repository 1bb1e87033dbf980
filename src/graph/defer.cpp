// R1. nt(A, B), A = c * t for a col c that depends on a reduction made where t is made:
//
//   nt(c * t, B)  ->  c * nt(t, B)
//
// Then the program that makes t can emit both t and the partials of the reduction, and the
// product's epilogue applies c. A col that is available before t is made costs nothing in A and
// stays there.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "graph/rebuild.h"

namespace coda {
namespace {

struct ColFactor {
  NodeId id;
  bool inverse;  ///< a denominator
  auto operator<=>(const ColFactor&) const = default;
};

/// The product normal form of a tile: what is multiplied or divided by what.
struct Product {
  std::vector<ColFactor> cols;
  std::vector<NodeId> tiles;
};

void collect(const Graph& graph, NodeId id, bool inverse, Product& product) {
  const Node& node = graph.node(id);
  if (node.op == Op::cat_cols) {  // cols that every part has
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      Product part;
      collect(graph, node.in[i], inverse, part);
      product.tiles.insert(product.tiles.end(), part.tiles.begin(), part.tiles.end());
      std::sort(part.cols.begin(), part.cols.end());
      if (i == 0) {
        product.cols.insert(product.cols.end(), part.cols.begin(), part.cols.end());
      } else {
        std::erase_if(product.cols, [&](const ColFactor& c) {
          return !std::binary_search(part.cols.begin(), part.cols.end(), c);
        });
      }
    }
    return;
  }
  if (node.op != Op::mul && node.op != Op::div && node.op != Op::neg) {
    product.tiles.push_back(id);
    return;
  }
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const bool inverted = inverse != (node.op == Op::div && i == 1);
    const Kind kind = graph.node(node.in[i]).type.kind;
    if (kind == Kind::tile) collect(graph, node.in[i], inverted, product);
    if (kind == Kind::col) product.cols.push_back({node.in[i], inverted});
  }
}

/// t without one occurrence of the factor; null if it is not there.
Tensor without(Graph& graph, Tensor t, const ColFactor& factor, bool inverse) {
  const Node node = graph.node(t.id());
  const auto keep = [&](const std::vector<Tensor>& operands) {
    return graph.make(node.op, operands, node.attrs);
  };
  if (node.op == Op::cat_cols) {
    std::vector<Tensor> parts;
    for (NodeId in : node.in) {
      parts.push_back(without(graph, graph.at(in), factor, inverse));
      if (!parts.back()) return {};
    }
    return keep(parts);
  }
  if (node.op != Op::mul && node.op != Op::div && node.op != Op::neg) return {};
  std::vector<Tensor> operands;
  for (NodeId in : node.in) operands.push_back(graph.at(in));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool inverted = inverse != (node.op == Op::div && i == 1);
    if (node.in[i] == factor.id && inverted == factor.inverse) {
      const Tensor one = graph.constant(1);
      if (node.op == Op::div) return broadcast(i == 1 ? operands[0] : one / operands[1], node.type);
      return broadcast(operands[1 - i], node.type);
    }
    if (operands[i].type().kind != Kind::tile) continue;
    if (const Tensor rest = without(graph, operands[i], factor, inverted)) {
      operands[i] = rest;
      return keep(operands);
    }
  }
  return {};
}

bool is_home(const Node& node) {
  return node.op == Op::matmul || node.op == Op::opaque || node.op == Op::input;
}

/// The matmuls, opaque nodes and inputs of kind tile that are reached from the ids: through
/// tile operands only, or through all operands.
std::set<NodeId> reached(const Graph& graph, std::vector<NodeId> ids, bool tiles_only) {
  std::set<NodeId> homes, seen;
  while (!ids.empty()) {
    const NodeId id = ids.back();
    ids.pop_back();
    if (!seen.insert(id).second) continue;
    const Node& node = graph.node(id);
    const bool tile = node.type.kind == Kind::tile;
    if (tile && is_home(node)) {
      homes.insert(id);
    } else if (tile || !tiles_only) {
      ids.insert(ids.end(), node.in.begin(), node.in.end());
    }
  }
  return homes;
}

/// Where a tile is made: of what it is reached from, what comes last. An input is there from the
/// beginning, so it counts only if there is nothing else.
std::set<NodeId> homes_of(const Graph& graph, const std::vector<NodeId>& tiles) {
  const std::set<NodeId> all = reached(graph, tiles, true);
  std::set<NodeId> made;
  for (NodeId id : all) {
    if (graph.node(id).op != Op::input) made.insert(id);
  }
  if (made.empty()) return all;
  std::vector<NodeId> operands;
  for (NodeId id : made) {
    operands.insert(operands.end(), graph.node(id).in.begin(), graph.node(id).in.end());
  }
  const std::vector<bool> before = mask_of(graph, operands);
  std::set<NodeId> last;
  for (NodeId id : made) {
    if (!before[static_cast<std::size_t>(id)]) last.insert(id);
  }
  return last;
}

bool intersects(const std::set<NodeId>& a, const std::set<NodeId>& b) {
  return std::any_of(a.begin(), a.end(), [&](NodeId id) { return b.contains(id); });
}

Tensor defer_scales(Graph& graph, Tensor t, std::vector<std::string>& notes) {
  const Node node = graph.node(t.id());
  if (node.op != Op::matmul || !node.attrs.transpose_b) return t;
  Product product;
  collect(graph, node.in[0], false, product);
  if (product.cols.empty()) return t;
  const std::set<NodeId> homes = homes_of(graph, product.tiles);
  for (const ColFactor& factor : product.cols) {
    if (!intersects(homes, reached(graph, {factor.id}, false))) continue;
    const Tensor rest = without(graph, graph.at(node.in[0]), factor, false);
    notes.push_back(fmt::format("defer: {} past the product with {}", label_of(graph, factor.id),
                                label_of(graph, node.in[1])));
    const Tensor inner = defer_scales(graph, matmul_nt(rest, graph.at(node.in[1])), notes);
    const Tensor scale = graph.at(factor.id);
    return factor.inverse ? inner / scale : inner * scale;
  }
  return t;
}

}  // namespace

Rewritten defer(Graph& graph, std::span<const NodeId> roots) {
  const std::vector<NodeId> order = needed_by(graph, roots);
  Rewritten result;
  result.map.assign(static_cast<std::size_t>(graph.size()), kNoNode);
  for (NodeId id : order) {
    const Tensor t = rebuild(graph, id, result.map);
    const Tensor deferred = defer_scales(graph, t, result.notes);
    if (deferred.id() != t.id()) graph.named(deferred, graph.node(id).name);
    result.map[static_cast<std::size_t>(id)] = deferred.id();
  }
  return result;
}

}  // namespace coda
