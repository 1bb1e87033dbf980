#include "backend/cuda/epilogue_source_section.h"

#include <algorithm>
#include <map>
#include <set>

#include "backend/cuda/epilogue_source_layout.h"
#include "backend/cuda/epilogue_source_stores.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

using lowering::LoweredSection;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;
using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

bool is_interleaved(const Node& node) { return node.attrs.layout == PairLayout::interleaved; }

/// Text lines with indentation.
class Lines {
 public:
  explicit Lines(int depth) : depth_(depth) {}
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += std::string(static_cast<std::size_t>(2 * depth_), ' ');
    text_ += fmt::format(format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void unroll() { text_ += "#pragma unroll\n"; }
  const std::string& text() const { return text_; }

 private:
  int depth_;
  std::string text_;
};

/// A section as one member function, which works chunk by chunk.
class SectionText {
 public:
  SectionText(const Program& program, const EpiloguePlan& plan, i32 section, bool ragged_chunks,
              bool staged)
      : program_(program),
        plan_(plan),
        index_(section),
        section_(plan.lowered.sections[at(section)]),
        layout_(*fragment_layout(plan.lowered, section_)),
        ragged_chunks_(ragged_chunks),
        staged_(staged),
        rows_(3),
        before_(5),
        body_(7),
        after_(6),
        sends_(5) {
    std::vector<i64> starts;
    for (const i32 index : section_.nodes)
      if (node(index).op == Op::acc) starts.push_back(node(index).col);
    std::sort(starts.begin(), starts.end());
    acc_starts_ = std::move(starts);
  }

  std::string write() {
    for (const Sink& sink : section_.sinks) write_sink(sink);
    std::string text = fmt::format(
        "  CODA_DEVICE void section_{}(Accumulators& acc, const Tile& tile, int column0, int end,\n"
        "                              const Shared& shared) {{\n"
        "#pragma unroll kUnrolled\n"
        "    for (int i = 0; i < kWgBlocks; ++i) {{\n"
        "      const Rows rows = rows_of(tile, i);\n",
        index_);
    text += rows_.text();
    text += fmt::format(
        "#pragma unroll kUnrolled\n"
        "      for (int chunk = 0; chunk < kPartColumns / {0}; ++chunk) {{\n"
        "        const int chunk_column = column0 + chunk * {0};\n"
        "        if (chunk_column < end) {{\n",
        layout_.chunk);
    text += before_.text();
    text += fmt::format(
        "#pragma unroll\n"
        "          for (int step = 0; step < {}; ++step) {{\n"
        "            const int column = chunk_column + step * {};\n"
        "            {}{{\n",
        layout_.chunk / layout_.step, layout_.step, ragged_chunks_ ? "if (column < end) " : "");
    text += body_.text();
    text += "            }\n" + after_.text() + "          }\n" + sends_.text() + "        }\n";
    text += fmt::format(
        "        if constexpr (kMoves) next_columns<{}>(acc[0]);\n"
        "      }}\n"
        "      if constexpr (kMoves) next_block(acc);\n"
        "    }}\n",
        layout_.chunk);
    if (!slabs_.empty()) {
      text += "    sync_tile(warp_of(shared));\n" + slabs_ + "    sync_tile(warp_of(shared));\n";
      text += fmt::format(
          "    static_assert({} * 4 <= kSlabBytes, \"column sums exceed a warp's staging\");\n",
          slab_floats_);
    }
    return text + "  }\n\n";
  }

 private:
  // --- facts ---
  const Node& node(i32 index) const { return plan_.lowered.nodes[at(index)]; }
  i64 scale(i32 index) const { return plan_.lowered.scale[at(index)]; }
  int layout(i32 index) const {
    const int own = layout_.layout[at(index)];
    return own == kAnyLayout ? 2 : own;
  }
  /// Columns of a node in a chunk, and values of it that a lane holds.
  i64 columns(i32 index) const { return layout_.step * layout_.acc_scale / scale(index); }
  i64 values(i32 index) const {
    const int l = layout(index);
    return columns(index) / group_columns(l) * group_values(l);
  }
  bool ragged(i32 index) const { return node(index).width % columns(index) != 0; }

  /// The chunk's first column, as a column of the node.
  std::string in_node(std::string_view name, i32 index) const {
    const i64 times = layout_.acc_scale, over = scale(index);
    if (times == over) return std::string(name);
    if (times % over == 0) return fmt::format("{} * {}", name, times / over);
    return fmt::format("{} / {}", name, over / times);
  }
  std::string column(i32 index) const { return in_node("column", index); }

  std::string fresh(std::string name) {
    if (!names_.insert(name).second) {
      int suffix = 2;
      while (!names_.insert(fmt::format("{}_{}", name, suffix)).second) ++suffix;
      name = fmt::format("{}_{}", name, suffix);
    }
    return name;
  }

  std::string value_name(i32 value) const {
    const Value& v = program_.values[at(value)];
    if (!v.name.empty()) return identifier_text(v.name);
    return fmt::format("{}_{}", name_of(v.op), value);
  }

  std::string node_base_name(i32 index) const {
    const i32 value = plan_.lowered.value_of[at(index)];
    return value >= 0 ? value_name(value) : fmt::format("{}_n{}", name_of(node(index).op), index);
  }
  std::string node_name(i32 index) { return fresh(node_base_name(index)); }

  static std::string operand(i32 index) { return fmt::format("p_.operands[{}]", index); }

  /// Where a vector's numbers are: an operand of the program, or a slot made before.
  struct Source {
    i32 operand = -1;
    DType dtype = DType::f32;
  };
  Source source_of(i32 value, i32 frequency = -1) const {
    const Value& v = program_.values[at(value)];
    if (frequency < 0 && is_direct(program_, value))
      return {v.operand, program_.operands[at(v.operand)].dtype};
    for (std::size_t i = 0; i < plan_.vectors.size(); ++i)
      if (plan_.vectors[i].value == value && plan_.vectors[i].frequency == frequency)
        return {static_cast<i32>(program_.operands.size() + i), DType::f32};
    throw_error<InternalError>("epilogue: {}: no slot for vector %{}", program_.name, value);
  }

  // --- vectors ---
  std::string col_name(const Ref& ref) {
    std::string& name = cols_[{ref.index, ref.offset}];
    if (name.empty()) {
      name = fresh(value_name(ref.index));
      const Source from = source_of(ref.index);
      rows_.add("float {}[2];", name);
      rows_.add("load_rows<{}>({}, {}, rows, {});", element_text(from.dtype), name,
                operand(from.operand), ref.offset);
    }
    return name;
  }

  std::string target_name(const Ref& ref, i64 ignore, i64 first) {
    std::string& name = targets_[{ref.index, ref.offset, ignore, first}];
    if (name.empty()) {
      name = fresh(value_name(ref.index));
      const Source from = source_of(ref.index);
      rows_.add("int {}[2];", name);
      rows_.add("load_targets<{}>({}, {}, rows, {}, {}ll, {});", from.dtype == DType::i64, name,
                operand(from.operand), ref.offset, ignore, first);
    }
    return name;
  }

  std::string row_name(const Ref& ref, i32 reader) {
    const int l = layout(reader);
    std::string& name = row_vectors_[{ref.index, ref.offset, scale(reader), l}];
    if (name.empty()) {
      name = fresh(value_name(ref.index));
      const Source from = source_of(ref.index);
      const i64 count = values(reader) / 2;
      body_.add("float {}[{}];", name, count);
      body_.add("load_columns<{}, {}, {}, {}>({}, {}, {}, {}, {}, lane_);",
                element_text(from.dtype), l, count, ragged(reader), name, operand(from.operand),
                column(reader), node(reader).width, ref.offset);
    }
    return name;
  }

  std::string scalar_text(i32 value) {
    const Value& v = program_.values[at(value)];
    if (v.op == Op::constant) return literal_text(v.attrs.value);
    std::string& name = scalars_[value];
    if (name.empty()) {
      name = fresh(value_name(value));
      const Source from = source_of(value);
      rows_.add("const float {} = {}::load({}.pointer, 0);", name, element_text(from.dtype),
                operand(from.operand));
    }
    return name;
  }

  // --- nodes ---

  /// The node's value x.
  std::string element(i32 index, std::string_view x) {
    if (node(index).op == Op::acc)
      return fmt::format("acc[kMoves ? 0 : i][{} + {}]", acc_start(index), x);
    return fmt::format("{}[{}]", tile_name(index), x);
  }
  /// The lane's values as an array.
  std::string array(i32 index) {
    if (node(index).op == Op::acc) return fmt::format("&acc[kMoves ? 0 : i][{}]", acc_start(index));
    return tile_name(index);
  }
  std::string acc_start(i32 index) const {
    const auto found = std::find(acc_starts_.begin(), acc_starts_.end(), node(index).col);
    const auto part = found - acc_starts_.begin();
    std::string start =
        fmt::format("(kMoves ? 0 : chunk * {}) + step * {}", layout_.chunk / 2, layout_.step / 2);
    if (part > 0) start = fmt::format("{} * kPartColumns / 2 + {}", part, start);
    return start;
  }

  /// An argument of an elementwise op, for value x of the reader.
  std::string argument(const Ref& ref, i32 reader) {
    const int l = layout(reader);
    switch (ref.kind) {
      case Ref::Kind::tile:
        return element(ref.index, "x");
      case Ref::Kind::col:
        return fmt::format("{}[row_of<{}>(x)]", col_name(ref), l);
      case Ref::Kind::row:
        return fmt::format("{}[y_of<{}>(x)]", row_name(ref, reader), l);
      default:
        return scalar_text(ref.index);
    }
  }

  const std::string& tile_name(i32 index) {
    std::string& name = tiles_[index];
    if (!name.empty()) return name;
    std::string made = node_name(index);
    write_node(index, made);
    return tiles_[index] = made;
  }

  void write_node(i32 index, const std::string& name) {
    const Node& n = node(index);
    const int l = layout(index);
    const i64 count = values(index);
    const auto loop = [&](const std::string& value) {
      body_.add("float {}[{}];", name, count);
      body_.unroll();
      body_.add("for (int x = 0; x < {}; ++x) {}[x] = {};", count, name, value);
    };
    switch (n.op) {
      case Op::load_tile:
        if (is_16_bit(program_.operands[at(n.operand)].dtype) && l == 2) {
          write_batch(index, name);
          return;
        }
        body_.add("float {}[{}];", name, count);
        body_.add("load_chunk<{}, {}, {}, {}>({}, {}, rows, {}, {}, {}, {}, lane_);",
                  element_text(program_.operands[at(n.operand)].dtype), l, count, ragged(index),
                  name, operand(n.operand), n.row, column(index), n.width, n.col);
        return;
      case Op::broadcast:
        return loop(argument(n.args[0], index));
      case Op::onehot: {
        const std::string target = target_name(n.args[0], n.attrs.ignore_index, 0);
        return loop(
            fmt::format("{}[row_of<{}>(x)] == {} + {} + column_of<{}>(x, lane_) ? 1.0f : "
                        "0.0f",
                        target, l, n.col, column(index), l));
      }
      case Op::first_of_pair:
      case Op::second_of_pair:
        return loop(fmt::format("{}", element(n.args[0].index, split_index(n, l))));
      case Op::join: {
        // Both halves of a pair from their own place.
        const std::string first = element(n.args[0].index, join_index(n, l));
        const std::string second = element(n.args[1].index, join_index(n, l));
        return loop(fmt::format("{} ? {} : {}", is_first(n, l), first, second));
      }
      case Op::rotate:
      case Op::unrotate:
        return write_rotation(index, name);
      case Op::segment_sum:
        return write_segment_sum(index, name);
      case Op::segment_broadcast: {
        // Value x is of group x / values; a segment is so many groups.
        const i64 groups = n.attrs.period / group_columns(l);
        return loop(element(n.args[0].index, fmt::format("x / {} * 2 + row_of<{}>(x)",
                                                         groups * group_values(l), l)));
      }
      default:
        break;
    }
    const std::string a = argument(n.args[0], index);
    const std::string b = n.args.size() > 1 ? argument(n.args[1], index) : "";
    loop(op_text(n.op, n.attrs, a, b));
  }

  static bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

  /// Columns of a node in a chunk.
  i64 chunk_columns(i32 index) const { return layout_.chunk * layout_.acc_scale / scale(index); }

  /// A tile operand in the accumulator's layout: a whole chunk is on its way before the first step
  /// waits for any of it.
  void write_batch(i32 index, const std::string& name) {
    const Node& n = node(index);
    const auto type = element_text(program_.operands[at(n.operand)].dtype);
    const std::string packed = fresh(name + "_in");
    const i64 count = chunk_columns(index) / 4;
    before_.add("u32 {}[{}];", packed, count);
    before_.add("load_batch<{}, {}>({}, {}, rows, p_.rows, {}, {}, {}, {}, lane_);", type, count,
                packed, operand(n.operand), n.row, in_node("chunk_column", index), n.width, n.col);
    body_.add("float {}[{}];", name, values(index));
    body_.add("unpack_batch<{}, {}>({}, {} + step * {});", type, values(index), name, packed,
              values(index) / 2);
  }

  /// Where value x of one half of pairs lies in the pairs' own array.
  static std::string split_index(const Node& n, int l) {
    const int second = n.op == Op::second_of_pair ? 1 : 0;
    if (is_interleaved(n)) {
      if (l == 0) return fmt::format("(x / 2 * 2 + {}) * 2 + x % 2", second);
      return fmt::format("x / {0} * {1} + x % {0} * 2 + {2}", l, 2 * l, second);
    }
    const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);  // values
    return fmt::format("x / {0} * {1} + x % {0} + {2}", half, 2 * half, second * half);
  }
  static std::string join_index(const Node& n, int l) {
    if (is_interleaved(n)) {
      if (l == 0) return "x / 4 * 2 + x % 2";
      return fmt::format("x / {0} * {1} + x % {0} / 2", l, l / 2);
    }
    const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);
    return fmt::format("x / {1} * {0} + x % {0}", half, 2 * half);
  }
  static std::string is_first(const Node& n, int l) {
    if (is_interleaved(n)) return l == 0 ? "x / 2 % 2 == 0" : "x % 2 == 0";
    const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);
    return fmt::format("x / {} % 2 == 0", half);
  }

  /// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; unrotate turns the other way.
  void write_rotation(i32 index, const std::string& name) {
    const Node& n = node(index);
    const int l = layout(index);
    const i64 count = values(index);
    const i64 period = n.attrs.period;
    const i64 per_head = period / group_columns(l) * group_values(l);  // values of both rows
    const i64 frequencies = per_head / 4;                              // of one row
    const std::string x1 = array(n.args[0].index);                     // made before the loop
    const Source table = source_of(n.args[1].index, n.args[2].index);
    // Interleaved pairs of a lane are half as many neighbouring frequencies.
    const int angle_layout = is_interleaved(n) ? l / 2 : l;
    std::string& angles =
        angles_[{n.args[1].index, n.args[2].index, n.args[1].offset, angle_layout}];
    if (angles.empty()) {
      angles = fresh("angle");
      body_.add("float {0}_cos[2][{1}], {0}_sin[2][{1}];", angles, frequencies);
      body_.add("load_angles<{}, {}>({}_cos, {}_sin, {}, rows, {}, {}, lane_);", angle_layout,
                frequencies, angles, angles, operand(table.operand), n.args[1].offset, period / 2);
    }
    const std::string row = fmt::format("row_of<{}>(x)", l);
    std::string k, other, condition;
    if (is_interleaved(n)) {
      k = fmt::format("x % {} / {} * {} + x % {} / 2", per_head, 2 * l, l / 2, l);
      condition = "x % 2 == 0";
      other = "1";
    } else {
      const i64 half = per_head / 2;
      k = fmt::format("x % {} / {} * {} + x % {}", half, 2 * l, l, l);
      condition = fmt::format("x / {} % 2 == 0", half);
      other = fmt::format("{}", half);
    }
    const bool back = n.op == Op::unrotate;
    const std::string first = element(n.args[0].index, "x");
    const std::string second = element(n.args[0].index, fmt::format("x + {}", other));
    body_.add("float {}[{}];", name, count);
    body_.unroll();
    body_.add("for (int x = 0; x < {}; ++x) {{", count);
    body_.add("  if ({}) {{", condition);
    body_.add("    const float cosine = {}_cos[{}][{}];", angles, row, k);
    body_.add("    const float sine = {}{}_sin[{}][{}];", back ? "-" : "", angles, row, k);
    body_.add("    {}[x] = op::sub(op::mul({}, cosine), op::mul({}, sine));", name, first, second);
    body_.add("    {}[x + {}] = op::add(op::mul({}, cosine), op::mul({}, sine));", name, other,
              second, first);
    body_.add("  }}");
    body_.add("}}");
  }

  void write_segment_sum(i32 index, const std::string& name) {
    const Node& n = node(index);
    const i32 arg = n.args[0].index;
    const int l = layout(arg);
    const i64 per_segment = n.attrs.period / group_columns(l) * group_values(l);
    const std::string value = element(arg, "x");
    const std::string to = fmt::format("{}[x / {} * 2 + row_of<{}>(x)]", name, per_segment, l);
    body_.add("float {}[{}] = {{}};", name, values(index));
    body_.unroll();
    body_.add("for (int x = 0; x < {}; ++x) {} = op::add({}, {});", values(arg), to, to, value);
    if (l == 0) return;
    body_.unroll();
    body_.add("for (int x = 0; x < {0}; ++x) {1}[x] = quad_sum({1}[x]);", values(index), name);
  }

  // --- sinks ---
  void write_sink(const Sink& sink) {
    const i32 index = sink.node;
    const int l = layout(index);
    if (sink.op == Op::store_tile) {
      const Operand& to = program_.operands[at(sink.operand)];
      const std::string from = array(index);
      if (const int map = staged_ ? store_map(plan_, program_, section_, sink) : -1; map >= 0)
        return write_staged(sink, map, from);
      body_.add("store_chunk<{}, {}, {}, {}, {}>({}, {}, rows, {}, {}, {}, lane_);",
                element_text(to.dtype), l, values(index), ragged(index), to.accumulate, from,
                operand(sink.operand), column(index), node(index).width, sink.col);
      return;
    }
    if (sink.op == Op::col_sum) return write_column_sum(sink);
    if (is_online(sink.op)) return write_log_sum(sink);
    write_reduction(sink);
  }

  /// Packed step by step, sent by TMA when the chunk is complete.
  void write_staged(const Sink& sink, int map, const std::string& from) {
    const i32 index = sink.node;
    const auto type = element_text(program_.operands[at(sink.operand)].dtype);
    const std::string packed = fresh(node_base_name(index) + "_out");
    const i64 columns_here = chunk_columns(index);
    before_.add("u32 {}[{}]{};", packed, columns_here / 4, ragged_chunks_ ? " = {}" : "");
    body_.add("pack_batch<{}, {}>({} + step * {}, {});", type, values(index), packed,
              values(index) / 2, from);
    for (i64 box = 0; box < columns_here / 64; ++box)
      sends_.add("send({} + {}, {}, {} + {}, tile.c_row + 64 * i);", packed, box * 16, map,
                 in_node("chunk_column", index), box * 64);
  }

  std::string granule_text(const Sink& sink, const std::string& first) const {
    return fmt::format("({} + {}) / {}", first, sink.col, kColumnGranule);
  }

  /// Sums, maxima, picks: gathered step by step, stored at the end of each granule.
  void write_reduction(const Sink& sink) {
    const i32 index = sink.node;
    const int l = layout(index);
    const bool is_max = sink.op == Op::row_max;
    const bool is_pick = sink.op == Op::pick;
    const std::string from = array(index);
    const std::string name = fresh(value_name(sink.value) + (is_max    ? "_top"
                                                             : is_pick ? "_picked"
                                                                       : "_sum"));
    const std::string identity = is_max ? "minus_infinity()" : "0.0f";
    rows_.add("float {}[2] = {{{}, {}}};", name, identity, identity);
    std::string target;
    if (is_pick) {
      const std::string column = target_name(sink.target, sink.ignore_index, 0);
      target = fresh(column + "_here");
      rows_.add("const int {0}[2] = {{{1}[0] - {2}, {1}[1] - {2}}};", target, column, sink.col);
      target = ", " + target;
    }
    const char* add = is_max ? "add_max" : is_pick ? "add_pick" : "add_sum";
    const i64 n = columns(index);
    const i64 granules = std::max<i64>(1, n / kColumnGranule);
    const i64 count = values(index) / granules;
    for (i64 g = 0; g < granules; ++g) {
      Lines& lines = n < kColumnGranule ? after_ : body_;
      const std::string first =
          g == 0 ? column(index) : fmt::format("{} + {}", column(index), g * kColumnGranule);
      const std::string array_text = g == 0 ? from : fmt::format("{} + {}", from, g * count);
      body_.add("{}<{}, {}, {}>({}, {}, {}, {}{}, lane_);", add, l, count, ragged(index), name,
                array_text, first, node(index).width, target);
      // The granule's first column, seen from its last step.
      std::string start = first;
      std::string condition = fmt::format("{} < {}", start, node(index).width);
      if (n < kColumnGranule) {
        const i64 steps = kColumnGranule / n;
        start = in_node(fmt::format("(column - {})", (steps - 1) * layout_.step), index);
        condition = fmt::format("step % {} == {} && {} < {}", steps, steps - 1, start,
                                in_node("end", index));
      }
      lines.add("if ({}) {{", condition);
      lines.add("  finish_{}<{}>({});", is_max ? "max" : "sum", l, name);
      lines.add("  store_granule({}, {}, {}, rows, lane_);", name, operand(sink.operand),
                granule_text(sink, start));
      lines.add("  {0}[0] = {0}[1] = {1};", name, identity);
      lines.add("}}");
    }
  }

  void write_log_sum(const Sink& sink) {
    const i32 index = sink.node;
    const int l = layout(index);
    const std::string from = array(index);
    const i64 granules = columns(index) / kColumnGranule;
    const i64 count = values(index) / granules;
    for (i64 g = 0; g < granules; ++g) {
      const std::string first =
          g == 0 ? column(index) : fmt::format("{} + {}", column(index), g * kColumnGranule);
      const std::string array_text = g == 0 ? from : fmt::format("{} + {}", from, g * count);
      const std::string granule = granule_text(sink, first);
      body_.add("if ({} < {}) {{", first, node(index).width);
      body_.add("  float top[2], sum[2];");
      body_.add("  log_sum_granule<{}, {}, {}>(top, sum, {}, {}, {}, lane_);", l, count,
                ragged(index), array_text, first, node(index).width);
      body_.add("  store_granule(top, {}, {}, rows, lane_);", operand(sink.operand), granule);
      body_.add("  store_granule(sum, {0}, {0}.rows / 2 + {1}, rows, lane_);",
                operand(sink.operand), granule);
      body_.add("}}");
    }
  }

  void write_column_sum(const Sink& sink) {
    const i32 index = sink.node;
    const std::string from = array(index);
    const std::string columns_text =
        fmt::format("kPartColumns * {} / {}", layout_.acc_scale, scale(index));
    const std::string base = slab_floats_;
    body_.add(
        "sum_slab<{}, {}>(staging_ + kSlabOffset, {} + i * ({}), {}, {}, rows, lane_);",
        layout(index), values(index), base, columns_text, from,
        fmt::format("{} + step * {}", in_node(fmt::format("chunk * {}", layout_.chunk), index),
                    columns(index)));
    slabs_ += fmt::format(
        "    store_slabs(shared, kSlabOffset, warp_of(shared), lane_, {}, {}, {}, tile.c_row, "
        "p_.rows, {}, {}, "
        "{});\n",
        base, columns_text, operand(sink.operand), in_node("column0", index), in_node("end", index),
        sink.col);
    slab_floats_ = fmt::format("{} + kWgBlocks * ({})", base, columns_text);
  }

  const Program& program_;
  const EpiloguePlan& plan_;
  i32 index_;
  const LoweredSection& section_;
  FragmentLayout layout_;
  std::vector<i64> acc_starts_;
  bool ragged_chunks_, staged_;
  Lines rows_, before_, body_, after_, sends_;
  std::string slabs_;
  std::string slab_floats_ = "0";
  std::set<std::string> names_ = {"column0",      "end", "step", "chunk",
                                  "chunk_column", "i",   "sum",  "top"};
  std::map<std::pair<i32, i64>, std::string> cols_;
  std::map<std::tuple<i32, i64, i64, i64>, std::string> targets_, row_vectors_, angles_;
  std::map<i32, std::string> scalars_, tiles_;
};

}  // namespace

std::string section_text(const Program& program, const EpiloguePlan& plan, i32 section,
                         bool ragged_chunks, bool staged) {
  return SectionText(program, plan, section, ragged_chunks, staged).write();
}

}  // namespace coda::cuda
