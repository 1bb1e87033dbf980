#include "ir/lower.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "ops/op_table.h"

namespace coda::lowering {
namespace {

using i64 = std::int64_t;
using i32 = std::int32_t;

/// Columns [lo, hi) of a value are the columns of a node.
struct Piece {
  i64 lo = 0, hi = 0;
  i32 node = -1;
};
using Pieces = std::vector<Piece>;

/// Thrown when a slice cuts through a pair, segment or granule: lower the program whole.
struct CutsThrough {};

i64 width_of(const Value& value) { return value.cols.num; }

bool whole_width(const Attrs& attrs, i64 width) {
  return attrs.layout == PairLayout::halves && (attrs.period == 0 || attrs.period == width);
}

/// Period of pairs in columns of the wide side.
i64 pair_period(const Attrs& attrs, i64 width) {
  if (attrs.layout == PairLayout::interleaved) return 2;
  return attrs.period == 0 ? width : attrs.period;
}

class Lowering {
 public:
  Lowering(const Program& program, bool whole) : program_(program) { out_.whole = whole; }

  Lowered run() {
    // Expanding finds where leaves are cut; leaves used whole elsewhere must be cut there too.
    for (std::size_t known = ~std::size_t{0}; known != count_cuts();) {
      known = count_cuts();
      out_.nodes.clear();
      out_.value_of.clear();
      pieces_.assign(program_.values.size(), {});
      done_.assign(program_.values.size(), false);
      sinks_.clear();
      collect_sinks();
    }
    make_sections();
    return std::move(out_);
  }

 private:
  // --- nodes ---
  i32 intern(Node node) {
    const auto found = std::find(out_.nodes.begin(), out_.nodes.end(), node);
    if (found != out_.nodes.end()) return static_cast<i32>(found - out_.nodes.begin());
    out_.nodes.push_back(std::move(node));
    out_.value_of.push_back(-1);
    return static_cast<i32>(out_.nodes.size() - 1);
  }

  const Node& node(i32 index) const { return out_.nodes[static_cast<std::size_t>(index)]; }
  const Value& value(i32 index) const { return program_.values[static_cast<std::size_t>(index)]; }

  /// The leaf that a node reads, as a key of cuts_: acc, or the operand loaded, or broadcast.
  static i64 leaf_key(const Node& leaf) {
    return leaf.op == Op::load_tile ? leaf.operand : leaf.op == Op::acc ? -1 : -2;
  }

  std::size_t count_cuts() const {
    std::size_t count = 0;
    for (const auto& [key, cuts] : cuts_) count += cuts.size();
    return count;
  }

  /// Columns [lo, hi) of a node that is `width` wide.
  i32 slice(i32 index, i64 lo, i64 hi) {
    if (lo == 0 && hi == node(index).width) return index;
    Node part = node(index);
    if (out_.whole) {
      Node copy;
      copy.op = Op::cols;
      copy.attrs.lo = lo;
      copy.attrs.hi = hi;
      copy.args = {Ref{Ref::Kind::tile, index, 0}};
      copy.width = hi - lo;
      copy.rows = part.rows;
      return intern(copy);
    }
    i64 arg_lo = lo, arg_hi = hi;
    const auto aligned = [&](i64 period) {
      if (lo % period != 0 || hi % period != 0) throw CutsThrough{};
    };
    switch (part.op) {
      case Op::acc:
      case Op::load_tile:
        cuts_[leaf_key(part)].insert(part.col + lo);
        cuts_[leaf_key(part)].insert(part.col + hi);
        [[fallthrough]];
      case Op::onehot:
        part.col += lo;
        break;
      case Op::first_of_pair:
      case Op::second_of_pair:
        aligned(pair_period(part.attrs, 2 * part.width) / 2);
        arg_lo = 2 * lo, arg_hi = 2 * hi;
        break;
      case Op::join:
        aligned(pair_period(part.attrs, part.width));
        arg_lo = lo / 2, arg_hi = hi / 2;
        break;
      case Op::rotate:
      case Op::unrotate:
        aligned(part.attrs.period);
        break;
      case Op::segment_sum:
        arg_lo = lo * part.attrs.period, arg_hi = hi * part.attrs.period;
        break;
      case Op::segment_broadcast:
        aligned(part.attrs.period);
        arg_lo = lo / part.attrs.period, arg_hi = hi / part.attrs.period;
        break;
      default:
        break;
    }
    part.width = hi - lo;
    for (std::size_t i = 0; i < part.args.size(); ++i) {
      Ref& arg = part.args[i];
      if (arg.kind == Ref::Kind::tile) arg.index = slice(arg.index, arg_lo, arg_hi);
      if (arg.kind == Ref::Kind::row && !(is_rotation(part.op) && i == 2)) arg.offset += lo;
    }
    return intern(part);
  }

  static bool is_rotation(Op op) { return op == Op::rotate || op == Op::unrotate; }

  /// Rows [lo, hi) of a node.
  i32 slice_rows(i32 index, i64 lo, i64 hi) {
    Node part = node(index);
    part.rows = hi - lo;
    if (part.op == Op::acc || part.op == Op::load_tile) part.row += lo;
    for (Ref& arg : part.args) {
      if (arg.kind == Ref::Kind::tile) arg.index = slice_rows(arg.index, lo, hi);
      if (arg.kind == Ref::Kind::col) arg.offset += lo;
    }
    return intern(part);
  }

  // --- pieces of values ---
  const Pieces& pieces(i32 index) {
    const auto i = static_cast<std::size_t>(index);
    if (!done_[i]) {
      pieces_[i] = expand(index);
      done_[i] = true;
      for (const Piece& piece : pieces_[i]) {
        i32& first = out_.value_of[static_cast<std::size_t>(piece.node)];
        if (first < 0) first = index;
      }
    }
    return pieces_[i];
  }

  /// Cuts pieces further at the given columns, which then are boundaries.
  Pieces refine(const Pieces& given, const std::set<i64>& boundaries) {
    Pieces out;
    for (const Piece& piece : given) {
      i64 lo = piece.lo;
      auto next = boundaries.upper_bound(lo);
      while (lo < piece.hi) {
        const i64 hi = next == boundaries.end() ? piece.hi : std::min(*next++, piece.hi);
        out.push_back({lo, hi, slice(piece.node, lo - piece.lo, hi - piece.lo)});
        lo = hi;
      }
    }
    return out;
  }

  static void add_boundaries(std::set<i64>& set, const Pieces& pieces) {
    for (const Piece& piece : pieces) set.insert({piece.lo, piece.hi});
  }

  Pieces leaf(Node made) {
    std::set<i64> boundaries;
    if (!out_.whole)
      for (const i64 cut : cuts_[leaf_key(made)]) boundaries.insert(cut - made.col);
    const i64 width = made.width;
    return refine({{0, width, intern(std::move(made))}}, boundaries);
  }

  Ref vector_ref(i32 index) const {
    const Kind kind = value(index).kind;
    const auto ref = kind == Kind::col   ? Ref::Kind::col
                     : kind == Kind::row ? Ref::Kind::row
                                         : Ref::Kind::scalar;
    return {ref, index, 0};
  }

  static bool is_tile(const Value& v) { return v.kind == Kind::tile || v.kind == Kind::weight; }

  /// Applies an op interval by interval, its tile arguments cut alike, at multiples of `align`;
  /// the result is times / over as wide.
  Pieces map(const Value& v, i64 align, i64 times, i64 over) {
    std::set<i64> boundaries;
    for (const i32 arg : v.args)
      if (is_tile(value(arg))) add_boundaries(boundaries, pieces(arg));
    std::vector<Pieces> args;
    for (const i32 arg : v.args)
      args.push_back(is_tile(value(arg)) ? refine(pieces(arg), boundaries) : Pieces{});
    Pieces out;
    std::size_t n = 0;
    for (const Pieces& p : args) n = std::max(n, p.size());
    for (std::size_t k = 0; k < n; ++k) {
      Node made;
      made.op = v.op;
      made.attrs = v.attrs;
      Piece place;
      for (std::size_t i = 0; i < args.size(); ++i) {
        if (args[i].empty()) {
          made.args.push_back(vector_ref(v.args[i]));
          continue;
        }
        place = args[i][k];
        made.args.push_back({Ref::Kind::tile, place.node, 0});
        made.rows = std::max(made.rows, node(place.node).rows);
      }
      if (place.lo % align != 0 || place.hi % align != 0) throw CutsThrough{};
      for (Ref& arg : made.args)
        if (arg.kind == Ref::Kind::row && !is_rotation(v.op)) arg.offset = place.lo;
      const i64 lo = place.lo * times / over, hi = place.hi * times / over;
      made.width = hi - lo;
      out.push_back({lo, hi, intern(std::move(made))});
    }
    return out;
  }

  Pieces take(const Pieces& given, i64 lo, i64 hi) {
    Pieces out;
    for (const Piece& piece : refine(given, {lo, hi}))
      if (piece.lo >= lo && piece.hi <= hi && piece.lo < piece.hi)
        out.push_back({piece.lo - lo, piece.hi - lo, piece.node});
    return out;
  }

  /// One node again, for lowering whole.
  Pieces solid(const Pieces& parts) {
    if (!out_.whole || parts.size() == 1) return parts;
    Node made;
    made.op = Op::cat_cols;
    for (const Piece& piece : parts) {
      made.args.push_back({Ref::Kind::tile, piece.node, 0});
      made.width += piece.hi - piece.lo;
      made.rows = node(piece.node).rows;
    }
    const i64 width = made.width;
    return {{0, width, intern(std::move(made))}};
  }

  Pieces concatenate(const std::vector<Pieces>& parts) {
    Pieces out;
    i64 base = 0;
    for (const Pieces& part : parts) {
      for (const Piece& piece : part) out.push_back({base + piece.lo, base + piece.hi, piece.node});
      if (!part.empty()) base += part.back().hi;
    }
    return out;
  }

  Pieces expand(i32 index) {
    const Value& v = value(index);
    const i64 width = width_of(v);
    Node made;
    made.op = v.op;
    made.attrs = v.attrs;
    made.width = width;
    if (width == 0) return {};
    switch (v.op) {
      case Op::acc:
        return leaf(std::move(made));
      case Op::load_tile:
        made.operand = v.operand;
        return leaf(std::move(made));
      case Op::broadcast:
      case Op::onehot:
        made.args = {vector_ref(v.args[0])};
        return leaf(std::move(made));
      case Op::cols:
        return solid(take(pieces(v.args[0]), v.attrs.lo, v.attrs.hi));
      case Op::cat_cols: {
        std::vector<Pieces> parts;
        for (const i32 arg : v.args) parts.push_back(pieces(arg));
        return solid(concatenate(parts));
      }
      case Op::rows: {
        Pieces out = pieces(v.args[0]);
        for (Piece& piece : out) piece.node = slice_rows(piece.node, v.attrs.lo, v.attrs.hi);
        return out;
      }
      case Op::first_of_pair:
      case Op::second_of_pair: {
        const i64 half = v.op == Op::first_of_pair ? 0 : width;
        if (whole_width(v.attrs, 2 * width))
          return solid(take(pieces(v.args[0]), half, half + width));
        return map(v, pair_period(v.attrs, 2 * width), 1, 2);
      }
      case Op::join:
        if (whole_width(v.attrs, width))
          return solid(concatenate({pieces(v.args[0]), pieces(v.args[1])}));
        return map(v, pair_period(v.attrs, width) / 2, 2, 1);
      case Op::rotate:
      case Op::unrotate:
        return map_rotation(v);
      case Op::segment_sum:
        return map(v, v.attrs.period, 1, v.attrs.period);
      case Op::segment_broadcast:
        return map(v, 1, v.attrs.period, 1);
      default:
        return map(v, 1, 1, 1);
    }
  }

  /// The period of a rotation is the number of its frequencies.
  Pieces map_rotation(const Value& v) {
    Value rotation = v;
    rotation.attrs.period = width_of(value(v.args[2]));
    return map(rotation, rotation.attrs.period, 1, 1);
  }

  // --- sinks ---
  void collect_sinks() {
    for (std::size_t i = 0; i < program_.values.size(); ++i) {
      const Value& v = program_.values[i];
      if (v.op == Op::store_tile) add_store(v);
      if (v.op == Op::store_partial && is_tile_reduction(value(v.args[0]).op))
        add_reduction(v.args[0], v.operand);
      if (program_.form == Form::rows && is_tile_reduction(v.op) && v.op != Op::col_sum &&
          !v.partial)
        add_reduction(static_cast<i32>(i), -1);
    }
  }

  void add_store(const Value& v) {
    for (const Piece& piece : pieces(v.args[0])) {
      Sink sink;
      sink.node = piece.node;
      sink.operand = v.operand;
      sink.col = piece.lo;
      sinks_.push_back(sink);
    }
  }

  void add_reduction(i32 index, i32 operand) {
    const Value& v = value(index);
    for (const Piece& piece : pieces(v.args[0])) {
      Sink sink;
      sink.op = v.op;
      sink.node = piece.node;
      sink.operand = operand;
      sink.value = index;
      sink.col = piece.lo;
      if (v.op == Op::pick) sink.target = vector_ref(v.args[1]);
      sink.ignore_index = v.attrs.ignore_index;
      if (v.op != Op::col_sum && piece.lo % kColumnGranule != 0) throw CutsThrough{};
      sinks_.push_back(sink);
    }
  }

  // --- sections ---
  i32 find(std::vector<i32>& parent, i32 i) {
    while (parent[static_cast<std::size_t>(i)] != i) i = parent[static_cast<std::size_t>(i)];
    return i;
  }

  void make_sections() {
    const std::size_t n = out_.nodes.size();
    std::vector<bool> used(n, false);
    for (const Sink& sink : sinks_) used[static_cast<std::size_t>(sink.node)] = true;
    std::vector<i32> parent(n);
    std::iota(parent.begin(), parent.end(), 0);
    for (std::size_t i = n; i-- > 0;) {
      if (!used[i]) continue;
      for (const Ref& arg : out_.nodes[i].args) {
        if (arg.kind != Ref::Kind::tile) continue;
        used[static_cast<std::size_t>(arg.index)] = true;
        join_sets(parent, static_cast<i32>(i), arg.index);
      }
    }
    if (out_.whole)
      for (const Sink& sink : sinks_) join_sets(parent, sinks_[0].node, sink.node);
    std::map<i32, std::size_t> section_of;  // by root, in order of first node
    for (std::size_t i = 0; i < n; ++i) {
      if (!used[i]) continue;
      const i32 root = find(parent, static_cast<i32>(i));
      const auto [found, is_new] = section_of.try_emplace(root, out_.sections.size());
      if (is_new) out_.sections.emplace_back();
      LoweredSection& section = out_.sections[found->second];
      section.nodes.push_back(static_cast<i32>(i));
      section.width = std::max(section.width, out_.nodes[i].width);
      section.rows = std::max(section.rows, out_.nodes[i].rows);
    }
    for (const Sink& sink : sinks_)
      out_.sections[section_of.at(find(parent, sink.node))].sinks.push_back(sink);
    out_.scale.assign(n, 1);
    for (LoweredSection& section : out_.sections) measure(section);
  }

  void join_sets(std::vector<i32>& parent, i32 a, i32 b) {
    a = find(parent, a), b = find(parent, b);
    parent[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  }

  /// Scales of the nodes and the unit in which columns may be cut.
  void measure(LoweredSection& section) {
    if (out_.whole) {
      section.unit = section.width;
      return;
    }
    i64 unit = 1;
    for (const i32 index : section.nodes) {
      const Node& made = node(index);
      if (section.width % made.width != 0) throw CutsThrough{};
      const i64 scale = section.width / made.width;
      out_.scale[static_cast<std::size_t>(index)] = scale;
      i64 own = 1;  // in columns of the node
      if (made.op == Op::join) own = pair_period(made.attrs, made.width);
      if (made.op == Op::first_of_pair || made.op == Op::second_of_pair)
        own = pair_period(made.attrs, 2 * made.width) / 2;
      if (is_rotation(made.op) || made.op == Op::segment_broadcast) own = made.attrs.period;
      unit = std::lcm(unit, own * scale);
    }
    for (const Sink& sink : section.sinks)
      if (sink.op != Op::store_tile && sink.op != Op::col_sum)
        unit = std::lcm(unit, kColumnGranule * out_.scale[static_cast<std::size_t>(sink.node)]);
    section.unit = std::min(unit, section.width);
  }

  const Program& program_;
  Lowered out_;
  std::map<i64, std::set<i64>> cuts_;
  std::vector<Pieces> pieces_;
  std::vector<bool> done_;
  std::vector<Sink> sinks_;
};

}  // namespace

bool is_tile_reduction(Op op) {
  return op == Op::row_sum || op == Op::row_max || is_online(op) || op == Op::pick ||
         op == Op::col_sum;
}

Lowered lower(const Program& program) {
  try {
    return Lowering(program, false).run();
  } catch (const CutsThrough&) {
    return Lowering(program, true).run();
  }
}

}  // namespace coda::lowering
