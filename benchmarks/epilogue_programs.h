// Programs made from others for epilogue_cuda: some of a step's stores, and its tiles without math.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coda/plan.h"

namespace coda::bench {

/// A step that runs `values` on the GEMM of `step`: operands that no value uses are left out.
inline Step step_of(const Step& step, const std::string& name, std::vector<Value> values) {
  const Program& from = *step.program;
  Program to;
  to.name = name;
  to.gemm = from.gemm;
  to.rows = from.rows;
  to.cols = from.cols;
  std::set<std::int32_t> used = {from.gemm.a};
  used.insert(from.gemm.b.begin(), from.gemm.b.end());
  for (const Value& v : values)
    if (v.operand >= 0) used.insert(v.operand);
  Step made = step;
  made.slices.clear();
  std::map<std::int32_t, std::int32_t> place;
  for (const std::int32_t operand : used) {
    place[operand] = static_cast<std::int32_t>(to.operands.size());
    to.operands.push_back(from.operands[static_cast<std::size_t>(operand)]);
    made.slices.push_back(step.slices[static_cast<std::size_t>(operand)]);
  }
  to.gemm.a = place[to.gemm.a];
  for (std::int32_t& b : to.gemm.b) b = place[b];
  for (Value& v : values)
    if (v.operand >= 0) v.operand = place[v.operand];
  to.values = std::move(values);
  verify(to);
  made.program = std::make_shared<const Program>(std::move(to));
  return made;
}

inline bool is_store(Op op) {
  return op == Op::store_tile || op == Op::store_partial || op == Op::store_vector;
}

/// The step without the stores to operands whose names begin with `prefix`, and without what only
/// they need.
inline Step without_stores(const Step& step, const std::string& name, const std::string& prefix) {
  const Program& program = *step.program;
  std::vector<bool> needed(program.values.size(), false);
  for (std::size_t i = program.values.size(); i-- > 0;) {
    const Value& v = program.values[i];
    if (is_store(v.op))
      needed[i] = program.operands[static_cast<std::size_t>(v.operand)].name.rfind(prefix, 0) != 0;
    if (!needed[i]) continue;
    for (const std::int32_t arg : v.args) needed[static_cast<std::size_t>(arg)] = true;
  }
  std::vector<Value> values;
  std::vector<std::int32_t> place(program.values.size(), -1);
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    if (!needed[i]) continue;
    place[i] = static_cast<std::int32_t>(values.size());
    values.push_back(program.values[i]);
    for (std::int32_t& arg : values.back().args) arg = place[static_cast<std::size_t>(arg)];
  }
  return step_of(step, name, std::move(values));
}

/// Writes the values of the step that loads and stores the same tiles without the math.
class TilesOnly {
 public:
  explicit TilesOnly(const Step& step) : step_(step), from_(*step.program) {}

  /// Every stored tile is the columns (or rows) of acc that it was made of, the first that are as
  /// wide, rounded. To the first sum of a width, loaded tiles are added and columns of acc that
  /// nothing else would store; what is stored twice is so here too. None: no tile is stored, or one
  /// has no such columns of acc, or a loaded one has no place, or there is no math to leave out.
  std::optional<Step> make() {
    std::size_t taken = 0;
    bool math = false;
    for (std::size_t i = 0; i < from_.values.size(); ++i) {
      const Value& v = from_.values[i];
      math = math || (v.op != Op::acc && v.op != Op::cols && v.op != Op::rows &&
                      v.op != Op::cast && v.op != Op::store_tile);
      taken += v.op == Op::load_tile;
      if (v.op == Op::store_tile) direct_.insert(window(v.args[0], value(v.args[0]).cols));
    }
    for (std::size_t i = 0; i < from_.values.size(); ++i) {
      const Value& v = from_.values[i];
      taken += is_piece(v) && direct_.count(static_cast<std::int32_t>(i)) == 0;
      if (v.op == Op::store_tile && !store(v)) return std::nullopt;
    }
    if (!math || sums_.empty() || taken != taken_.size()) return std::nullopt;
    return step_of(step_, from_.name + "_tiles", std::move(values_));
  }

 private:
  const Value& value(std::int32_t i) const { return from_.values[static_cast<std::size_t>(i)]; }

  std::int32_t add(Value v) {
    v.name.clear();
    values_.push_back(std::move(v));
    return static_cast<std::int32_t>(values_.size()) - 1;
  }

  /// Columns or rows of acc.
  bool is_piece(const Value& v) const {
    return (v.op == Op::cols || v.op == Op::rows) && value(v.args[0]).op == Op::acc;
  }

  /// acc or a piece of it, `cols` wide, that value i is made of; -1: none.
  std::int32_t window(std::int32_t i, const Dim& cols) const {
    const Value& v = value(i);
    if (v.op == Op::acc || is_piece(v)) return v.cols == cols ? i : -1;
    for (const std::int32_t arg : v.args) {
      const std::int32_t found = window(arg, cols);
      if (found >= 0) return found;
    }
    return -1;
  }

  std::int32_t add_piece(Value v) {
    if (v.op != Op::acc) {
      if (acc_ < 0) acc_ = add(value(v.args[0]));
      v.args = {acc_};
    }
    const std::int32_t made = add(v);
    if (v.op == Op::acc) acc_ = made;
    return made;
  }

  /// A piece of acc with what the first of that width takes along.
  std::int32_t sum_of(std::int32_t window) {
    const auto known = sums_.find(window);
    if (known != sums_.end()) return known->second;
    const Value& piece = value(window);
    std::int32_t sum = add_piece(piece);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(from_.values.size()); ++i) {
      const Value& v = value(i);
      const bool along = v.op == Op::load_tile || (is_piece(v) && direct_.count(i) == 0);
      if (!along || v.cols != piece.cols || !taken_.insert(i).second) continue;
      const std::int32_t tile = v.op == Op::load_tile ? add(v) : add_piece(v);
      sum = add({.op = Op::add, .args = {tile, sum}, .kind = piece.kind, .cols = piece.cols});
    }
    return sums_[window] = sum;
  }

  bool store(const Value& v) {
    const std::int32_t source = window(v.args[0], value(v.args[0]).cols);
    if (source < 0) return false;
    const DType dtype = from_.operands[static_cast<std::size_t>(v.operand)].dtype;
    const auto [rounded, fresh] = rounded_.try_emplace({source, dtype}, -1);
    if (fresh) {
      const std::int32_t sum = sum_of(source);
      Value cast{.op = Op::cast, .args = {sum}};
      cast.kind = values_[static_cast<std::size_t>(sum)].kind;
      cast.cols = values_[static_cast<std::size_t>(sum)].cols;
      cast.attrs.dtype = dtype;
      rounded->second = dtype == DType::f32 ? sum : add(cast);
    }
    Value stored = v;
    stored.args = {rounded->second};
    add(stored);
    return true;
  }

  const Step& step_;
  const Program& from_;
  std::vector<Value> values_;
  std::int32_t acc_ = -1;
  std::map<std::int32_t, std::int32_t> sums_;  ///< by window
  std::set<std::int32_t> direct_;              ///< windows that a store begins with
  std::set<std::int32_t> taken_;               ///< what was added to a sum
  std::map<std::pair<std::int32_t, DType>, std::int32_t> rounded_;
};

}  // namespace coda::bench
