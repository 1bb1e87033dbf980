// The text of one member function of a section: what SectionText is put together from. Its parts
// are defined in epilogue_source_section.cpp (the whole, and vectors), epilogue_section_nodes.cpp
// (values) and epilogue_section_sinks.cpp (what leaves).
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cuda/epilogue_source_deferral.h"
#include "backend/cuda/epilogue_source_layout.h"
#include "backend/cuda/epilogue_source_section.h"

namespace coda::cuda {

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
  SectionWriter(const Program& program, const EpiloguePlan& plan, std::int32_t section,
                bool ragged_chunks, const EpilogueForm& form, const Deferral& deferral, Part part);

  /// section_N, of a whole tile.
  std::string write();
  /// The block of leave_N that does step `number` of what waits, of the chunk whose registers come
  /// first in held_.
  std::string write_step(std::size_t number);

  const std::vector<RingBox>& boxes() const { return boxes_; }
  const std::string& members() const { return members_; }
  std::string fetches() const { return fetches_.text(); }

 private:
  using i32 = std::int32_t;
  using i64 = std::int64_t;
  using Node = lowering::Node;
  using Ref = lowering::Ref;
  using Sink = lowering::Sink;

  static std::size_t at(i32 index) { return static_cast<std::size_t>(index); }
  static bool is_interleaved(const Node& node) {
    return node.attrs.layout == PairLayout::interleaved;
  }

  // --- facts ---
  const Node& node(i32 index) const { return plan_.lowered.nodes[at(index)]; }
  i64 scale(i32 index) const { return plan_.lowered.scale[at(index)]; }
  int layout(i32 index) const;
  /// Columns of a node in a chunk, and values of it that a lane holds.
  i64 columns(i32 index) const { return layout_.step * layout_.acc_scale / scale(index); }
  i64 values(i32 index) const;
  bool ragged(i32 index) const { return node(index).width % columns(index) != 0; }
  /// The chunk's first column, as a column of the node.
  std::string in_node(std::string_view name, i32 index) const;
  std::string column(i32 index) const { return in_node("column", index); }
  std::string fresh(std::string name);
  std::string value_name(i32 value) const;
  std::string node_base_name(i32 index) const;
  std::string node_name(i32 index) { return fresh(node_base_name(index)); }
  static std::string operand(i32 index) { return fmt::format("p_.operands[{}]", index); }
  /// Where a vector's numbers are: an operand of the program, or a slot made before.
  struct Source {
    i32 operand = -1;
    DType dtype = DType::f32;
  };
  Source source_of(i32 value, i32 frequency = -1) const;

  // --- vectors ---
  /// Two values a row, and where the text that loads them belongs: what finish() needs is fetched
  /// before the last multiplies of the tile have ended, what the steps need when it is held.
  Lines& declare(const std::string& name, const char* type);
  std::string member(const std::string& name) const;
  std::string fetched(const std::string& name) const;
  std::string col_name(const Ref& ref);
  std::string target_name(const Ref& ref, i64 ignore, i64 first);
  std::string row_name(const Ref& ref, i32 reader);
  std::string scalar_text(i32 value);

  // --- nodes ---
  /// The node's value x.
  std::string element(i32 index, std::string_view x);
  /// The lane's values as an array.
  std::string array(i32 index);
  std::string acc_start(i32 index) const;
  /// An argument of an elementwise op, for value x of the reader.
  std::string argument(const Ref& ref, i32 reader);
  const std::string& tile_name(i32 index);
  void write_node(i32 index, const std::string& name);
  static bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
  /// Columns of a node in a chunk.
  i64 chunk_columns(i32 index) const { return layout_.chunk * layout_.acc_scale / scale(index); }
  /// A tile operand in the accumulator's layout: a whole chunk is on its way before the first step
  /// waits for any of it.
  void write_batch(i32 index, const std::string& name);
  void write_batch_load(i32 index, std::string_view type, const std::string& packed, i64 count);
  /// The tensor map that a tile operand comes through, -1: none.
  int ring_map(const Node& n) const;
  /// The lane's values before a cast that packing them does as well.
  std::string unrounded(i32 index, DType dtype);
  /// Rounded for as long as it waits.
  void write_hold(i32 index);
  /// Where value x of one half of pairs lies in the pairs' own array.
  static std::string split_index(const Node& n, int l);
  static std::string join_index(const Node& n, int l);
  static std::string is_first(const Node& n, int l);
  /// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; unrotate turns the other way.
  void write_rotation(i32 index, const std::string& name);
  void write_segment_sum(i32 index, const std::string& name);

  // --- sinks ---
  void write_sink(const Sink& sink);
  /// Packed step by step, sent by TMA when the chunk is complete.
  void write_staged(const Sink& sink, int map, const std::string& from);
  std::ptrdiff_t staged_stores_here() const;
  /// As soon as 16 columns are there: a chunk of them is more registers than there are.
  void write_stage(i32 index, int map, std::string_view type, const std::string& packed,
                   const std::string& from);
  const char* first_row() const { return part_ == Part::late ? "held_row_" : "tile.c_row"; }
  void write_sends(Lines& lines, i32 index, int map, const std::string& packed);
  std::string granule_text(const Sink& sink, const std::string& first) const;
  /// A product of 16-bit values, which fp32 holds exactly.
  bool is_exact_product(i32 index) const;
  /// Sums, maxima, picks: gathered step by step, stored at the end of each granule.
  void write_reduction(const Sink& sink);
  void write_log_sum(const Sink& sink);
  void write_column_sum(const Sink& sink);

  const Program& program_;
  const EpiloguePlan& plan_;
  i32 index_;
  const lowering::LoweredSection& section_;
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
  std::size_t step_ = 0;  ///< of what waits
  std::string slabs_;
  std::string slab_floats_ = "0";
  std::set<std::string> names_ = {"column0", "end", "step", "chunk", "chunk_column", "i",
                                  "sum",     "top", "part", "slot",  "ring",         "rows"};
  std::map<std::pair<i32, i64>, std::string> cols_;
  std::map<std::tuple<i32, i64, i64, i64>, std::string> targets_, row_vectors_, angles_;
  std::map<i32, std::string> scalars_, tiles_;
};

}  // namespace coda::cuda
