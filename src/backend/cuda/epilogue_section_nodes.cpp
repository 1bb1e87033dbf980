// Values of a section as text: what a lane computes of each node, step by step.
#include <algorithm>

#include "backend/cuda/epilogue_section_writer.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

using i32 = std::int32_t;
using i64 = std::int64_t;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;

std::string SectionWriter::element(i32 index, std::string_view x) {
  if (node(index).op == Op::acc)
    return fmt::format("acc[kMoves ? 0 : i][{} + {}]", acc_start(index), x);
  return fmt::format("{}[{}]", tile_name(index), x);
}

std::string SectionWriter::array(i32 index) {
  if (node(index).op == Op::acc) return fmt::format("&acc[kMoves ? 0 : i][{}]", acc_start(index));
  return tile_name(index);
}

std::string SectionWriter::acc_start(i32 index) const {
  const auto found = std::find(acc_starts_.begin(), acc_starts_.end(), node(index).col);
  const auto part = found - acc_starts_.begin();
  std::string start =
      fmt::format("(kMoves ? 0 : chunk * {}) + step * {}", layout_.chunk / 2, layout_.step / 2);
  if (part > 0) start = fmt::format("{} * kPartColumns / 2 + {}", part, start);
  return start;
}

std::string SectionWriter::argument(const Ref& ref, i32 reader) {
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

const std::string& SectionWriter::tile_name(i32 index) {
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

void SectionWriter::write_node(i32 index, const std::string& name) {
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
                element_text(program_.operands[at(n.operand)].dtype), l, count, ragged(index), name,
                operand(n.operand), n.row, column(index), n.width, n.col);
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
      return loop(element(n.args[0].index,
                          fmt::format("x / {} * 2 + row_of<{}>(x)", groups * group_values(l), l)));
    }
    case Op::cast:
      if (!is_16_bit(n.attrs.dtype) || n.args[0].kind != Ref::Kind::tile || count % 2 != 0) break;
      {
        const std::string from = array(n.args[0].index);
        body_.add("float {}[{}];", name, count);
        body_.add("round_batch<{}, {}>({}, {});", element_text(n.attrs.dtype), count, name, from);
      }
      return;
    default:
      break;
  }
  const std::string a = argument(n.args[0], index);
  const std::string b = n.args.size() > 1 ? argument(n.args[1], index) : "";
  loop(op_text(n.op, n.attrs, a, b));
}

void SectionWriter::write_batch(i32 index, const std::string& name) {
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

void SectionWriter::write_batch_load(i32 index, std::string_view type, const std::string& packed,
                                     i64 count) {
  const Node& n = node(index);
  before_.add("load_batch<{}, {}>({}, {}, rows, p_.rows, {}, {}, {}, {}, lane_);", type, count,
              packed, operand(n.operand), n.row, in_node("chunk_column", index), n.width, n.col);
}

int SectionWriter::ring_map(const Node& n) const {
  for (std::size_t m = 0; m < plan_.loads.size(); ++m) {
    const EpilogueMap& map = plan_.loads[m];
    if (map.operand == n.operand && map.column == n.col && map.row == n.row &&
        map.columns == n.width)
      return static_cast<int>(m);
  }
  return -1;
}

std::string SectionWriter::unrounded(i32 index, DType dtype) {
  const Node& n = node(index);
  const bool rounds = n.op == Op::cast && n.attrs.dtype == dtype && is_16_bit(dtype) &&
                      n.args[0].kind == Ref::Kind::tile;
  const bool waits = part_ == Part::late && held_at_.count(index) > 0;
  return array(rounds && !waits ? n.args[0].index : index);
}

void SectionWriter::write_hold(i32 index) {
  const std::string from = unrounded(index, node(index).attrs.dtype);
  body_.add(
      "pack_batch<{}, {}>(held_ + (i * (kPartColumns / {}) + chunk) * kHeld_{} + {} + step * {}, "
      "{});",
      element_text(node(index).attrs.dtype), values(index), layout_.chunk, index_,
      held_at_.at(index), values(index) / 2, from);
}

std::string SectionWriter::split_index(const Node& n, int l) {
  const int second = n.op == Op::second_of_pair ? 1 : 0;
  if (is_interleaved(n)) {
    if (l == 0) return fmt::format("(x / 2 * 2 + {}) * 2 + x % 2", second);
    return fmt::format("x / {0} * {1} + x % {0} * 2 + {2}", l, 2 * l, second);
  }
  const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);  // values
  return fmt::format("x / {0} * {1} + x % {0} + {2}", half, 2 * half, second * half);
}

std::string SectionWriter::join_index(const Node& n, int l) {
  if (is_interleaved(n)) {
    if (l == 0) return "x / 4 * 2 + x % 2";
    return fmt::format("x / {0} * {1} + x % {0} / 2", l, l / 2);
  }
  const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);
  return fmt::format("x / {1} * {0} + x % {0}", half, 2 * half);
}

std::string SectionWriter::is_first(const Node& n, int l) {
  if (is_interleaved(n)) return l == 0 ? "x / 2 % 2 == 0" : "x % 2 == 0";
  const i64 half = n.attrs.period / 2 / group_columns(l) * group_values(l);
  return fmt::format("x / {} % 2 == 0", half);
}

void SectionWriter::write_rotation(i32 index, const std::string& name) {
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
  std::string& angles = angles_[{n.args[1].index, n.args[2].index, n.args[1].offset, angle_layout}];
  if (angles.empty()) {
    angles = fresh("angle");
    body_.add("float {0}_cos[2][{1}], {0}_sin[2][{1}];", angles, frequencies);
    body_.add("load_angles<{}, {}, {}>({}_cos, {}_sin, {}, rows, {}, lane_);", angle_layout,
              frequencies, period / 2, angles, angles, operand(table.operand), n.args[1].offset);
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

void SectionWriter::write_segment_sum(i32 index, const std::string& name) {
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

}  // namespace coda::cuda
