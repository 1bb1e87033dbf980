#include "graph/infer.h"

#include <algorithm>

#include "base/check.h"
#include "ops/op_table.h"
#include "ops/opaque.h"

namespace coda {
namespace {

bool is_integer(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

Type tile_of(std::int64_t cols) { return {Kind::tile, kTokens, cols, DType::f32}; }
Type weight_of(std::int64_t rows, std::int64_t cols) {
  return {Kind::weight, rows, cols, DType::f32};
}
Type col_type() { return {Kind::col, kTokens, 1, DType::f32}; }
Type row_of_width(std::int64_t cols) { return {Kind::row, 1, cols, DType::f32}; }
Type scalar_type() { return {Kind::scalar, 1, 1, DType::f32}; }

/// One call of infer_type: the operands, and errors that show them.
class Inference {
 public:
  Inference(const Graph& graph, Op op, const std::vector<NodeId>& in) : op_(op) {
    for (NodeId id : in) {
      const Node& node = graph.node(id);
      types_.push_back(node.type);
      nodes_.push_back(&node);
    }
  }

  Type run(const Graph& graph, Attrs& attrs);

 private:
  [[noreturn]] void fail(std::string_view expected, std::string_view fix) const {
    std::string got;
    for (const Type& type : types_) {
      if (!got.empty()) got += ", ";
      got += to_string(type);
    }
    throw_error<UsageError>("{}: expected {}, got {}. {}", name_of(op_), expected,
                            got.empty() ? "nothing" : got, fix);
  }

  void need(bool holds, std::string_view expected, std::string_view fix) const {
    if (!holds) fail(expected, fix);
  }

  void need_kind(std::size_t i, Kind kind) const {
    need(types_[i].kind == kind, fmt::format("a {} as operand {}", name_of(kind), i + 1),
         "Kinds are fixed when an input is made (tile, weight, row, col, scalar).");
  }

  void need_float(std::size_t i) const {
    need(types_[i].kind != Kind::list && !is_integer(types_[i].dtype),
         fmt::format("floating-point numbers as operand {}", i + 1),
         "Integers (targets, positions, ids) feed only pick, onehot, valid, rotate and opaque "
         "nodes.");
  }

  void need_integer_col(std::size_t i) const {
    need(types_[i].kind == Kind::col && is_integer(types_[i].dtype),
         fmt::format("an i32 or i64 col [M] as operand {}", i + 1),
         "Make it with col(name, DType::i32).");
  }

  Type elementwise(Attrs& attrs);
  Type broadcast(Attrs& attrs);
  Type pairs(Attrs& attrs);
  Type rotation(Attrs& attrs);
  Type slice(Attrs& attrs, Kind other);
  Type concatenation() const;
  Type segment(Attrs& attrs);
  Type reduction() const;
  Type target(Attrs& attrs);
  Type matmul(Attrs& attrs);
  Type opaque(Attrs& attrs);

  Op op_;
  std::vector<Type> types_;
  std::vector<const Node*> nodes_;
};

Type Inference::elementwise(Attrs& attrs) {
  Attrs kept;
  for (std::size_t i = 0; i < types_.size(); ++i) need_float(i);
  if (op_ == Op::cast) {
    need(is_float(attrs.dtype), "a floating-point dtype", "Cast to f32, bf16 or f16.");
    kept.dtype = attrs.dtype;
  }
  attrs = kept;
  Type result = types_[0];
  for (const Type& type : types_) {
    if (same_shape(result, type) || type.kind == Kind::scalar) continue;
    const auto widens = [](const Type& large, const Type& small) {
      if (small.kind == Kind::scalar) return true;
      if (small.kind == Kind::col) return large.kind == Kind::tile;
      return small.kind == Kind::row && small.cols == large.cols &&
             (large.kind == Kind::tile || large.kind == Kind::weight);
    };
    if (widens(result, type)) continue;
    need(widens(type, result),
         "equal shapes, or a tile with a col or row, a weight with a row, anything with a scalar",
         "A col has one number a row, a row vector as many numbers as columns; for the outer "
         "product of a col and a row, broadcast one of them to a tile first.");
    result = type;
  }
  result.dtype = op_ == Op::cast ? attrs.dtype : DType::f32;
  return result;
}

Type Inference::broadcast(Attrs& attrs) {
  need_float(0);
  const auto made = static_cast<Kind>(attrs.index);
  Attrs kept;
  kept.index = attrs.index;
  if (made != Kind::col) kept.hi = attrs.hi;
  if (made == Kind::weight) kept.lo = attrs.lo;
  attrs = kept;
  const Type& from = types_[0];
  const bool from_scalar = from.kind == Kind::scalar;
  const bool from_row = from.kind == Kind::row && from.cols == attrs.hi;
  const std::string_view fix = "A row vector keeps its width; attrs.index is the kind made.";
  const std::string_view expected =
      "a col, row or scalar for a tile, a row or scalar for a weight, a scalar for a col or row";
  switch (made) {
    case Kind::tile:
      need((from_scalar || from_row || from.kind == Kind::col) && attrs.hi >= 0, expected, fix);
      return tile_of(attrs.hi);
    case Kind::weight:
      need((from_scalar || from_row) && attrs.hi >= 0 && attrs.lo >= 0, expected, fix);
      return weight_of(attrs.lo, attrs.hi);
    case Kind::col:
      need(from_scalar, expected, fix);
      return col_type();
    case Kind::row:
      need(from_scalar && attrs.hi >= 0, expected, fix);
      return row_of_width(attrs.hi);
    default:
      fail(expected, fix);
  }
}

Type Inference::pairs(Attrs& attrs) {
  for (std::size_t i = 0; i < types_.size(); ++i) {
    need_kind(i, Kind::tile);
    need_float(i);
  }
  if (op_ == Op::join) need(same_shape(types_[0], types_[1]), "two tiles of one width", "");
  Attrs kept;
  kept.layout = attrs.layout;
  const std::int64_t width = types_[0].cols * (op_ == Op::join ? 2 : 1);
  const bool interleaved = attrs.layout == PairLayout::interleaved;
  kept.period = interleaved ? 2 : (attrs.period == 0 ? width : attrs.period);
  need(
      kept.period >= 0 && kept.period % 2 == 0 &&
          (kept.period == 0 ? width == 0 : width % kept.period == 0),
      fmt::format("a width that is a multiple of the even period {}", kept.period),
      "Pairs lie within groups of `period` columns (interleaved: 2; halves: the whole width unless "
      "given).");
  attrs = kept;
  return tile_of(op_ == Op::join ? width : width / 2);
}

Type Inference::rotation(Attrs& attrs) {
  need_kind(0, Kind::tile);
  need_float(0);
  need_integer_col(1);
  need_kind(2, Kind::row);
  need_float(2);
  Attrs kept;
  kept.layout = attrs.layout;
  kept.period = types_[2].cols;
  const bool explicit_halves = attrs.layout == PairLayout::halves && attrs.period != 0;
  need(!explicit_halves || attrs.period == kept.period,
       fmt::format("frequencies [{}], one (high, low) pair for each pair of columns", attrs.period),
       "freq has P = head dimension entries: P/2 high parts, then P/2 low parts.");
  need(kept.period > 0 && kept.period % 2 == 0 && types_[0].cols % kept.period == 0,
       "a tile whose width is a multiple of the width of freq (the head dimension, even)",
       "Give one tile of n_heads * head_dim columns and freq of head_dim entries.");
  attrs = kept;
  return types_[0];
}

/// cols of a tile or row vector, rows of a weight.
Type Inference::slice(Attrs& attrs, Kind other) {
  Attrs kept;
  kept.lo = attrs.lo;
  kept.hi = attrs.hi;
  attrs = kept;
  need_float(0);
  const bool rows = op_ == Op::rows;
  need(types_[0].kind == other || (!rows && types_[0].kind == Kind::row),
       rows ? "a weight" : "a tile or row vector", "");
  const std::int64_t extent = rows ? types_[0].rows : types_[0].cols;
  need(0 <= attrs.lo && attrs.lo <= attrs.hi && attrs.hi <= extent,
       fmt::format("a range within [0, {}], not [{}, {})", extent, attrs.lo, attrs.hi),
       "lo is the first, hi one past the last.");
  Type result = types_[0];
  result.dtype = DType::f32;
  (rows ? result.rows : result.cols) = attrs.hi - attrs.lo;
  return result;
}

Type Inference::concatenation() const {
  need(!types_.empty(), "at least one part", "");
  const bool rows = op_ == Op::cat_rows;
  Type result = types_[0];
  result.dtype = DType::f32;
  need(rows ? result.kind == Kind::weight : result.kind == Kind::tile || result.kind == Kind::row,
       rows ? "weights" : "tiles, or row vectors", "");
  std::int64_t extent = 0;
  for (std::size_t i = 0; i < types_.size(); ++i) {
    need_float(i);
    need(types_[i].kind == result.kind && (!rows || types_[i].cols == result.cols),
         rows ? "weights of one width" : "parts of one kind", "");
    extent += rows ? types_[i].rows : types_[i].cols;
  }
  (rows ? result.rows : result.cols) = extent;
  return result;
}

Type Inference::segment(Attrs& attrs) {
  Attrs kept;
  need_float(0);
  if (op_ == Op::repeat || op_ == Op::fold) {
    need_kind(0, Kind::row);
    kept.hi = attrs.hi;
    attrs = kept;
    need(attrs.hi > 0, "a positive number of times", "");
    if (op_ == Op::repeat) return row_of_width(types_[0].cols * attrs.hi);
    need(types_[0].cols % attrs.hi == 0, fmt::format("a width that {} divides", attrs.hi), "");
    return row_of_width(types_[0].cols / attrs.hi);
  }
  need_kind(0, Kind::tile);
  kept.period = attrs.period;
  attrs = kept;
  need(attrs.period > 0, "a positive period", "");
  if (op_ == Op::segment_broadcast) return tile_of(types_[0].cols * attrs.period);
  need(types_[0].cols % attrs.period == 0,
       fmt::format("a width that is a multiple of the period {}", attrs.period), "");
  return tile_of(types_[0].cols / attrs.period);
}

Type Inference::reduction() const {
  need_float(0);
  const Type& from = types_[0];
  if (op_ == Op::sum) {
    need(from.kind == Kind::col || from.kind == Kind::row, "a col or row",
         "Sum a tile with row_sum or col_sum first.");
    return scalar_type();
  }
  if (op_ == Op::col_sum) {
    need(from.kind == Kind::tile || from.kind == Kind::weight, "a tile or weight", "");
    return row_of_width(from.cols);
  }
  need_kind(0, Kind::tile);
  return col_type();
}

Type Inference::target(Attrs& attrs) {
  Attrs kept;
  kept.ignore_index = attrs.ignore_index;
  need_integer_col(types_.size() - 1);
  if (op_ == Op::pick) {
    need_kind(0, Kind::tile);
    need_float(0);
    kept.hi = types_[0].cols;
  } else if (op_ == Op::onehot) {
    kept.hi = attrs.hi;
    need(kept.hi >= 0, "a number of classes in attrs.hi", "");
  }
  attrs = kept;
  need(attrs.ignore_index < 0 || op_ == Op::valid || attrs.ignore_index >= attrs.hi,
       fmt::format("an ignore_index outside [0, {}), not {}", attrs.hi, attrs.ignore_index),
       "It must not be a class; -100 is usual.");
  return op_ == Op::onehot ? tile_of(attrs.hi) : col_type();
}

Type Inference::matmul(Attrs& attrs) {
  Attrs kept;
  kept.transpose_a = attrs.transpose_a;
  kept.transpose_b = attrs.transpose_b;
  attrs = kept;
  need_float(0);
  need_float(1);
  const Type& a = types_[0];
  const Type& b = types_[1];
  if (attrs.transpose_a) {
    need(!attrs.transpose_b && a.kind == Kind::tile && b.kind == Kind::tile,
         "tn: tile [M, n] and tile [M, k]", "");
    return weight_of(a.cols, b.cols);
  }
  need(
      a.kind == Kind::tile && b.kind == Kind::weight &&
          a.cols == (attrs.transpose_b ? b.cols : b.rows),
      attrs.transpose_b ? "nt: tile [M, k] and weight [n, k]" : "nn: tile [M, n] and weight [n, k]",
      "The inner extents must be equal; weights are stored [out features, in features].");
  return tile_of(attrs.transpose_b ? b.rows : b.cols);
}

Type Inference::opaque(Attrs& attrs) {
  need(attrs.opaque != Opaque::none, "a row of the registry in attrs.opaque", "");
  const OpaqueRow& row = row_of(attrs.opaque);
  need(types_.size() == row.inputs.size(),
       fmt::format("{} operands of {}", row.inputs.size(), row.name), "");
  Attrs kept;
  kept.opaque = attrs.opaque;
  const bool cached = attrs.opaque == Opaque::cached_attention;
  const bool attention =
      attrs.opaque == Opaque::attention || attrs.opaque == Opaque::attention_backward;
  if (attention || cached) {
    kept.value = attrs.value;
    kept.softcap = attrs.softcap;
    kept.lo = attrs.lo;
    kept.period = attrs.period;
    kept.index = attrs.index;
    kept.index2 = attrs.index2;
    need(kept.index > 0 && kept.index2 > 0 && kept.period > 0 && kept.index % kept.index2 == 0,
         fmt::format("head counts with n_kv_heads dividing n_heads, not {} and {} of {}",
                     kept.index, kept.index2, kept.period),
         "");
    for (std::size_t i = 0; i < 3; ++i) {
      need_float(i);
      const std::int64_t width = kept.period * (i == 0 ? kept.index : kept.index2);
      need(types_[i].kind == Kind::tile && types_[i].cols == width,
           fmt::format("{}: {} as {}", row.name, to_string(tile_of(width)), row.inputs[i]), "");
    }
    for (std::size_t i = 3; i < types_.size(); ++i) {
      if (row.inputs[i] != "cu_seqlens" && row.inputs[i] != "past") continue;
      need(types_[i].kind == Kind::list, fmt::format("{}: a list as {}", row.name, row.inputs[i]),
           "");
    }
    if (cached) {
      kept.hi = attrs.hi;
      const std::int64_t block = kept.index2 * std::max<std::int64_t>(kept.hi, 1);
      for (const std::size_t i : {std::size_t{3}, std::size_t{4}}) {
        const Type& cache = types_[i];
        need(kept.hi > 0 && cache.kind == Kind::weight && nodes_[i]->op == Op::input &&
                 cache.cols == kept.period && cache.rows > 0 && cache.rows % block == 0 &&
                 cache.rows == types_[3].rows,
             fmt::format("{}: an input weight [sequences * {} heads * {} rows, {}] as {}", row.name,
                         kept.index2, kept.hi, kept.period, row.inputs[i]),
             "A cache has one block of rows for each sequence and key-value head.");
      }
    }
    attrs = kept;
    return tile_of(kept.period * kept.index);
  }
  const std::size_t ids = attrs.opaque == Opaque::embedding ? 1 : 0;
  const std::size_t data = 1 - ids;
  need_integer_col(ids);
  need_kind(data, ids == 1 ? Kind::weight : Kind::tile);
  need_float(data);
  kept.index2 = ids == 1 ? static_cast<std::int32_t>(types_[data].rows) : attrs.index2;
  attrs = kept;
  return ids == 1 ? tile_of(types_[data].cols) : weight_of(attrs.index2, types_[data].cols);
}

Type Inference::run(const Graph& graph, Attrs& attrs) {
  const OpRow& row = row_of(op_);
  need(row.arity < 0 || types_.size() == static_cast<std::size_t>(row.arity),
       fmt::format("{} operands", row.arity), "");
  switch (row.op_class) {
    case OpClass::elementwise:
      return op_ == Op::broadcast ? broadcast(attrs) : elementwise(attrs);
    case OpClass::pairs:
      return row.arity == 3 ? rotation(attrs) : pairs(attrs);
    case OpClass::addressing:
      if (op_ == Op::cols) return slice(attrs, Kind::tile);
      if (op_ == Op::rows) return slice(attrs, Kind::weight);
      attrs = {};
      return concatenation();
    case OpClass::segment:
      return segment(attrs);
    case OpClass::reduction:
      attrs = {};
      return reduction();
    case OpClass::target:
      return target(attrs);
    case OpClass::matmul:
      return matmul(attrs);
    case OpClass::opaque: {
      if (op_ == Op::opaque) return opaque(attrs);
      Attrs kept;
      kept.index = attrs.index;
      attrs = kept;
      need(nodes_[0]->op == Op::opaque, "an opaque node", "");
      return opaque_result(graph, *nodes_[0], attrs.index);
    }
    case OpClass::leaf:
    case OpClass::memory:
      break;
  }
  fail("an op of graphs",
       "Inputs and constants have functions of their own; loads and stores exist "
       "in Programs only.");
}

}  // namespace

Type infer_type(const Graph& graph, Op op, const std::vector<NodeId>& in, Attrs& attrs) {
  // Operands have extents of at most kMostExtent, so that products below do not overflow with
  // these.
  if (attrs.lo > kMostExtent || attrs.hi > kMostExtent || attrs.period > kMostExtent) {
    throw_error<UsageError>("{}: expected extents of at most {}, got {}. Give smaller ones.",
                            name_of(op), kMostExtent, std::max({attrs.lo, attrs.hi, attrs.period}));
  }
  const Type type = Inference(graph, op, in).run(graph, attrs);
  if (type.rows > kMostExtent || type.cols > kMostExtent) {
    throw_error<UsageError>(
        "{}: expected a result of at most {} rows or columns, got {}. Give "
        "smaller operands.",
        name_of(op), kMostExtent, std::max(type.rows, type.cols));
  }
  return type;
}

Type opaque_result(const Graph& graph, const Node& node, int index) {
  const OpaqueRow& row = row_of(node.attrs.opaque);
  if (index < 0 || static_cast<std::size_t>(index) >= row.outputs.size()) {
    throw_error<UsageError>("proj: {} has {} results, got index {}", row.name, row.outputs.size(),
                            index);
  }
  switch (node.attrs.opaque) {
    case Opaque::attention:
      return index == 0 ? node.type : tile_of(node.attrs.index);
    case Opaque::attention_backward: {
      Type type = graph.node(node.in[static_cast<std::size_t>(index)]).type;  // d_q is like q
      type.dtype = DType::f32;
      return type;
    }
    case Opaque::embedding:
    case Opaque::embedding_backward:
    case Opaque::cached_attention:
    case Opaque::none:
      break;
  }
  return node.type;
}

}  // namespace coda
