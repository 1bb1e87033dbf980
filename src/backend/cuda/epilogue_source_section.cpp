#include "backend/cuda/epilogue_source_section.h"

#include <algorithm>
#include <map>
#include <set>

#include "backend/cuda/epilogue_source_deferral.h"
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

/// Which part of a section's work a function does.
enum class Part {
  whole,  ///< all of it, at the end of a tile
  early,  ///< up to what is held, and packing that
  late,   ///< one step of what waited, on a chunk
};

/// One member function of a section, which works chunk by chunk.
class SectionWriter {
 public:
  SectionWriter(const Program& program, const EpiloguePlan& plan, i32 section, bool ragged_chunks,
                const EpilogueForm& form, const Deferral& deferral, Part part)
      : program_(program),
        plan_(plan),
        index_(section),
        section_(plan.lowered.sections[at(section)]),
        layout_(*fragment_layout(plan.lowered, section_)),
        deferral_(deferral),
        part_(part),
        ragged_chunks_(ragged_chunks),
        form_(form),
        rows_(part == Part::late ? 2 : 3),
        fetches_(3),
        takes_(4),
        before_(part == Part::late ? 3 : 5),
        body_(part == Part::late ? 5 : 7),
        after_(part == Part::late ? 4 : 6),
        sends_(part == Part::late ? 3 : 5),
        at_once_(3) {
    std::vector<i64> starts;
    for (const i32 index : section_.nodes)
      if (node(index).op == Op::acc) starts.push_back(node(index).col);
    std::sort(starts.begin(), starts.end());
    acc_starts_ = std::move(starts);
    i64 offset = 0;
    for (const i32 index : deferral_.held) {
      held_at_[index] = offset;
      offset += chunk_columns(index) / 4;
    }
  }

  /// section_N, of a whole tile.
  std::string write() {
    if (part_ == Part::early) {
      for (const i32 index : deferral_.held) write_hold(index);
    } else {
      for (const Sink& sink : section_.sinks) write_sink(sink);
    }
    std::string text = fmt::format(
        "  CODA_DEVICE void section_{}(Accumulators& acc, const Tile& tile, int column0, int end,\n"
        "                              const Shared& shared, RingPosition& ring) {{\n",
        index_);
    if (!boxes_.empty()) text += "    int slot = 0;\n";
    // So that nothing of the tile before counts as needed, whatever this one leaves out.
    if (part_ == Part::early) text += "    clear_held(held_);\n";
    text +=
        "#pragma unroll kUnrolled\n"
        "    for (int i = 0; i < kWgBlocks; ++i) {\n"
        "      const Rows rows = rows_of(tile.c_row, i);\n";
    text += rows_.text();
    text += fmt::format(
        "#pragma unroll kUnrolled\n"
        "      for (int chunk = 0; chunk < kPartColumns / {0}; ++chunk) {{\n"
        "        const int chunk_column = column0 + chunk * {0};\n"
        "{1}"
        "        if (chunk_column < end) {{\n",
        layout_.chunk, takes_.text());
    text += before_.text();
    text += fmt::format(
        "#pragma unroll\n"
        "          for (int step = 0; step < {}; ++step) {{\n"
        "            const int column = chunk_column + step * {};\n"
        "            {}{{\n",
        layout_.chunk / layout_.step, layout_.step, ragged_chunks_ ? "if (column < end) " : "");
    text += body_.text();
    text += "            }\n" + after_.text() + "          }\n" + sends_.text() + "        }\n";
    if (!boxes_.empty())
      text += fmt::format("        close_slots(shared, ring, slot, {}, lane_);\n", boxes_.size());
    text += fmt::format(
        "        if constexpr (kMoves) next_columns<{}>(acc[0]);\n"
        "      }}\n"
        "      if constexpr (kMoves) next_block(acc);\n"
        "    }}\n",
        layout_.chunk);
    if (!boxes_.empty()) text += "    if (slot > 0) release_read_stage(shared, ring, lane_);\n";
    if (!slabs_.empty()) {
      text += "    sync_tile(warp_of(shared));\n" + slabs_ + "    sync_tile(warp_of(shared));\n";
      text += fmt::format(
          "    static_assert({} * 4 <= kSlabBytes, \"column sums exceed a warp's staging\");\n",
          slab_floats_);
    }
    return text + "  }\n\n";
  }

  /// The blocks of leave_N that make part `number` of what waits, of the chunk whose registers come
  /// first in held_: in one step, or, where columns do not meet, 16 columns a step, so that none
  /// takes longer than the multiplies beside it. `first` is the number of its first step and
  /// becomes that of the next part's.
  std::string write_part(std::size_t number, i64& first) {
    alone_ = deferral_.steps[number].size() == 1;
    for (const std::size_t sink : deferral_.steps[number]) write_sink(section_.sinks[sink]);
    const i64 all = layout_.chunk / layout_.step;
    const i64 steps = in_quarters_ && all % 4 == 0 ? 4 : 1;
    std::string text;
    for (i64 step = 0; step < steps; ++step) {
      text += fmt::format("    if (step_of_chunk == {} && chunk_column < end) {{\n", first++);
      if (in_quarters_ && step == 0) text += "      taken_ = next_buffer();\n";
      text += at_once_.text() + rows_.text() + before_.text();
      if (!body_.text().empty() || !after_.text().empty()) {
        text += fmt::format(
            "#pragma unroll\n"
            "      for (int step = {}; step < {}; ++step) {{\n"
            "        const int column = chunk_column + step * {};\n"
            "        {}{{\n",
            step * all / steps, (step + 1) * all / steps, layout_.step,
            ragged_chunks_ ? "if (column < end) " : "");
        text += body_.text() + "        }\n" + after_.text() + "      }\n";
      }
      if (step + 1 == steps) text += sends_.text();
      text += "    }\n";
    }
    return text;
  }

  bool in_quarters() const { return in_quarters_; }
  const std::vector<RingBox>& boxes() const { return boxes_; }
  const std::string& members() const { return members_; }
  std::string fetches() const { return fetches_.text(); }

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

  /// Two values a row, and where the text that loads them belongs: what finish() needs is fetched
  /// before the last multiplies of the tile have ended.
  Lines& declare(const std::string& name, const char* type) {
    if (part_ != Part::early) {
      rows_.add("{} {}[2];", type, name);
      return rows_;
    }
    members_ += fmt::format("  {} {}_{}_[kWgBlocks][2];\n", type, name, index_);
    rows_.add("const {} (&{})[2] = {}_{}_[i];", type, name, name, index_);
    return fetches_;
  }
  std::string fetched(const std::string& name) const {
    return part_ == Part::early ? fmt::format("{}_{}_[i]", name, index_) : name;
  }

  std::string col_name(const Ref& ref) {
    std::string& name = cols_[{ref.index, ref.offset}];
    if (name.empty()) {
      name = fresh(value_name(ref.index));
      const Source from = source_of(ref.index);
      declare(name, "float").add("load_rows<{}>({}, {}, rows, {});", element_text(from.dtype),
                                 fetched(name), operand(from.operand), ref.offset);
    }
    return name;
  }

  std::string target_name(const Ref& ref, i64 ignore, i64 first) {
    std::string& name = targets_[{ref.index, ref.offset, ignore, first}];
    if (name.empty()) {
      name = fresh(value_name(ref.index));
      const Source from = source_of(ref.index);
      declare(name, "int").add("load_targets<{}>({}, {}, rows, {}, {}ll, {});",
                               from.dtype == DType::i64, fetched(name), operand(from.operand),
                               ref.offset, ignore, first);
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
    if (part_ == Part::late && held_at_.count(index) > 0) {
      body_.add("float {}[{}];", made, values(index));
      body_.add("unpack_batch<{}, {}>({}, held_ + {} + step * {});",
                element_text(node(index).attrs.dtype), values(index), made, held_at_.at(index),
                values(index) / 2);
    } else {
      write_node(index, made);
    }
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
    if (const int map = form_.ring ? ring_map(n) : -1; map >= 0) {
      const std::string box = fresh(name + "_box");
      for (i64 at = 0; at < chunk_columns(index) / 64; ++at) {
        takes_.add("const u32 {}_{} = open_box(shared, ring, slot, {});", box, at, boxes_.size());
        boxes_.push_back({map, fmt::format("{} + {}", in_node("chunk_column", index), at * 64)});
      }
      // 16 columns at a time, when they are needed.
      before_.add("u32 {}[{}];", packed, count);
      const i64 wide = std::max<i64>(16, columns(index));
      body_.add("if (step * {} % {} == 0) {{", columns(index), wide);
      for (i64 unit = 0; unit < wide / 16; ++unit) {
        const std::string first = fmt::format("(step * {} / 16 + {})", columns(index), unit);
        std::string from = fmt::format("{}_0", box);
        for (i64 at = 1; at < chunk_columns(index) / 64; ++at)
          from = fmt::format("{} / 4 == {} ? {}_{} : {}", first, at, box, at, from);
        body_.add("  read_columns({0} + {1} * 4, {2}, {1} % 4, lane_);", packed, first, from);
      }
      body_.add("}}");
    } else {
      before_.add("u32 {}[{}];", packed, count);
      write_batch_load(index, type, packed, count);
    }
    body_.add("float {}[{}];", name, values(index));
    body_.add("unpack_batch<{}, {}>({}, {} + step * {});", type, values(index), name, packed,
              values(index) / 2);
  }
  void write_batch_load(i32 index, std::string_view type, const std::string& packed, i64 count) {
    const Node& n = node(index);
    before_.add("load_batch<{}, {}>({}, {}, rows, p_.rows, {}, {}, {}, {}, lane_);", type, count,
                packed, operand(n.operand), n.row, in_node("chunk_column", index), n.width, n.col);
  }
  /// The tensor map that a tile operand comes through, -1: none.
  int ring_map(const Node& n) const {
    for (std::size_t m = 0; m < plan_.loads.size(); ++m) {
      const EpilogueMap& map = plan_.loads[m];
      if (map.operand == n.operand && map.column == n.col && map.row == n.row &&
          map.columns == n.width)
        return static_cast<int>(m);
    }
    return -1;
  }

  /// Rounded for as long as it waits.
  void write_hold(i32 index) {
    const std::string from = array(index);
    body_.add("pack_batch<{}, {}>(held_ + (i * (kPartColumns / {}) + chunk) * kHeld_{} + {} + step * {}, {});",
              element_text(node(index).attrs.dtype), values(index), layout_.chunk, index_,
              held_at_.at(index), values(index) / 2, from);
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
      const int map = form_.staged ? store_map(plan_, program_, section_, sink) : -1;
      if (map >= 0 && part_ == Part::late && held_at_.count(index) > 0 &&
          node(index).attrs.dtype == to.dtype)
        return write_sends(at_once_, index, map, fmt::format("held_ + {}", held_at_.at(index)));
      const std::string from = array(index);
      if (map >= 0) return write_staged(sink, map, from);
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
    // Buffers are sent in the order in which they are taken, so only the first may be taken early.
    if (sends_.text().empty() && columns_here == 64 && !ragged_chunks_ &&
        (part_ == Part::late || staged_stores_here() > 1))
      return write_stage(index, map, type, packed, from);
    body_.add("pack_batch<{}, {}>({} + step * {}, {});", type, values(index), packed,
              values(index) / 2, from);
    write_sends(sends_, index, map, packed);
  }
  std::ptrdiff_t staged_stores_here() const {
    return std::count_if(section_.sinks.begin(), section_.sinks.end(), [&](const Sink& sink) {
      return store_map(plan_, program_, section_, sink) >= 0;
    });
  }
  /// As soon as 16 columns are there: a chunk of them is more registers than there are.
  void write_stage(i32 index, int map, std::string_view type, const std::string& packed,
                   const std::string& from) {
    std::string buffer = "taken_";
    in_quarters_ = part_ == Part::late && alone_ && form_.fine;
    if (!in_quarters_) {
      buffer = fresh("buffer");
      before_.add("const u32 {} = next_buffer();", buffer);
    }
    body_.add("pack_batch<{}, {}>({} + step * {}, {});", type, values(index), packed,
              values(index) / 2, from);
    const i64 wide = std::max<i64>(16, columns(index));
    body_.add("if ((step + 1) * {} % {} == 0) {{", columns(index), wide);
    for (i64 unit = 0; unit < wide / 16; ++unit) {
      const std::string first =
          fmt::format("((step + 1) * {} / 16 - {})", columns(index), wide / 16 - unit);
      body_.add("  stage_columns({0}, {1} + {2} * 4, {2}, lane_);", buffer, packed, first);
    }
    body_.add("}}");
    sends_.add("send_buffer({}, {}, {}, {} + 64 * i);", buffer, map, in_node("chunk_column", index),
               first_row());
  }
  const char* first_row() const { return part_ == Part::late ? "held_row_" : "tile.c_row"; }
  void write_sends(Lines& lines, i32 index, int map, const std::string& packed) {
    for (i64 box = 0; box < chunk_columns(index) / 64; ++box)
      lines.add("send({} + {}, {}, {} + {}, {} + 64 * i);", packed, box * 16, map,
                 in_node("chunk_column", index), box * 64,
                 first_row());
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
    const bool is_held = part_ == Part::late && held_at_.count(index) > 0;
    const std::string from =
        is_held ? fmt::format("held_ + {} + step * {}", held_at_.at(index), values(index) / 2)
                : array(index);
    const i64 granules = columns(index) / kColumnGranule;
    const i64 count = values(index) / granules;
    for (i64 g = 0; g < granules; ++g) {
      const std::string first =
          g == 0 ? column(index) : fmt::format("{} + {}", column(index), g * kColumnGranule);
      const std::string array_text = g == 0 ? from
                                            : fmt::format("{} + {}", from, g * count / (is_held ? 2 : 1));
      const std::string granule = granule_text(sink, first);
      body_.add("if ({} < {}) {{", first, node(index).width);
      body_.add("  float top[2], sum[2];");
      if (is_held)
        body_.add("  log_sum_held<{}, {}, {}>(top, sum, {}, {}, {}, lane_);",
                  element_text(node(index).attrs.dtype), count, ragged(index), array_text, first,
                  node(index).width);
      else
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
  const Deferral& deferral_;
  Part part_;
  std::vector<i64> acc_starts_;
  bool ragged_chunks_;
  EpilogueForm form_;
  Lines rows_, fetches_, takes_, before_, body_, after_, sends_, at_once_;
  std::vector<RingBox> boxes_;
  std::string members_;
  std::map<i32, i64> held_at_;
  bool alone_ = false;        ///< a part of what waits is one store
  bool in_quarters_ = false;  ///< and is computed 16 columns a step
  std::string slabs_;
  std::string slab_floats_ = "0";
  std::set<std::string> names_ = {"column0",      "end", "step", "chunk",
                                  "chunk_column", "i",   "sum",  "top", "part", "slot", "ring", "rows"};
  std::map<std::pair<i32, i64>, std::string> cols_;
  std::map<std::tuple<i32, i64, i64, i64>, std::string> targets_, row_vectors_, angles_;
  std::map<i32, std::string> scalars_, tiles_;
};

}  // namespace

SectionText section_text(const Program& program, const EpiloguePlan& plan, i32 section,
                         bool ragged_chunks, const EpilogueForm& form) {
  const LoweredSection& lowered = plan.lowered.sections[at(section)];
  const FragmentLayout layout = *fragment_layout(plan.lowered, lowered);
  Deferral deferral;
  if (form.deferred) deferral = defer_section(program, plan, lowered, layout);
  const bool defers = !deferral.steps.empty();
  SectionWriter writer(program, plan, section, ragged_chunks, form, deferral,
                       defers ? Part::early : Part::whole);
  SectionText text;
  text.functions = writer.write();
  text.boxes = writer.boxes();
  text.members = writer.members();
  text.fetches = writer.fetches();
  if (!defers) return text;
  text.held_registers = held_registers(plan, deferral, layout);
  std::string parts;
  for (std::size_t part = 0; part < deferral.steps.size(); ++part) {
    SectionWriter late(program, plan, section, ragged_chunks, form, deferral, Part::late);
    parts += late.write_part(part, text.steps);
    text.fills_slowly = text.fills_slowly || late.in_quarters();
  }
  text.functions += fmt::format(
      "  /// Step `number` of a tile: chunk by chunk.\n"
      "  CODA_DEVICE void leave_{0}(int number, int end) {{\n"
      "    constexpr int kChunks = kPartColumns / {1};\n"
      "    const int step_of_chunk = number % {2};\n"
      "    const int chunk = number / {2} % kChunks;\n"
      "    const int i = number / ({2} * kChunks);\n"
      "    const Rows rows = rows_of(held_row_, i);\n"
      "    const int chunk_column = held_column_ + chunk * {1};\n"
      "{3}"
      "    if (step_of_chunk == {2} - 1) next_held<kHeld_{0}>(held_);\n"
      "    if (number + 1 == kWgBlocks * kChunks * {2}) next_step_ = kNothing;\n"
      "  }}\n\n",
      section, layout.chunk, text.steps, parts);
  return text;
}

}  // namespace coda::cuda
