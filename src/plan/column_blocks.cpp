#include "plan/column_blocks.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda {
namespace {

/// More blocks than this in one value mean that slices share no common width worth having.
constexpr std::size_t kMaxBlocks = 64;

/// How columns of a value map to columns of one operand: multiples of unit_v to multiples of
/// unit_u, then shifted; only columns [0, width of v) (cols) or [shift_v, ...) (cat_cols) map.
struct Link {
  NodeId u = kNoNode;
  std::int64_t unit_v = 1, unit_u = 1;
  std::int64_t shift_u = 0;  // cols: first column in u
  std::int64_t shift_v = 0;  // cat_cols: first column in v
};

std::int64_t period_of(const Node& node, std::int64_t width) {
  if (node.attrs.layout == PairLayout::interleaved && node.op != Op::rotate &&
      node.op != Op::unrotate)
    return 2;
  return node.attrs.period > 0 ? node.attrs.period : width;
}

std::vector<Link> links_of(const Graph& graph, const Node& node) {
  std::vector<Link> links;
  std::int64_t shift = 0;
  for (const NodeId u : node.in) {
    const Node& operand = graph.node(u);
    if (!is_tile(operand)) continue;
    Link link{.u = u};
    const std::int64_t width = operand.type.cols;
    switch (node.op) {
      case Op::cols:
        link.shift_u = node.attrs.lo;
        break;
      case Op::cat_cols:
        link.shift_v = shift;
        shift += width;
        break;
      case Op::first_of_pair:
      case Op::second_of_pair:
        link.unit_u = period_of(node, width);
        link.unit_v = link.unit_u / 2;
        break;
      case Op::join:
        link.unit_v = period_of(node, node.type.cols);
        link.unit_u = link.unit_v / 2;
        break;
      case Op::rotate:
      case Op::unrotate:
        link.unit_v = link.unit_u = period_of(node, width);
        break;
      case Op::segment_sum:
        link.unit_u = node.attrs.period;
        break;
      case Op::segment_broadcast:
        link.unit_v = node.attrs.period;
        break;
      default:
        break;
    }
    links.push_back(link);
  }
  return links;
}

class Analysis {
 public:
  Analysis(const Graph& graph, const Unit& unit) : graph_(graph), unit_(unit) {
    for (const NodeId v : unit.values) {
      const Node& node = graph.node(v);
      if (!is_tile(node)) continue;
      result_.cuts[v] = {0, node.type.cols};
      if (v != unit.node) links_[v] = links_of(graph, node);
    }
  }

  Blocks run() {
    while (result_.culprit == kNoNode && pass()) {
    }
    if (result_.culprit == kNoNode) reject_cut_wholes();
    if (result_.culprit == kNoNode && unit_.kind == UnitKind::gemm) check_sections();
    return std::move(result_);
  }

 private:
  bool computed(NodeId v) const { return result_.cuts.count(v) != 0; }

  bool add_cut(NodeId v, std::int64_t cut) {
    auto& cuts = result_.cuts[v];
    const auto at = std::lower_bound(cuts.begin(), cuts.end(), cut);
    if (at != cuts.end() && *at == cut) return false;
    if (cut < 0 || cut > cuts.back()) return false;
    cuts.insert(at, cut);
    if (cuts.size() > kMaxBlocks) result_.culprit = unit_.node != kNoNode ? unit_.node : v;
    return true;
  }

  /// Carries cuts from values to operands and back once; true if anything changed.
  bool pass() {
    bool changed = false;
    for (const auto& [v, links] : links_)
      for (const Link& link : links) {
        changed |= computed(link.u) ? carry(v, link) : fit_load(v, link);
        if (result_.culprit != kNoNode) return false;
      }
    return changed;
  }

  /// A loaded operand can be read from any column on, but parts of a cat_cols lie in different
  /// places, and pairs and segments stay whole.
  bool fit_load(NodeId v, const Link& link) {
    if (graph_.node(v).op == Op::cat_cols) {
      const bool first = add_cut(v, link.shift_v);
      return add_cut(v, link.shift_v + graph_.node(link.u).type.cols) || first;
    }
    for (const std::int64_t cut : result_.cuts[v])
      if (cut % link.unit_v != 0) result_.culprit = v;
    return false;
  }

  bool carry(NodeId v, const Link& link) {
    bool changed = false;
    const std::int64_t width_v = graph_.node(v).type.cols;
    const std::int64_t width_u = graph_.node(link.u).type.cols;
    const auto cuts_v = result_.cuts[v];
    for (const std::int64_t cut : cuts_v) {
      const std::int64_t c = cut - link.shift_v;
      if (c < 0 || c % link.unit_v != 0) {
        if (c >= 0) result_.culprit = v;
        continue;
      }
      const std::int64_t to = c / link.unit_v * link.unit_u + link.shift_u;
      if (to <= width_u) changed |= add_cut(link.u, to);
    }
    const auto cuts_u = result_.cuts[link.u];
    for (const std::int64_t cut : cuts_u) {
      const std::int64_t c = cut - link.shift_u;
      if (c < 0) continue;
      const std::int64_t to_unit = c / link.unit_u * link.unit_v + link.shift_v;
      if (to_unit > width_v) continue;
      if (c % link.unit_u != 0) {
        if (to_unit < width_v) result_.culprit = link.u;
        continue;
      }
      changed |= add_cut(v, to_unit);
    }
    return changed;
  }

  /// onehot, and what lse and pick reduce, must be whole rows.
  void reject_cut_wholes() {
    for (const NodeId v : unit_.values) {
      const Node& node = graph_.node(v);
      NodeId whole = kNoNode;
      if (node.op == Op::onehot) whole = v;
      if (is_online(node.op) || node.op == Op::pick) whole = node.in[0];
      if (whole != kNoNode && computed(whole) && result_.cuts[whole].size() > 2) {
        result_.culprit = whole;
        return;
      }
    }
  }

  // --- sections of a GEMM: union-find over (value, first column, last column) ---
  using Key = std::tuple<NodeId, std::int64_t, std::int64_t>;

  int element(const Key& key) {
    const auto [at, fresh] = elements_.emplace(key, static_cast<int>(parent_.size()));
    if (fresh) parent_.push_back(at->second);
    return at->second;
  }
  int find(int i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void unite(int a, int b) { parent_[find(a)] = find(b); }

  void check_sections() {
    for (const auto& [v, cuts] : result_.cuts)
      for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
        const int self = element({v, cuts[b], cuts[b + 1]});
        const auto found = links_.find(v);
        if (found == links_.end()) continue;
        for (const Link& link : found->second) {
          if (cuts[b] < link.shift_v) continue;
          const auto map = [&](std::int64_t c) {
            return (c - link.shift_v) / link.unit_v * link.unit_u + link.shift_u;
          };
          if (map(cuts[b + 1]) > graph_.node(link.u).type.cols) continue;
          unite(self, element({link.u, map(cuts[b]), map(cuts[b + 1])}));
        }
      }
    check_widths();
  }

  void check_widths() {
    std::map<int, std::int64_t> width;  // of the accumulator blocks of a section
    for (const auto& [key, index] : elements_) {
      if (std::get<0>(key) != unit_.node) continue;
      const std::int64_t w = std::get<2>(key) - std::get<1>(key);
      const auto [at, fresh] = width.emplace(find(index), w);
      if (!fresh && at->second != w) {
        result_.culprit = unit_.node;
        return;
      }
    }
    for (const auto& [key, index] : elements_)
      if (!width.count(find(index))) result_.linked = false;
  }

  const Graph& graph_;
  const Unit& unit_;
  Blocks result_;
  std::map<NodeId, std::vector<Link>> links_;
  std::map<Key, int> elements_;
  std::vector<int> parent_;
};

}  // namespace

Blocks blocks_of(const Graph& graph, const Unit& unit) { return Analysis(graph, unit).run(); }

}  // namespace coda
