// Values of row and vector programs as CUDA text, each emitted once in a scope, on demand: numbers
// of the row, and chunks of neighbouring columns. Knows operands and ops; loops are the writers'.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/op_text.h"
#include "backend/cuda/rows_source.h"
#include "base/check.h"

namespace coda::cuda {

/// Thrown when chunks of so many columns would cut through what an op addresses.
struct TooWide {};

/// Columns [base + offset, ...): base is an expression that is a multiple of `unit`.
struct Column {
  std::string base;
  std::int64_t unit = 1;
  std::int64_t offset = 0;

  Column plus(std::int64_t more) const { return {base, unit, offset + more}; }
  std::string text() const { return offset == 0 ? base : fmt::format("({} + {})", base, offset); }
  bool fits(std::int64_t n) const { return unit % n == 0 && offset % n == 0; }
};

inline bool is_row_reduction(Op op) {
  return op == Op::row_sum || op == Op::row_max || op == Op::pick || is_online(op);
}

/// The common part of both forms: values as text, each emitted once in a scope.
class Values {
 public:
  Values(const Program& program, const std::vector<PartialLoad>& partials)
      : program_(program), partials_(partials) {
    scopes_.emplace_back();
  }

  // ---- Text

  void line(const std::string& text) {
    out_ += std::string(static_cast<std::size_t>(2 * depth_), ' ') + text + "\n";
  }
  void open(const std::string& head) {
    line(head + (head.empty() ? "{" : " {"));
    ++depth_;
    scopes_.emplace_back();
  }
  void close() {
    scopes_.pop_back();
    --depth_;
    line("}");
  }
  std::string fresh(const char* prefix) { return fmt::format("{}{}", prefix, next_++); }
  std::string take() { return std::move(out_); }

  // ---- Values

  const Value& value(std::int32_t id) const {
    return program_.values[static_cast<std::size_t>(id)];
  }
  const Value& arg(const Value& v, std::size_t i) const { return value(v.args[i]); }
  std::int64_t width(std::int32_t id) const { return value(id).cols.num; }
  static bool is_wide(const Value& v) { return v.kind == Kind::tile || v.kind == Kind::row; }
  const Operand& operand(std::int32_t id) const {
    return program_.operands[static_cast<std::size_t>(id)];
  }

  /// A value that is one number for the row: a col at the row, or a scalar. Integers as integers.
  std::string number(std::int32_t id);
  bool is_integer(std::int32_t id) const {
    const Value& v = value(id);
    return v.op == Op::load_col && !is_float(operand(v.operand).dtype);
  }
  /// The same in arithmetic.
  std::string fp32(std::int32_t id) {
    return is_integer(id) ? fmt::format("static_cast<float>({})", number(id)) : number(id);
  }
  /// Columns [column, column + n) of a tile or row vector: the name of an array.
  std::string wide(std::int32_t id, const Column& column, int n);

  void define(std::int32_t id, const std::string& name) { define_key(key_of(id), name); }
  void define_key(const std::string& key, const std::string& name) { scopes_.back()[key] = name; }
  const std::string* find(const std::string& key) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto it = scope->find(key); it != scope->end()) return &it->second;
    }
    return nullptr;
  }
  static std::string key_of(std::int32_t id) { return fmt::format("{}", id); }

  /// Where a rotation's cosines are (sines behind them), by position and frequencies.
  std::map<std::pair<std::int32_t, std::int32_t>, std::string> angles;
  /// Where a segment_sum is.
  std::map<std::int32_t, std::string> segments;
  /// Where a partial operand's granules are in shared memory.
  std::map<std::int32_t, std::string> parts;

  const PartialLoad& partial_of(std::int32_t operand) const {
    return partials_[partial_index(operand)];
  }
  std::string finished(std::int32_t operand) const {
    return fmt::format("p.operands[{}]", program_.operands.size() + partial_index(operand));
  }

 private:
  std::size_t partial_index(std::int32_t operand) const {
    for (std::size_t i = 0; i < partials_.size(); ++i) {
      if (partials_[i].operand == operand) return i;
    }
    throw_error<InternalError>("rows: {}: operand {} is not among the partials", program_.name,
                               operand);
  }

  std::string loaded_number(const Value& v);
  /// What a load makes of finished online partials, whose maximum and log sum are given.
  static std::string online(Finish finish, const std::string& max, const std::string& log_sum) {
    return finish == Finish::lse       ? fmt::format("op::add({}, {})", max, log_sum)
           : finish == Finish::log_sum ? log_sum
                                       : max;
  }
  void compute_wide(const Value& v, std::int32_t id, const Column& column, int n,
                    const std::string& name);
  void load_wide(const Value& v, const Column& column, int n, const std::string& name);
  void rotate(const Value& v, const Column& column, int n, const std::string& name);
  void each(int n, const std::string& statement) {
    line("#pragma unroll");
    line(fmt::format("for (int i = 0; i < {}; ++i) {}", n, statement));
  }
  void copy(const std::string& name, const std::string& from, int n) {
    each(n, fmt::format("{}[i] = {}[i];", name, from));
  }
  Column derived(const std::string& expression, std::int64_t unit) {
    const std::string name = fresh("c");
    line(fmt::format("const int {} = {};", name, expression));
    return {name, unit, 0};
  }

  const Program& program_;
  const std::vector<PartialLoad>& partials_;
  std::string out_;
  int depth_ = 1;
  int next_ = 0;
  std::vector<std::map<std::string, std::string>> scopes_;
};

/// Tells the host of targets out of range and remembers (as "bad{targets}/{classes}") which rows
/// they spoil.
void check_targets(Values& values, std::int32_t targets, std::int64_t classes, std::int64_t ignored,
                   const std::string& reporter);

/// Puts the device files that generated text needs in front of it.
void prepend_row_files(KernelSource& source);

}  // namespace coda::cuda
