// What leaves a section, as text: stores, directly or by TMA, and reductions.
#include <algorithm>

#include "backend/cuda/epilogue_section_writer.h"
#include "backend/cuda/epilogue_source_stores.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

using i32 = std::int32_t;
using i64 = std::int64_t;
using lowering::Node;
using lowering::Ref;
using lowering::Sink;

void SectionWriter::write_sink(const Sink& sink) {
  const i32 index = sink.node;
  const int l = layout(index);
  if (sink.op == Op::store_tile) {
    const Operand& to = program_.operands[at(sink.operand)];
    const int map = form_.staged ? store_map(plan_, program_, section_, sink) : -1;
    if (map >= 0 && part_ == Part::late && held_at_.count(index) > 0 &&
        node(index).attrs.dtype == to.dtype)
      return write_sends(at_once_, index, map, fmt::format("held_ + {}", held_at_.at(index)));
    const std::string from = unrounded(index, to.dtype);
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

void SectionWriter::write_staged(const Sink& sink, int map, const std::string& from) {
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

std::ptrdiff_t SectionWriter::staged_stores_here() const {
  return std::count_if(section_.sinks.begin(), section_.sinks.end(), [&](const Sink& sink) {
    return store_map(plan_, program_, section_, sink) >= 0;
  });
}

void SectionWriter::write_stage(i32 index, int map, std::string_view type,
                                const std::string& packed, const std::string& from) {
  const std::string buffer = fresh("buffer");
  before_.add("const u32 {} = next_buffer();", buffer);
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

void SectionWriter::write_sends(Lines& lines, i32 index, int map, const std::string& packed) {
  for (i64 box = 0; box < chunk_columns(index) / 64; ++box)
    lines.add("send({} + {}, {}, {} + {}, {} + 64 * i);", packed, box * 16, map,
              in_node("chunk_column", index), box * 64, first_row());
}

std::string SectionWriter::granule_text(const Sink& sink, const std::string& first) const {
  return fmt::format("({} + {}) / {}", first, sink.col, kColumnGranule);
}

bool SectionWriter::is_exact_product(i32 index) const {
  const auto is_short = [&](const Ref& arg) {
    if (arg.kind != Ref::Kind::tile) return false;
    const Node& n = node(arg.index);
    return (n.op == Op::cast && is_16_bit(n.attrs.dtype)) ||
           (n.op == Op::load_tile && is_16_bit(program_.operands[at(n.operand)].dtype));
  };
  const Node& n = node(index);
  return n.op == Op::mul && is_short(n.args[0]) && is_short(n.args[1]);
}

void SectionWriter::write_reduction(const Sink& sink) {
  const i32 index = sink.node;
  const int l = layout(index);
  const bool is_max = sink.op == Op::row_max;
  const bool is_pick = sink.op == Op::pick;
  const bool is_exact = !is_max && !is_pick && is_exact_product(index);
  const std::string from = array(is_exact ? node(index).args[0].index : index);
  const std::string factor = is_exact ? array(node(index).args[1].index) : "";
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
  const char* kind = is_max ? "max" : is_pick ? "pick" : "sum";
  const i64 n = columns(index);
  const i64 granules = std::max<i64>(1, n / kColumnGranule);
  const i64 count = values(index) / granules;
  for (i64 g = 0; g < granules; ++g) {
    Lines& lines = n < kColumnGranule ? after_ : body_;
    const std::string first =
        g == 0 ? column(index) : fmt::format("{} + {}", column(index), g * kColumnGranule);
    const auto part = [&](const std::string& name) {
      return g == 0 ? name : fmt::format("{} + {}", name, g * count);
    };
    const std::string array_text = is_exact ? part(from) + ", " + part(factor) : part(from);
    body_.add("add_{}<{}, {}, {}>({}, {}, {}, {}{}, lane_);", is_exact ? "products" : kind, l,
              count, ragged(index), name, array_text, first, node(index).width, target);
    // The granule's first column, seen from its last step.
    std::string start = first;
    std::string condition = fmt::format("{} < {}", start, node(index).width);
    if (n < kColumnGranule) {
      const i64 steps = kColumnGranule / n;
      start = in_node(fmt::format("(column - {})", (steps - 1) * layout_.step), index);
      condition =
          fmt::format("step % {} == {} && {} < {}", steps, steps - 1, start, in_node("end", index));
    }
    lines.add("if ({}) {{", condition);
    lines.add("  finish_{}<{}>({});", kind, l, name);
    lines.add("  store_granule({}, {}, {}, rows, lane_);", name, operand(sink.operand),
              granule_text(sink, start));
    lines.add("  {0}[0] = {0}[1] = {1};", name, identity);
    lines.add("}}");
  }
}

void SectionWriter::write_log_sum(const Sink& sink) {
  const i32 index = sink.node;
  const int l = layout(index);
  const bool is_held = part_ == Part::late && held_at_.count(index) > 0;
  const std::string from =
      is_held ? fmt::format("held_ + {} + step * {}", held_at_.at(index), values(index) / 2)
              : array(index);
  const std::string values_text =
      is_held ? fmt::format("HeldValues<{}>", element_text(node(index).attrs.dtype))
              : "ArrayValues";
  const i64 granules = columns(index) / kColumnGranule;
  const i64 count = values(index) / granules;
  const bool is_second = part_ == Part::late && deferral_.steps[step_].number == 1;
  if (part_ == Part::late && !is_second)
    members_ += fmt::format("  float top_{}_{}_[{}][2];\n", sink.operand, index_, granules);
  for (i64 g = 0; g < granules; ++g) {
    const std::string first =
        g == 0 ? column(index) : fmt::format("{} + {}", column(index), g * kColumnGranule);
    const std::string start =
        g == 0 ? from : fmt::format("{} + {}", from, g * count / (is_held ? 2 : 1));
    const std::string granule = granule_text(sink, first);
    const auto call = [&](const char* function, const std::string& to) {
      body_.add("  log_sum_{}<{}, {}, {}>({}, {}{{{}}}, {}, {}, lane_);", function, l, count,
                ragged(index), to, values_text, start, first, node(index).width);
    };
    // What waits does it in two steps.
    const std::string top =
        part_ == Part::late ? fmt::format("top_{}_{}_[{}]", sink.operand, index_, g) : "top";
    body_.add("if ({} < {}) {{", first, node(index).width);
    if (part_ != Part::late) body_.add("  float top[2];");
    if (!is_second) {
      call("maximum", top);
      body_.add("  store_granule({}, {}, {}, rows, lane_);", top, operand(sink.operand), granule);
    }
    if (is_second || part_ != Part::late) {
      body_.add("  float sum[2];");
      call("terms", top + ", sum");
      body_.add("  store_granule(sum, {0}, {0}.rows / 2 + {1}, rows, lane_);",
                operand(sink.operand), granule);
    }
    body_.add("}}");
  }
}

void SectionWriter::write_column_sum(const Sink& sink) {
  const i32 index = sink.node;
  const std::string from = array(index);
  const std::string columns_text =
      fmt::format("kPartColumns * {} / {}", layout_.acc_scale, scale(index));
  const std::string base = slab_floats_;
  body_.add("sum_slab<{}, {}>(staging_ + kSlabOffset, {} + i * ({}), {}, {}, rows, lane_);",
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

}  // namespace coda::cuda
