// A section's functions as text: their frames, and the vectors they read.
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

SectionWriter::SectionWriter(const Program& program, const EpiloguePlan& plan, i32 section,
                             bool ragged_chunks, const EpilogueForm& form, const Deferral& deferral,
                             Part part)
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

std::string SectionWriter::write() {
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

std::string SectionWriter::write_step(std::size_t number) {
  step_ = number;
  write_sink(section_.sinks[deferral_.steps[number].sink]);
  std::string text = fmt::format("    if (step_of_chunk == {} && chunk_column < end) {{\n", number);
  text += at_once_.text() + rows_.text() + before_.text();
  if (!body_.text().empty() || !after_.text().empty()) {
    text += fmt::format(
        "#pragma unroll\n"
        "      for (int step = 0; step < {}; ++step) {{\n"
        "        const int column = chunk_column + step * {};\n"
        "        {}{{\n",
        layout_.chunk / layout_.step, layout_.step, ragged_chunks_ ? "if (column < end) " : "");
    text += body_.text() + "        }\n" + after_.text() + "      }\n";
  }
  return text + sends_.text() + "    }\n";
}

int SectionWriter::layout(i32 index) const {
  const int own = layout_.layout[at(index)];
  return own == kAnyLayout ? 2 : own;
}

i64 SectionWriter::values(i32 index) const {
  const int l = layout(index);
  return columns(index) / group_columns(l) * group_values(l);
}

std::string SectionWriter::in_node(std::string_view name, i32 index) const {
  const i64 times = layout_.acc_scale, over = scale(index);
  if (times == over) return std::string(name);
  if (times % over == 0) return fmt::format("{} * {}", name, times / over);
  return fmt::format("{} / {}", name, over / times);
}

std::string SectionWriter::fresh(std::string name) {
  if (!names_.insert(name).second) {
    int suffix = 2;
    while (!names_.insert(fmt::format("{}_{}", name, suffix)).second) ++suffix;
    name = fmt::format("{}_{}", name, suffix);
  }
  return name;
}

std::string SectionWriter::value_name(i32 value) const {
  const Value& v = program_.values[at(value)];
  if (!v.name.empty()) return identifier_text(v.name);
  return fmt::format("{}_{}", name_of(v.op), value);
}

std::string SectionWriter::node_base_name(i32 index) const {
  const i32 value = plan_.lowered.value_of[at(index)];
  return value >= 0 ? value_name(value) : fmt::format("{}_n{}", name_of(node(index).op), index);
}

SectionWriter::Source SectionWriter::source_of(i32 value, i32 frequency) const {
  const Value& v = program_.values[at(value)];
  if (frequency < 0 && is_direct(program_, value))
    return {v.operand, program_.operands[at(v.operand)].dtype};
  for (std::size_t i = 0; i < plan_.vectors.size(); ++i)
    if (plan_.vectors[i].value == value && plan_.vectors[i].frequency == frequency)
      return {static_cast<i32>(program_.operands.size() + i), DType::f32};
  throw_error<InternalError>("epilogue: {}: no slot for vector %{}", program_.name, value);
}

Lines& SectionWriter::declare(const std::string& name, const char* type) {
  if (part_ == Part::whole) {
    rows_.add("{} {}[2];", type, name);
    return rows_;
  }
  members_ += fmt::format("  {} {}[kWgBlocks][2];\n", type, member(name));
  if (part_ == Part::early)
    rows_.add("const {} (&{})[2] = {}[i];", type, name, member(name));
  else
    rows_.add("const {0} {1}[2] = {{of_block({2}, i, 0), of_block({2}, i, 1)}};", type, name,
              member(name));
  return fetches_;
}

std::string SectionWriter::member(const std::string& name) const {
  return part_ == Part::late ? fmt::format("{}_{}_step{}_", name, index_, step_)
                             : fmt::format("{}_early_", name);
}

std::string SectionWriter::fetched(const std::string& name) const {
  return part_ == Part::whole ? name : member(name) + "[i]";
}

std::string SectionWriter::col_name(const Ref& ref) {
  std::string& name = cols_[{ref.index, ref.offset}];
  if (name.empty()) {
    name = fresh(value_name(ref.index));
    const Source from = source_of(ref.index);
    declare(name, "float")
        .add("load_rows<{}>({}, {}, rows, {});", element_text(from.dtype), fetched(name),
             operand(from.operand), ref.offset);
  }
  return name;
}

std::string SectionWriter::target_name(const Ref& ref, i64 ignore, i64 first) {
  std::string& name = targets_[{ref.index, ref.offset, ignore, first}];
  if (name.empty()) {
    name = fresh(value_name(ref.index));
    const Source from = source_of(ref.index);
    declare(name, "int")
        .add("load_targets<{}>({}, {}, rows, {}, {}ll, {});", from.dtype == DType::i64,
             fetched(name), operand(from.operand), ref.offset, ignore, first);
  }
  return name;
}

std::string SectionWriter::row_name(const Ref& ref, i32 reader) {
  const int l = layout(reader);
  std::string& name = row_vectors_[{ref.index, ref.offset, scale(reader), l}];
  if (name.empty()) {
    name = fresh(value_name(ref.index));
    const Source from = source_of(ref.index);
    const i64 count = values(reader) / 2;
    body_.add("float {}[{}];", name, count);
    body_.add("load_columns<{}, {}, {}, {}>({}, {}, {}, {}, {}, lane_);", element_text(from.dtype),
              l, count, ragged(reader), name, operand(from.operand), column(reader),
              node(reader).width, ref.offset);
  }
  return name;
}

std::string SectionWriter::scalar_text(i32 value) {
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

SectionText section_text(const Program& program, const EpiloguePlan& plan, i32 section,
                         bool ragged_chunks, const EpilogueForm& form) {
  const lowering::LoweredSection& lowered =
      plan.lowered.sections[static_cast<std::size_t>(section)];
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
  text.steps = static_cast<i64>(deferral.steps.size());
  text.held_registers = held_registers(plan, deferral, layout);
  std::string steps, fetches;
  for (std::size_t step = 0; step < deferral.steps.size(); ++step) {
    SectionWriter late(program, plan, section, ragged_chunks, form, deferral, Part::late);
    steps += late.write_step(step);
    text.members += late.members();
    fetches += late.fetches();
  }
  if (!fetches.empty())
    text.functions += fmt::format(
        "  /// What the steps of a tile read of its rows.\n"
        "  CODA_DEVICE void fetch_{}() {{\n"
        "#pragma unroll\n"
        "    for (int i = 0; i < kWgBlocks; ++i) {{\n"
        "      const Rows rows = rows_of(held_row_, i);\n"
        "{}"
        "    }}\n"
        "  }}\n\n",
        section, fetches);
  text.fetches_late = !fetches.empty();
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
      section, layout.chunk, text.steps, steps);
  return text;
}

}  // namespace coda::cuda
