#include "backend/cuda/rows_source.h"

#include <algorithm>
#include <map>
#include <string>

#include "backend/cuda/row_values.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

constexpr std::int64_t kMostSharedFloats = 48 * 1024;

/// What a stage ends with: a store, or a reduction of a tile. Concatenations at the root are taken
/// apart, so that parts of one width share a loop.
struct Sink {
  Op op = Op::store_tile;    ///< store_tile, a row reduction, segment_sum, or col_sum
  std::int32_t id = -1;      ///< the reduction, or the store
  std::int32_t from = -1;    ///< the tile
  std::vector<Attrs> casts;  ///< that were around a concatenation, outermost first
  std::int64_t offset = 0;   ///< columns of the whole in front of this part
  std::int64_t width = 0;
};

class RowsWriter {
 public:
  RowsWriter(const Program& program, const std::vector<PartialLoad>& partials, int columns)
      : program_(program), partials_(partials), values_(program, partials), columns_(columns) {}

  RowsKernel write() {
    find_stages();
    find_sinks();
    choose_threads();
    place_shared();
    values_.line("const int lane = threadIdx.x % kThreads, slot = threadIdx.x / kThreads;");
    values_.line("float* const shared = dynamic_shared();");
    values_.line(fmt::format("float* const mine = shared + slot * {};", slot_floats_));
    by_granules_ ? write_granules() : write_block();
    return finish();
  }

 private:
  const Value& value(std::int32_t id) const { return values_.value(id); }
  std::int32_t size() const { return static_cast<std::int32_t>(program_.values.size()); }
  static bool is_store(Op op) {
    return op == Op::store_tile || op == Op::store_vector || op == Op::store_partial;
  }

  /// A value's stage: how many reductions lie one behind the other before it.
  void find_stages() {
    stage_.assign(program_.values.size(), 0);
    for (std::int32_t id = 0; id < size(); ++id) {
      const Value& v = value(id);
      int stage = 0;
      for (const std::int32_t a : v.args) {
        const Op op = value(a).op;
        const bool complete = !value(a).partial && (is_row_reduction(op) || op == Op::segment_sum);
        stage = std::max(stage, stage_[static_cast<std::size_t>(a)] + (complete ? 1 : 0));
      }
      stage_[static_cast<std::size_t>(id)] = stage;
      stages_ = std::max(stages_, stage + 1);
    }
  }

  void add_sink(Sink sink) {
    std::int32_t inner = sink.from;
    std::vector<Attrs> casts;
    while (value(inner).op == Op::cast) {
      casts.push_back(value(inner).attrs);
      inner = value(inner).args[0];
    }
    if (value(inner).op != Op::cat_cols || sink.op == Op::segment_sum) {
      sink.width = values_.width(sink.from);
      sinks_.push_back(std::move(sink));
      return;
    }
    sink.casts.insert(sink.casts.end(), casts.begin(), casts.end());
    for (const std::int32_t part : value(inner).args) {
      sink.from = part;
      add_sink(sink);
      sink.offset += values_.width(part);
    }
  }

  void find_sinks() {
    for (std::int32_t id = 0; id < size(); ++id) {
      const Value& v = value(id);
      internal_check(v.op != Op::rows && v.op != Op::cat_rows && v.op != Op::acc,
                     "rows: {}: {} in a row program", program_.name, name_of(v.op));
      if (v.op == Op::store_tile || (is_row_reduction(v.op) && !v.partial) ||
          v.op == Op::segment_sum) {
        add_sink({v.op, id, v.args[0], {}, 0, 0});
      } else if (v.op == Op::store_partial) {
        const Value& reduction = value(v.args[0]);
        if (is_row_reduction(reduction.op)) {
          row_partials_.push_back(id);
          continue;
        }
        internal_check(reduction.op == Op::col_sum || reduction.op == Op::sum,
                       "rows: {}: partials of {}", program_.name, name_of(reduction.op));
        by_granules_ = true;
        if (reduction.op == Op::col_sum) add_sink({Op::col_sum, id, reduction.args[0], {}, 0, 0});
      }
    }
  }

  /// As many threads as the widest loop has chunks; several rows share a block of 256, or one of
  /// 1024 where columns are summed. Rotations work on two chunks at once: of eight columns each,
  /// that is more registers than 1024 threads have.
  void choose_threads() {
    std::int64_t chunks = 1;
    for (const Sink& s : sinks_) {
      if (s.width % columns_ != 0 || s.offset % columns_ != 0) throw TooWide{};
      chunks = std::max(chunks, s.width / columns_);
    }
    for (const std::int32_t id : row_partials_) {
      const std::int64_t width = values_.width(value(value(id).args[0]).args[0]);
      if (width % columns_ != 0) throw TooWide{};
      chunks = std::max(chunks, width / kColumnGranule);
    }
    threads_ = 32;
    while (threads_ < 512 && threads_ < chunks) threads_ *= 2;
    const bool rotates =
        std::any_of(program_.values.begin(), program_.values.end(), [](const Value& v) {
          return v.op == Op::rotate || v.op == Op::unrotate;
        });
    const int most = !by_granules_ ? 256 : rotates && columns_ == 8 ? 512 : 1024;
    slots_ = std::max(1, most / threads_);
  }

  int take(std::int64_t floats) {
    const std::int64_t at = slot_floats_;
    slot_floats_ += (floats + 3) / 4 * 4;
    return static_cast<int>(at);
  }
  static std::string mine(int at) { return fmt::format("mine + {}", at); }

  /// Shared memory of a row: granules, cosines, segments, what warps reduced, sums of columns.
  void place_shared() {
    for (const PartialLoad& partial : partials_) {
      if (!partial.inside) continue;
      const int planes = is_online(partial.finish) ? 2 : 1;
      values_.parts[partial.operand] = mine(take(partial.granules * planes));
    }
    for (std::int32_t id = 0; id < size(); ++id) {
      const Value& v = value(id);
      if (v.op == Op::rotate || v.op == Op::unrotate) {
        std::string& where = values_.angles[{v.args[1], v.args[2]}];
        if (where.empty()) where = mine(take(values_.width(v.args[2])));
      } else if (v.op == Op::segment_sum) {
        values_.segments[id] = mine(take(v.cols.num));
        if (v.attrs.period % columns_ != 0) throw TooWide{};
        chunk_sums_[id] = mine(take(v.cols.num * v.attrs.period / columns_));
      } else if (is_row_reduction(v.op) && !v.partial) {
        scratch_[id] = mine(take((threads_ / 32) * (is_online(v.op) ? 2 : 1)));
      } else if (v.op == Op::store_partial && value(v.args[0]).op == Op::sum) {
        row_sums_[id] = take(1);
      }
    }
    // Sums of columns: in shared memory if they fit for at least one row at a time.
    std::int64_t sums = 0;
    for (std::int32_t id = 0; id < size(); ++id) {
      const Value& v = value(id);
      if (v.op == Op::store_partial && value(v.args[0]).op == Op::col_sum) sums += v.cols.num + 3;
    }
    if (sums == 0) return;
    while (slots_ > 1 && slots_ * (slot_floats_ + sums) > kMostSharedFloats) slots_ /= 2;
    sums_in_memory_ = slots_ * (slot_floats_ + sums) > kMostSharedFloats;
    for (std::int32_t id = 0; id < size(); ++id) {
      const Value& v = value(id);
      if (v.op != Op::store_partial || value(v.args[0]).op != Op::col_sum) continue;
      column_sums_[id] = sums_in_memory_ ? 0 : take(v.cols.num);
    }
  }

  std::string column_sums(std::int32_t store) const {
    const std::int32_t operand = value(store).operand;
    return sums_in_memory_ ? fmt::format(
                                 "static_cast<float*>(p.operands[{0}].data) + blockIdx.x * "
                                 "p.operands[{0}].stride",
                                 operand)
                           : mine(column_sums_.at(store));
  }

  // ---- A block: some rows at once, or a granule of rows

  void write_block() {
    values_.line("const long long row = static_cast<long long>(blockIdx.x) * kSlots + slot;");
    values_.line("const bool live = row < p.rows;");
    values_.line("const long long r = live ? row : p.rows - 1;");
    write_row();
  }

  void write_granules() {
    Values& v = values_;
    v.line(fmt::format("const long long first = static_cast<long long>(blockIdx.x) * {};",
                       kRowGranule));
    v.line(fmt::format("const long long last = first + {0} < p.rows ? first + {0} : p.rows;",
                       kRowGranule));
    for (const auto& [store, at] : column_sums_) {
      v.line(fmt::format("for (int j = lane; j < {}; j += kThreads) ({})[j] = 0.0f;",
                         value(store).cols.num, column_sums(store)));
    }
    for (const auto& [store, at] : row_sums_) v.line(fmt::format("float sum{} = 0.0f;", store));
    v.open("for (long long base = first; base < last; base += kSlots)");
    v.line("const bool live = base + slot < last;");
    v.line("const long long r = live ? base + slot : last - 1;");
    v.line("__syncthreads();");
    write_row();
    v.close();
    for (const auto& [store, at] : row_sums_) {
      v.line(fmt::format("if (lane == 0) mine[{}] = sum{};", at, store));
    }
    v.line("__syncthreads();");
    for (const auto& [store, at] : row_sums_) {
      v.open("if (threadIdx.x == 0)");
      v.line("float sum = 0.0f;");
      v.line(
          fmt::format("for (int k = 0; k < kSlots; ++k) sum = op::add(sum, shared[k * {} + {}]);",
                      slot_floats_, at));
      v.line(
          fmt::format("static_cast<float*>(p.operands[{0}].data)[blockIdx.x * "
                      "p.operands[{0}].stride] = sum;",
                      value(store).operand));
      v.close();
    }
    if (sums_in_memory_) return;
    for (const auto& [store, at] : column_sums_) {
      v.open(fmt::format("for (int j = threadIdx.x; j < {}; j += kThreads * kSlots)",
                         value(store).cols.num));
      v.line("float sum = 0.0f;");
      v.line(fmt::format(
          "for (int k = 0; k < kSlots; ++k) sum = op::add(sum, shared[k * {} + {} + j]);",
          slot_floats_, at));
      v.line(
          fmt::format("static_cast<float*>(p.operands[{0}].data)[blockIdx.x * "
                      "p.operands[{0}].stride + j] = sum;",
                      value(store).operand));
      v.close();
    }
  }

  void write_row() {
    for (std::size_t i = 0; i < program_.operands.size(); ++i) {
      const Kind kind = program_.operands[i].kind;
      if (kind != Kind::tile && kind != Kind::weight) continue;
      values_.line(fmt::format("const long long at{0} = r * p.operands[{0}].stride;", i));
    }
    fill_shared();
    for (int stage = 0; stage < stages_; ++stage) write_stage(stage);
  }

  /// Partials and tables that the row's threads share.
  void fill_shared() {
    Values& v = values_;
    bool filled = false;
    for (const PartialLoad& partial : partials_) {
      if (!partial.inside) continue;
      filled = true;
      const std::int64_t count = partial.granules * (is_online(partial.finish) ? 2 : 1);
      v.line(
          fmt::format("for (int g = lane; g < {}; g += kThreads) ({})[g] = "
                      "static_cast<const float*>(p.operands[{}].data)[g * "
                      "p.operands[{}].stride + r];",
                      count, v.parts.at(partial.operand), partial.operand, partial.operand));
    }
    for (const auto& [source, where] : v.angles) {
      filled = true;
      const std::int64_t half = v.width(source.second) / 2;
      const std::string position = v.number(source.first);
      v.line(fmt::format("if ({} < 0) *p.error_flag = 1;", position));
      v.open(fmt::format("for (int c = lane; c < {}; c += kThreads)", half));
      const std::string high = v.wide(source.second, {"c", 1, 0}, 1);
      const std::string low = v.wide(source.second, {"c", 1, half}, 1);
      v.line("float cosine, sine;");
      v.line(fmt::format("angle_of({}, {}[0], {}[0], cosine, sine);", position, high, low));
      v.line(fmt::format("({})[c] = {} < 0 ? nan_value() : cosine;", where, position));
      v.line(fmt::format("({})[{} + c] = {} < 0 ? nan_value() : sine;", where, half, position));
      v.close();
    }
    if (filled) v.line("__syncthreads();");
  }

  void write_stage(int stage) {
    Values& v = values_;
    v.line(fmt::format("// stage {}", stage));
    for (std::int32_t id = 0; id < size(); ++id) write_number(id, stage);
    std::vector<const Sink*> sinks;
    for (const Sink& s : sinks_) {
      if (stage_[static_cast<std::size_t>(s.id)] == stage) sinks.push_back(&s);
    }
    for (const Sink* s : sinks) begin_reduction(*s);
    while (!sinks.empty()) {
      const std::int64_t width = sinks.front()->width;
      v.open(
          fmt::format("for (int j = lane * {0}; j < {1}; j += kThreads * {0})", columns_, width));
      for (const Sink* s : sinks) {
        if (s->width == width) write_sink(*s);
      }
      v.close();
      std::erase_if(sinks, [&](const Sink* s) { return s->width == width; });
    }
    for (const std::int32_t id : row_partials_) {
      if (stage_[static_cast<std::size_t>(id)] == stage) write_row_partials(id);
    }
    end_reductions(stage);
  }

  /// Granules of a row reduction, as a GEMM program stores them: a thread a granule.
  void write_row_partials(std::int32_t store) {
    Values& v = values_;
    const Value& reduction = value(value(store).args[0]);
    const std::int32_t to = value(store).operand;
    const std::int64_t width = v.width(reduction.args[0]);
    const std::int64_t granules = (width + kColumnGranule - 1) / kColumnGranule;
    const bool online = is_online(reduction.op);
    v.open(fmt::format("for (int g = lane; g < {}; g += kThreads)", granules));
    v.line(online ? "LogSum sum;"
                  : fmt::format("float sum = {};",
                                reduction.op == Op::row_max ? "minus_infinity()" : "0.0f"));
    v.line(fmt::format("const int end = {0} * g + {0} < {1} ? {0} * g + {0} : {1};", kColumnGranule,
                       width));
    v.open(fmt::format("for (int j = {} * g; j < end; j += {})", kColumnGranule, columns_));
    const std::string x = v.wide(reduction.args[0], {"j", columns_, 0}, columns_);
    if (online) {
      v.line(fmt::format("const LogSum part = chunk_log_sum({});", x));
      v.line("sum.add(part.max, part.sum);");
    } else if (reduction.op == Op::pick) {
      const std::string target = v.number(reduction.args[1]);
      each(fmt::format("if ({} == j + i && {} != {}ll) sum = {}[i];", target, target,
                       reduction.attrs.ignore_index, x));
    } else {
      each(fmt::format("sum = op::{}(sum, {}[i]);", reduction.op == Op::row_max ? "maximum" : "add",
                       x));
    }
    v.close();
    const std::string data = fmt::format(
        "static_cast<float*>(p.operands[{0}].data)[{{}} * p.operands[{0}].stride + r]", to);
    const auto at = [&](const std::string& granule) {
      return fmt::format(fmt::runtime(data), granule);
    };
    if (online) {
      v.line(fmt::format("if (live) {} = sum.max;", at("g")));
      v.line(fmt::format("if (live) {} = sum.sum;", at(fmt::format("({} + g)", granules))));
    } else if (reduction.op == Op::pick) {
      const std::string* bad =
          v.find(fmt::format("bad{}/{}", reduction.args[1], v.width(reduction.args[0])));
      internal_check(bad != nullptr, "rows: {}: targets of pick were not checked", program_.name);
      v.line(fmt::format("if (live) {} = {} ? nan_value() : sum;", at("g"), *bad));
    } else {
      v.line(fmt::format("if (live) {} = sum;", at("g")));
    }
    v.close();
  }

  /// Cols and scalars of a stage, and stores of them.
  void write_number(std::int32_t id, int stage) {
    Values& v = values_;
    const Value& x = value(id);
    if (stage_[static_cast<std::size_t>(id)] != stage) return;
    if (x.op == Op::onehot || x.op == Op::pick) {
      const std::int32_t targets = x.args[x.op == Op::pick ? 1 : 0];
      const std::int64_t classes = x.op == Op::pick ? v.width(x.args[0]) : x.cols.num;
      check_targets(v, targets, classes, x.attrs.ignore_index, "p.error_flag");
    }
    if (x.op == Op::store_vector) {
      store_vector(x);
    } else if (x.op == Op::store_partial && value(x.args[0]).op == Op::sum) {
      const std::string sum = fmt::format("sum{}", id);
      v.line(
          fmt::format("if (live) {0} = op::add({0}, {1});", sum, v.fp32(value(x.args[0]).args[0])));
    } else if (!is_store(x.op) && !x.partial && !is_row_reduction(x.op) &&
               (x.kind == Kind::col || x.kind == Kind::scalar)) {
      v.number(id);
    }
  }

  void store_vector(const Value& x) {
    Values& v = values_;
    const Operand& to = v.operand(x.operand);
    const std::string data = fmt::format("p.operands[{}].data", x.operand);
    const auto store = [&](const std::string& at, const std::string& number) {
      const std::string text =
          to.accumulate ? fmt::format("op::add(F32::load({}, {}), {})", data, at, number) : number;
      return fmt::format("{}::store({}, {}, {});", element_text(to.dtype), data, at, text);
    };
    if (x.kind == Kind::col) {
      v.line("if (live && lane == 0) " + store("r", v.fp32(x.args[0])));
    } else if (x.kind == Kind::scalar) {
      v.line("if (r == 0 && live && lane == 0) " + store("0", v.fp32(x.args[0])));
    } else {
      v.open(
          fmt::format("if (r == 0 && live) for (int c = lane; c < {}; c += kThreads)", x.cols.num));
      const std::string number = v.wide(x.args[0], {"c", 1, 0}, 1) + "[0]";
      v.line(store("c", number));
      v.close();
    }
  }

  static std::string accumulator(const Sink& s) { return fmt::format("sum{}", s.id); }

  void begin_reduction(const Sink& s) {
    if (!is_row_reduction(s.op) || s.offset != 0) return;
    if (is_online(s.op)) {
      values_.line(fmt::format("LogSum {};", accumulator(s)));
    } else {
      values_.line(fmt::format("float {} = {};", accumulator(s),
                               s.op == Op::row_max ? "minus_infinity()" : "0.0f"));
    }
  }

  void write_sink(const Sink& s) {
    Values& v = values_;
    const Column j{"j", columns_, 0};
    std::string x = v.wide(s.from, j, columns_);
    for (auto cast = s.casts.rbegin(); cast != s.casts.rend(); ++cast) {
      const std::string rounded = v.fresh("t");
      v.line(fmt::format("float {}[{}];", rounded, columns_));
      each(fmt::format("{}[i] = {};", rounded, op_text(Op::cast, *cast, x + "[i]")));
      x = rounded;
    }
    const std::string at = j.plus(s.offset).text();
    const std::string sum = accumulator(s);
    switch (s.op) {
      case Op::store_tile: {
        const std::int32_t to = value(s.id).operand;
        const Operand& operand = v.operand(to);
        v.line(operand.accumulate
                   ? fmt::format("if (live) add_chunk(p.operands[{0}].data, at{0} + {1}, {2});", to,
                                 at, x)
                   : fmt::format("if (live) store_chunk<{3}>(p.operands[{0}].data, at{0} + {1}, "
                                 "{2});",
                                 to, at, x, element_text(operand.dtype)));
        return;
      }
      case Op::row_sum:
        each(fmt::format("{0} = op::add({0}, {1}[i]);", sum, x));
        return;
      case Op::row_max:
        each(fmt::format("{0} = op::maximum({0}, {1}[i]);", sum, x));
        return;
      case Op::pick: {
        const Value& pick = value(s.id);
        const std::string target = v.number(pick.args[1]);
        each(fmt::format("if ({} == {} + i && {} != {}ll) {} = {}[i];", target, at, target,
                         pick.attrs.ignore_index, sum, x));
        return;
      }
      case Op::segment_sum: {
        const std::string part = v.fresh("t");
        v.line(fmt::format("float {} = 0.0f;", part));
        each(fmt::format("{0} = op::add({0}, {1}[i]);", part, x));
        v.line(fmt::format("({})[j / {}] = {};", chunk_sums_.at(s.id), columns_, part));
        return;
      }
      case Op::col_sum:
        v.open("if (live)");
        v.line(fmt::format("float* const sums = {};", column_sums(s.id)));
        each(fmt::format("sums[{0} + i] = op::add(sums[{0} + i], {1}[i]);", at, x));
        v.close();
        return;
      default: {
        const std::string part = v.fresh("part");
        v.line(fmt::format("const LogSum {} = chunk_log_sum({});", part, x));
        v.line(fmt::format("{0}.add({1}.max, {1}.sum);", sum, part));
      }
    }
  }

  void each(const std::string& statement) {
    values_.line("#pragma unroll");
    values_.line(fmt::format("for (int i = 0; i < {}; ++i) {}", columns_, statement));
  }

  void end_reductions(int stage) {
    Values& v = values_;
    std::vector<std::int32_t> reductions, segments;
    for (const auto& [id, where] : scratch_) {
      if (stage_[static_cast<std::size_t>(id)] == stage) reductions.push_back(id);
    }
    for (const auto& [id, where] : chunk_sums_) {
      if (stage_[static_cast<std::size_t>(id)] == stage) segments.push_back(id);
    }
    if (reductions.empty() && segments.empty()) return;
    const int warps = threads_ / 32;
    for (const std::int32_t id : reductions) {
      const Op op = value(id).op;
      const std::string sum = fmt::format("sum{}", id);
      v.line(fmt::format("{0} = warp_{1}({0});", sum,
                         is_online(op)       ? "log_sum"
                         : op == Op::row_max ? "max"
                                             : "sum"));
      const std::string where = scratch_.at(id);
      v.line(
          is_online(op)
              ? fmt::format("if (lane % 32 == 0) {{ ({0})[lane / 32] = {1}.max; ({0})[{2} + lane "
                            "/ 32] = {1}.sum; }}",
                            where, sum, warps)
              : fmt::format("if (lane % 32 == 0) ({})[lane / 32] = {};", where, sum));
    }
    v.line("__syncthreads();");
    for (const std::int32_t id : reductions) {
      const Value& x = value(id);
      const std::string name = v.fresh("v");
      const std::string all = fmt::format("{}_of<{}>({})",
                                          is_online(x.op)       ? "log_sum"
                                          : x.op == Op::row_max ? "max"
                                                                : "sum",
                                          warps, scratch_.at(id));
      std::string text = x.op == Op::lse       ? all + ".value()"
                         : x.op == Op::log_sum ? all + ".log_sum()"
                                               : all;
      if (x.op == Op::pick) {
        const std::string* bad = v.find(fmt::format("bad{}/{}", x.args[1], v.width(x.args[0])));
        internal_check(bad != nullptr, "rows: {}: targets of pick were not checked", program_.name);
        text = fmt::format("{} ? nan_value() : {}", *bad, text);
      }
      v.line(fmt::format("const float {} = {};", name, text));
      v.define(id, name);
    }
    for (const std::int32_t id : segments) {
      const std::int64_t parts = value(id).attrs.period / columns_;
      v.open(fmt::format("for (int s = lane; s < {}; s += kThreads)", value(id).cols.num));
      v.line("float sum = 0.0f;");
      v.line(fmt::format("for (int k = 0; k < {0}; ++k) sum = op::add(sum, ({1})[s * {0} + k]);",
                         parts, chunk_sums_.at(id)));
      v.line(fmt::format("({})[s] = sum;", values_.segments.at(id)));
      v.close();
    }
    if (!segments.empty()) v.line("__syncthreads();");
  }

  RowsKernel finish() {
    RowsKernel kernel;
    kernel.columns = columns_;
    kernel.threads = threads_ * slots_;
    kernel.rows = by_granules_ ? kRowGranule : slots_;
    kernel.source.name = "rows_" + program_.name;
    kernel.source.entry = "coda_rows";
    kernel.source.shared_bytes = static_cast<unsigned>(slots_ * slot_floats_ * 4);
    kernel.source.text = fmt::format(
        "namespace coda_device {{\n"
        "struct RowsParams : RowsHeader {{ RowsOperand operands[{}]; }};\n"
        "constexpr int kThreads = {}, kSlots = {};\n"
        "extern \"C\" __global__ void __launch_bounds__({}) coda_rows(const RowsParams p) {{\n"
        "{}}}\n}}  // namespace coda_device\n",
        program_.operands.size() + partials_.size(), threads_, slots_, threads_ * slots_,
        values_.take());
    return kernel;
  }

  const Program& program_;
  const std::vector<PartialLoad>& partials_;
  Values values_;
  int columns_ = 1;
  int threads_ = 32, slots_ = 1;
  int stages_ = 1;
  std::int64_t slot_floats_ = 0;
  bool by_granules_ = false, sums_in_memory_ = false;
  std::vector<int> stage_;
  std::vector<Sink> sinks_;
  std::vector<std::int32_t> row_partials_;  ///< stores
  std::map<std::int32_t, std::string> scratch_, chunk_sums_;
  std::map<std::int32_t, int> row_sums_, column_sums_;
};

}  // namespace

RowsKernel rows_kernel(const Program& program, const std::vector<PartialLoad>& partials,
                       int columns) {
  for (int n = columns; n >= 1; n /= 2) {
    try {
      RowsKernel kernel = RowsWriter(program, partials, n).write();
      prepend_row_files(kernel.source);
      return kernel;
    } catch (const TooWide&) {
    }
  }
  throw_error<InternalError>("rows: {}: no chunk fits, not even of one column", program.name);
}

}  // namespace coda::cuda
