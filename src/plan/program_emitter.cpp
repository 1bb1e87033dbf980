// One unit -> one Program: SSA values from the stores back, block by block of columns.
#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "ops/op_table.h"
#include "plan/column_blocks.h"
#include "plan/emit.h"

namespace coda {
namespace {

Finish finish_of(Op op) {
  if (op == Op::row_max) return Finish::max;
  if (op == Op::lse) return Finish::lse;
  if (op == Op::log_sum) return Finish::log_sum;
  return Finish::sum;
}

/// How a load makes the reduction `op` of partials that may have been stored for another one.
Finish finish_of(Op op, const Buffer& buffer) {
  if (op == Op::row_max && is_online(buffer.finish)) return Finish::lse_max;
  return finish_of(op);
}

Dim rows_dim(std::int64_t rows) { return rows == kTokens ? Dim::tokens() : Dim::number(rows); }

class Emitter {
 public:
  Emitter(PlanBuilder& plan, const Unit& unit)
      : plan_(plan), graph_(plan.graph()), unit_(unit), blocks_(blocks_of(graph_, unit)) {
    internal_check(blocks_.culprit == kNoNode, "emit: value {} cannot be cut into columns",
                   blocks_.culprit);
  }

  Step run(const std::string& phase) {
    program_.form = unit_.kind == UnitKind::gemm   ? Form::gemm
                    : unit_.kind == UnitKind::rows ? Form::rows
                                                   : Form::vectors;
    program_.rows = rows_dim(unit_.axis);
    program_.cols = Dim::number(1);
    if (unit_.kind == UnitKind::gemm) add_gemm();
    if (unit_.kind == UnitKind::rows) set_row_width();
    for (const NodeId r : unit_.reductions)
      if (stored_for(r) == r) add_reduction(r);
    for (const NodeId r : unit_.reductions)
      if (stored_for(r) != r) plan_.share_vector_buffers(r, stored_for(r));
    for (const UnitStore& store : unit_.stores) add_store(store);
    name_program(phase);
    Step step;
    step.note = unit_.note;
    step.slices = slices_;
    verify(program_);
    step.program = std::make_shared<const Program>(std::move(program_));
    return step;
  }

 private:
  bool is_load(NodeId v) const {
    return std::binary_search(unit_.loads.begin(), unit_.loads.end(), v);
  }
  std::int64_t width_of(NodeId v) const { return graph_.node(v).type.cols; }

  // --- operands ---

  std::int32_t add_operand(Operand operand, const Slice& slice) {
    std::string name = operand.name;
    for (int i = 2; !operand_names_.insert(name).second; ++i)
      name = fmt::format("{}_{}", operand.name, i);
    operand.name = name;
    program_.operands.push_back(std::move(operand));
    slices_.push_back(slice);
    return static_cast<std::int32_t>(program_.operands.size()) - 1;
  }

  /// Columns [lo, hi) of a tile or weight in memory; one operand however often it is read.
  std::int32_t tile_operand(NodeId v, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(v, lo, hi);
    const auto found = tile_operands_.find(key);
    if (found != tile_operands_.end()) return found->second;
    const Type& type = graph_.node(v).type;
    const Place place = plan_.locate(v);
    const Buffer& buffer = plan_.buffer(place.buffer);
    const bool whole = lo == 0 && hi == type.cols;
    const std::int32_t operand =
        add_operand({.name = whole ? plan_.name_of_node(v)
                                   : fmt::format("{}_{}", plan_.name_of_node(v), place.col + lo),
                     .kind = type.kind,
                     .dtype = buffer.dtype,
                     .rows = rows_dim(type.rows),
                     .cols = Dim::number(hi - lo)},
                    {place.buffer, place.row, place.col + lo, type.rows, hi - lo});
    return tile_operands_[key] = operand;
  }

  std::int32_t vector_operand(std::int32_t index) {
    const auto found = vector_operands_.find(index);
    if (found != vector_operands_.end()) return found->second;
    const Buffer& buffer = plan_.buffer(index);
    const std::int32_t operand = add_operand({.name = buffer.name,
                                              .kind = buffer.kind,
                                              .dtype = buffer.dtype,
                                              .rows = rows_dim(buffer.rows),
                                              .cols = Dim::number(buffer.cols),
                                              .partial = buffer.partial},
                                             {index, 0, 0, buffer.rows, buffer.cols});
    return vector_operands_[index] = operand;
  }

  /// `cols` columns of v at a place.
  std::int32_t output_operand(const Place& place, NodeId v, std::int64_t cols, bool accumulate) {
    const Buffer& buffer = plan_.buffer(place.buffer);
    const Type& type = graph_.node(v).type;
    std::string name = buffer.name;
    if (buffer.rows != type.rows) name += fmt::format("_row_{}", place.row);
    if (buffer.cols != cols) name += fmt::format("_{}", place.col);
    return add_operand({.name = name,
                        .kind = buffer.kind,
                        .dtype = buffer.dtype,
                        .rows = rows_dim(type.rows),
                        .cols = Dim::number(cols),
                        .output = true,
                        .partial = buffer.partial,
                        .accumulate = accumulate},
                       {place.buffer, place.row, place.col, type.rows, cols});
  }

  void add_gemm() {
    const Node& node = graph_.node(unit_.node);
    program_.gemm.transpose_a = node.attrs.transpose_a;
    program_.gemm.transpose_b = node.attrs.transpose_b;
    program_.cols = Dim::number(node.type.cols);
    const Type& a = graph_.node(node.in[0]).type;
    program_.gemm.k = node.attrs.transpose_a ? Dim::tokens() : Dim::number(a.cols);
    program_.gemm.a = tile_operand(node.in[0], 0, a.cols);
    add_blocks_of_b(node.in[1]);
  }

  void add_blocks_of_b(NodeId b) {
    const Node& node = graph_.node(b);
    if (node.op == Op::cat_rows) {
      for (const NodeId block : node.in) add_blocks_of_b(block);
      return;
    }
    program_.gemm.b.push_back(tile_operand(b, 0, node.type.cols));
  }

  void set_row_width() {
    std::int64_t width = 0;
    for (const NodeId v : unit_.loads) width = std::max(width, width_of(v));
    for (const NodeId v : unit_.values)
      if (is_tile(graph_.node(v))) width = std::max(width, width_of(v));
    program_.cols = Dim::number(width);
  }

  // --- values ---

  std::int32_t add_value(Value value) {
    if (!value.name.empty()) {
      std::string name = value.name;
      for (int i = 2; !value_names_.insert(name).second; ++i)
        name = fmt::format("{}_{}", value.name, i);
      value.name = name;
    }
    program_.values.push_back(std::move(value));
    return static_cast<std::int32_t>(program_.values.size()) - 1;
  }

  /// A name that says which block of v, if not the whole.
  std::string value_name(NodeId v, std::int64_t lo, std::int64_t hi) const {
    const std::string& name = graph_.node(v).name;
    if (name.empty() || (lo == 0 && hi == width_of(v))) return name;
    return fmt::format("{}_{}", name, lo);
  }

  /// Columns [lo, hi) of a tile as stored: rounded if it is materialised anywhere.
  std::int32_t tile(NodeId v, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(v, lo, hi);
    const auto found = tiles_.find(key);
    if (found != tiles_.end()) return found->second;
    std::int32_t value;
    if (is_load(v)) {
      value = add_value({.op = Op::load_tile,
                         .kind = Kind::tile,
                         .cols = Dim::number(hi - lo),
                         .operand = tile_operand(v, lo, hi),
                         .name = value_name(v, lo, hi)});
    } else {
      value = raw_tile(v, lo, hi);
      const DType rounding = plan_.rounding_of(v);
      if (rounding != DType::f32) value = rounded(value, rounding, value_name(v, lo, hi));
    }
    return tiles_[key] = value;
  }

  /// `value` after one rounding to dtype; a value rounded to it before stays.
  std::int32_t rounded(std::int32_t value, DType dtype, const std::string& name) {
    const Value from = program_.values[value];
    if (dtype == DType::f32 || (from.op == Op::cast && from.attrs.dtype == dtype)) return value;
    const auto found = casts_.find({value, dtype});
    if (found != casts_.end()) return found->second;
    Value cast{.op = Op::cast,
               .args = {value},
               .kind = from.kind,
               .cols = from.cols,
               .name = name.empty() ? name : fmt::format("{}_{}", name, name_of(dtype))};
    cast.attrs.dtype = dtype;
    return casts_[{value, dtype}] = add_value(std::move(cast));
  }

  std::int32_t raw_tile(NodeId v, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(v, lo, hi);
    const auto found = raw_.find(key);
    if (found != raw_.end()) return found->second;
    return raw_[key] = make_tile(v, lo, hi);
  }

  std::int32_t make_tile(NodeId v, std::int64_t lo, std::int64_t hi) {
    const Node& node = graph_.node(v);
    if (node.op == Op::matmul) return accumulator(v, lo, hi);
    if (node.op == Op::cols) return tile(node.in[0], lo + node.attrs.lo, hi + node.attrs.lo);
    if (node.op == Op::cat_cols) return part(node, lo, hi);
    Value value{.op = node.op,
                .attrs = node.attrs,
                .kind = Kind::tile,
                .cols = Dim::number(hi - lo),
                .name = value_name(v, lo, hi)};
    if (node.op == Op::broadcast) {
      value.attrs.hi = hi - lo;
      value.attrs.lo = 0;
      value.attrs.index = static_cast<std::int32_t>(Kind::tile);
    }
    std::int64_t up = 1, down = 1;  // columns of a tile operand for `down` columns of v
    if (node.op == Op::first_of_pair || node.op == Op::second_of_pair) up = 2;
    if (node.op == Op::join) down = 2;
    if (node.op == Op::segment_sum) up = node.attrs.period;
    if (node.op == Op::segment_broadcast) down = node.attrs.period;
    const bool rotates = node.op == Op::rotate || node.op == Op::unrotate;
    for (const NodeId u : node.in) {
      const Kind kind = graph_.node(u).type.kind;
      if (is_tile(graph_.node(u)))
        value.args.push_back(tile(u, lo * up / down, hi * up / down));
      else if (kind == Kind::row && !rotates)
        value.args.push_back(row(u, lo, hi));
      else
        value.args.push_back(vector(u));
    }
    return add_value(std::move(value));
  }

  std::int32_t accumulator(NodeId v, std::int64_t lo, std::int64_t hi) {
    internal_check(v == unit_.node, "emit: a program computes matmul {} of another program", v);
    if (acc_ < 0)
      acc_ = add_value({.op = Op::acc, .kind = Kind::tile, .cols = program_.cols, .name = "acc"});
    if (lo == 0 && hi == width_of(v)) return acc_;
    return slice(acc_, lo, hi, Kind::tile);
  }

  std::int32_t slice(std::int32_t value, std::int64_t lo, std::int64_t hi, Kind kind) {
    Value cols{.op = Op::cols, .args = {value}, .kind = kind, .cols = Dim::number(hi - lo)};
    cols.attrs.lo = lo;
    cols.attrs.hi = hi;
    return add_value(std::move(cols));
  }

  std::int32_t part(const Node& cat, std::int64_t lo, std::int64_t hi) {
    std::int64_t first = 0;
    for (const NodeId u : cat.in) {
      const std::int64_t end = first + width_of(u);
      if (lo >= first && hi <= end && lo < end)
        return graph_.node(u).type.kind == Kind::row ? row(u, lo - first, hi - first)
                                                     : tile(u, lo - first, hi - first);
      first = end;
    }
    throw InternalError("emit: columns across parts of a cat_cols were asked for");
  }

  /// Columns [lo, hi) of a row vector.
  std::int32_t row(NodeId v, std::int64_t lo, std::int64_t hi) {
    const auto key = std::make_tuple(v, lo, hi);
    const auto found = tiles_.find(key);
    if (found != tiles_.end()) return found->second;
    return tiles_[key] = make_row(v, lo, hi);
  }

  std::int32_t make_row(NodeId v, std::int64_t lo, std::int64_t hi) {
    const Node& node = graph_.node(v);
    const bool whole = lo == 0 && hi == node.type.cols;
    if (node.op == Op::input) {
      const Place place = plan_.locate(v);
      const auto operand_key = std::make_tuple(v, lo, hi);
      auto found = tile_operands_.find(operand_key);
      if (found == tile_operands_.end()) {
        const std::int32_t operand =
            add_operand({.name = whole ? node.name : fmt::format("{}_{}", node.name, lo),
                         .kind = Kind::row,
                         .dtype = node.type.dtype,
                         .rows = Dim::number(1),
                         .cols = Dim::number(hi - lo)},
                        {place.buffer, 0, lo, 1, hi - lo});
        found = tile_operands_.emplace(operand_key, operand).first;
      }
      return add_value({.op = Op::load_row,
                        .kind = Kind::row,
                        .cols = Dim::number(hi - lo),
                        .operand = found->second,
                        .name = value_name(v, lo, hi)});
    }
    if (whole) return vector(v);
    if (node.op == Op::cols) return row(node.in[0], lo + node.attrs.lo, hi + node.attrs.lo);
    if (row_of(node.op).op_class != OpClass::elementwise)
      return slice(vector(v), lo, hi, Kind::row);
    Value value{.op = node.op,
                .attrs = node.attrs,
                .kind = Kind::row,
                .cols = Dim::number(hi - lo),
                .name = value_name(v, lo, hi)};
    if (node.op == Op::broadcast) value.attrs.hi = hi - lo;
    for (const NodeId u : node.in)
      value.args.push_back(graph_.node(u).type.kind == Kind::row ? row(u, lo, hi) : vector(u));
    return add_value(std::move(value));
  }

  /// A col, scalar, or whole row vector.
  std::int32_t vector(NodeId v) {
    const auto found = vectors_.find(v);
    if (found != vectors_.end()) return found->second;
    const std::int32_t value = make_vector(v);
    return vectors_[v] = value;
  }

  std::int32_t make_vector(NodeId v) {
    const Node& node = graph_.node(v);
    const bool is_row = node.type.kind == Kind::row;
    if (is_row && (node.op == Op::input)) return row(v, 0, node.type.cols);
    Value value{.op = node.op,
                .attrs = node.attrs,
                .kind = node.type.kind,
                .cols = Dim::number(is_row ? node.type.cols : 1),
                .name = node.name};
    if (node.op == Op::constant) return add_value(std::move(value));
    const auto constant = plan_.constants().find(v);
    if (constant != plan_.constants().end()) {
      value.op = Op::constant;
      value.attrs.value = constant->second;
      value.name.clear();
      return add_value(std::move(value));
    }
    if (node.op == Op::input) {
      value.attrs = {};
      value.op = node.type.kind == Kind::scalar ? Op::load_scalar : Op::load_col;
      value.operand = vector_operand(plan_.input_buffer(v));
      return add_value(std::move(value));
    }
    if (is_reduction(node.op)) {
      const bool here = std::binary_search(unit_.values.begin(), unit_.values.end(), v);
      return here ? complete_reduction(v) : load_reduction(v);
    }
    for (const NodeId u : node.in)
      value.args.push_back(is_row && graph_.node(u).type.kind == Kind::row ? row(u, 0, width_of(u))
                                                                           : vector(u));
    return add_value(std::move(value));
  }

  /// The blocks of a reduction, each finished by its load, combined in order.
  std::int32_t load_reduction(NodeId v) {
    const Node& node = graph_.node(v);
    std::int32_t result = -1;
    std::vector<std::int32_t> blocks;
    for (const std::int32_t index : plan_.vector_buffers(v)) {
      const Buffer& buffer = plan_.buffer(index);
      Value load{.op = buffer.kind == Kind::col   ? Op::load_col
                       : buffer.kind == Kind::row ? Op::load_row
                                                  : Op::load_scalar,
                 .kind = buffer.kind,
                 .cols = Dim::number(buffer.kind == Kind::row ? buffer.cols : 1),
                 .operand = vector_operand(index),
                 .name = node.name};
      if (buffer.partial) load.attrs.finish = finish_of(node.op, buffer);
      blocks.push_back(add_value(std::move(load)));
      if (buffer.kind != Kind::row) result = combined(node, result, blocks.back());
    }
    if (node.type.kind != Kind::row) return result;
    if (blocks.size() == 1) return blocks[0];
    return add_value({.op = Op::cat_cols,
                      .args = blocks,
                      .kind = Kind::row,
                      .cols = Dim::number(node.type.cols)});
  }

  std::int32_t combined(const Node& node, std::int32_t so_far, std::int32_t next) {
    if (so_far < 0) return next;
    return add_value({.op = node.op == Op::row_max ? Op::maximum : Op::add,
                      .args = {so_far, next},
                      .kind = node.type.kind,
                      .cols = Dim::number(1)});
  }

  std::vector<std::int64_t> cuts_of(NodeId v) const {
    const auto found = blocks_.cuts.find(v);
    if (found != blocks_.cuts.end()) return found->second;
    return {0, width_of(v)};
  }

  std::int32_t reduce(NodeId v, std::int64_t lo, std::int64_t hi) {
    const Node& node = graph_.node(v);
    const bool partial = unit_.kind == UnitKind::gemm || node.op == Op::col_sum;
    Value value{.op = node.op,
                .args = {tile(node.in[0], lo, hi)},
                .attrs = node.attrs,
                .kind = node.type.kind,
                .cols = Dim::number(node.op == Op::col_sum ? hi - lo : 1),
                .name = value_name(v, 0, width_of(v)),
                .partial = partial};
    for (std::size_t i = 1; i < node.in.size(); ++i) value.args.push_back(vector(node.in[i]));
    return add_value(std::move(value));
  }

  /// A reduction that is complete in this program: over columns in a row program, or a sum.
  std::int32_t complete_reduction(NodeId v) {
    const Node& node = graph_.node(v);
    if (node.op == Op::sum) {
      const NodeId u = node.in[0];
      const std::int32_t arg =
          graph_.node(u).type.kind == Kind::row ? row(u, 0, width_of(u)) : vector(u);
      return add_value({.op = Op::sum,
                        .args = {arg},
                        .kind = Kind::scalar,
                        .cols = Dim::number(1),
                        .name = node.name});
    }
    const auto cuts = cuts_of(node.in[0]);
    std::int32_t result = -1;
    for (std::size_t b = 0; b + 1 < cuts.size(); ++b)
      result = combined(node, result, reduce(v, cuts[b], cuts[b + 1]));
    return result;
  }

  // --- what the unit writes ---

  /// The reduction whose partials serve for r as well: online ones of the same tile hold its
  /// maximum, log_sum and lse.
  NodeId stored_for(NodeId r) const {
    const Node& node = graph_.node(r);
    if (unit_.kind != UnitKind::gemm || (node.op != Op::row_max && !is_online(node.op))) return r;
    for (const NodeId other : unit_.reductions)
      if (is_online(graph_.node(other).op) && graph_.node(other).in[0] == node.in[0]) return other;
    return r;
  }

  void add_reduction(NodeId v) {
    const Node& node = graph_.node(v);
    const bool complete =
        unit_.kind == UnitKind::vectors || (unit_.kind == UnitKind::rows && node.op != Op::col_sum);
    Buffer buffer{.name = {},
                  .role = Role::scratch,
                  .kind = node.type.kind,
                  .dtype = DType::f32,
                  .rows = node.type.rows,
                  .cols = node.type.cols};
    if (complete) {
      const std::int32_t value = vector(v);
      const std::int32_t index = plan_.add_vector_buffer(v, buffer);
      add_value({.op = Op::store_vector,
                 .args = {value},
                 .kind = node.type.kind,
                 .cols = Dim::number(node.type.cols),
                 .operand = output_operand({index}, v, node.type.cols, false)});
      return;
    }
    buffer.partial = true;
    buffer.finish = finish_of(node.op);
    const auto cuts = cuts_of(node.in[0]);
    if (node.op == Op::col_sum) return add_col_sums(v, buffer, cuts);
    for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
      const std::int32_t value = reduce(v, cuts[b], cuts[b + 1]);
      buffer.granules = (cuts[b + 1] - cuts[b] + kColumnGranule - 1) / kColumnGranule;
      const std::int32_t index = plan_.add_vector_buffer(v, buffer);
      store_partial(value, index, v, 1);
    }
  }

  void add_col_sums(NodeId v, Buffer buffer, const std::vector<std::int64_t>& cuts) {
    buffer.granules =
        unit_.axis == kTokens ? kTokens : (unit_.axis + kRowGranule - 1) / kRowGranule;
    for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
      const std::int32_t value = reduce(v, cuts[b], cuts[b + 1]);
      buffer.cols = cuts[b + 1] - cuts[b];
      store_partial(value, plan_.add_vector_buffer(v, buffer), v, buffer.cols);
    }
  }

  void store_partial(std::int32_t value, std::int32_t index, NodeId v, std::int64_t cols) {
    add_value({.op = Op::store_partial,
               .args = {value},
               .kind = graph_.node(v).type.kind,
               .cols = Dim::number(cols),
               .operand = output_operand({index}, v, cols, false)});
  }

  void add_store(const UnitStore& store) {
    const Node& node = graph_.node(store.value);
    const bool accumulate = store.slot >= 0 && plan_.slot(store.slot).accumulate;
    const Place place = plan_.place_for(store, is_load(store.value));
    const DType dtype = plan_.buffer(place.buffer).dtype;
    if (!is_tile(node)) {
      const bool is_row = node.type.kind == Kind::row;
      const std::int32_t value = rounded(
          is_row ? row(store.value, 0, node.type.cols) : vector(store.value), dtype, node.name);
      add_value(
          {.op = Op::store_vector,
           .args = {value},
           .kind = node.type.kind,
           .cols = Dim::number(node.type.cols),
           .operand = output_operand({place.buffer}, store.value, node.type.cols, accumulate)});
      return;
    }
    const auto cuts = cuts_of(store.value);
    for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
      const std::int64_t lo = cuts[b], hi = cuts[b + 1];
      // What other programs read is the rounded value; an output of another type is rounded once,
      // from the value itself.
      const bool again = store.slot >= 0 && !is_load(store.value);
      const std::int32_t value =
          rounded(again ? raw_tile(store.value, lo, hi) : tile(store.value, lo, hi), dtype,
                  value_name(store.value, lo, hi));
      add_value({.op = Op::store_tile,
                 .args = {value},
                 .kind = Kind::tile,
                 .cols = Dim::number(hi - lo),
                 .operand = output_operand({place.buffer, place.row, place.col + lo}, store.value,
                                           hi - lo, accumulate)});
      const std::string& name = plan_.buffer(place.buffer).name;
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
    }
  }

  void name_program(const std::string& phase) {
    std::string name;
    for (std::size_t i = 0; i < names_.size() && i < 2; ++i) name += (i ? "_" : "") + names_[i];
    if (name.empty())
      for (const Operand& operand : program_.operands)
        if (operand.output && name.empty()) name = operand.name;
    const char* what = unit_.kind == UnitKind::gemm   ? "gemm"
                       : unit_.kind == UnitKind::rows ? "rows"
                                                      : "vectors";
    program_.name = plan_.unique_program_name(fmt::format("{}_{}_{}", phase, what, name));
  }

  PlanBuilder& plan_;
  const Graph& graph_;
  const Unit& unit_;
  const Blocks blocks_;
  Program program_;
  std::vector<Slice> slices_;
  std::set<std::string> operand_names_, value_names_;
  std::map<std::tuple<NodeId, std::int64_t, std::int64_t>, std::int32_t> tile_operands_, tiles_,
      raw_;
  std::map<std::int32_t, std::int32_t> vector_operands_;
  std::map<NodeId, std::int32_t> vectors_;
  std::map<std::pair<std::int32_t, DType>, std::int32_t> casts_;
  std::vector<std::string> names_;
  std::int32_t acc_ = -1;
};

}  // namespace

Step emit_unit(PlanBuilder& plan, const Unit& unit, const std::string& phase) {
  return Emitter(plan, unit).run(phase);
}

}  // namespace coda
