#include "backend/cpu/compiled.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "backend/cpu/gemm.h"
#include "base/check.h"
#include "coda/graph.h"

namespace coda::cpu {
namespace {

using i32 = std::int32_t;

// Sizes in elements, the fastest of some that were tried on a Zen 3 (512 KiB of second-level
// cache). A tile's accumulator stays in the second and third level, a strip's values near the
// first; larger strips than the first level holds still win, since instructions are spread over
// more. None of these changes a bit of any result.
constexpr i64 kTileRows = 256;
constexpr i64 kTileCols = 768;  ///< accumulator columns of a tile, over all blocks
constexpr i64 kStripCols = 384;
constexpr i64 kStripFloats = 4096;
constexpr i64 kTilesPerThread = 4;
constexpr i64 kEnoughTiles = 16;           ///< oneDNN, whatever the number of threads
constexpr i64 kPackedRowTiles = 4;         ///< from which on B is packed once for all
constexpr i64 kMostPacked = i64{2} << 20;  ///< floats; more would be felt in memory
constexpr std::size_t kMaxBlocks = 64;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }
i64 divide_up(i64 n, i64 by) { return (n + by - 1) / by; }
i64 round_up(i64 n, i64 by) { return divide_up(n, by) * by; }

bool is_vector(const Value& v) {
  return v.kind == Kind::col || v.kind == Kind::row || v.kind == Kind::scalar;
}
bool is_store(Op op) {
  return op == Op::store_tile || op == Op::store_partial || op == Op::store_vector;
}
bool is_integer(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

i64 resolve(const Dim& dim, i64 tokens) {
  return dim.symbol == Dim::Symbol::M ? tokens * dim.num / dim.den : dim.num / dim.den;
}

/// Columns of width, cut into equal parts that are multiples of unit and at most about `wanted`.
i64 even_part(i64 width, i64 wanted, i64 unit) {
  const i64 most = std::max(unit, wanted / unit * unit);
  if (width <= most) return width;
  return std::min(width, round_up(divide_up(width, divide_up(width, most)), unit));
}

}  // namespace

CompiledProgram::CompiledProgram(std::shared_ptr<const Program> program, i64 max_tokens,
                                 CpuGemm gemm)
    : program_(std::move(program)) {
  mark_locals();
  place_vectors(max_tokens);
  make_sections();
  choose_tiles();
  choose_gemm(gemm);
  place_packed(max_tokens);
  measure();
}

/// Finds what waits for a row program's own reductions, and how many of them one after another.
void CompiledProgram::mark_locals() {
  const std::size_t n = program_->values.size();
  slots_.assign(n, {});
  level_.assign(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const Value& v = program_->values[i];
    bool local = false;
    for (const i32 arg : v.args) {
      level_[i] = std::max(level_[i], level_[at(arg)]);
      local = local || slots_[at(arg)].local;
    }
    if (program_->form != Form::rows) continue;
    const bool reduction = is_tile_reduction(v.op) && v.op != Op::col_sum;
    if (reduction) {
      reductions_.push_back(static_cast<i32>(i));
      ++level_[i];
    }
    if (v.op == Op::col_sum || v.op == Op::sum || v.op == Op::store_partial)
      row_unit_ = kRowGranule;
    slots_[i].local = reduction || (local && v.kind == Kind::col);
  }
}

void CompiledProgram::place_vectors(i64 max_tokens) {
  const i64 rows = std::max(max_tokens, resolve(program_->rows, max_tokens));
  std::vector<i32> prologue;
  for (std::size_t i = 0; i < program_->values.size(); ++i) {
    const Value& v = program_->values[i];
    VectorSlot& slot = slots_[i];
    if (is_store(v.op)) {
      const Value& stored = program_->values[at(v.args[0])];
      const bool of_tiles = !is_vector(stored) || is_tile_reduction(stored.op);
      const bool waits = slots_[at(v.args[0])].local || level_[at(v.args[0])] > 0;
      if (!of_tiles && !waits) prologue.push_back(static_cast<i32>(i));
      continue;
    }
    if (v.op == Op::sum && v.partial && !slots_[at(v.args[0])].local)
      prologue.push_back(static_cast<i32>(i));  // nothing to compute, but its store comes later
    if (!is_vector(v) || v.partial) continue;
    if (is_tile_reduction(v.op) && !slot.local) continue;
    slot.used = true;
    slot.integer = v.op == Op::load_col && is_integer(program_->operands[at(v.operand)].dtype);
    slot.length = v.kind == Kind::col ? -1 : v.kind == Kind::row ? v.cols.num : 1;
    if (slot.local) {
      slot.offset = local_floats_;
      local_floats_ += kRowGranule * (is_online(v.op) ? 2 : 1);
      continue;
    }
    if (level_[i] > 0) continue;
    slot.offset = shared_floats_;
    if (!slot.integer) shared_floats_ += padded(slot.length < 0 ? rows : slot.length) + kPad;
    prologue.push_back(static_cast<i32>(i));
  }
  for (const Value& v : program_->values) {
    if (v.op != Op::rotate && v.op != Op::unrotate) continue;
    AngleTable table{v.args[1], v.args[2], program_->values[at(v.args[2])].cols.num, 0};
    const auto same = [&](const AngleTable& t) {
      return t.position == table.position && t.frequency == table.frequency;
    };
    if (std::any_of(tables_.begin(), tables_.end(), same)) continue;
    table.offset = shared_floats_;
    shared_floats_ += padded(rows * table.period);
    tables_.push_back(table);
  }
  prologue_ = std::make_unique<VectorCode>(*program_, prologue, tables_);
}

void CompiledProgram::make_sections() {
  const Lowered lowered = lower(*program_);
  whole_ = lowered.whole;
  for (const LoweredSection& from : lowered.sections) {
    Section section;
    section.width = from.width;
    section.unit = from.unit;
    section.rows = from.rows;
    for (const i32 index : from.nodes) {
      const Node& node = lowered.nodes[at(index)];
      if (node.op == Op::acc)
        section.blocks.push_back({index, node.col, node.row, lowered.scale[at(index)], node.width});
    }
    internal_check(section.blocks.size() <= kMaxBlocks, "cpu: {}: {} accumulator blocks",
                   program_->name, section.blocks.size());
    sections_.push_back(std::move(section));
  }
  make_phases(lowered);
}

/// Sinks run in the first phase in which everything they read is there.
void CompiledProgram::make_phases(const Lowered& lowered) {
  std::vector<int> level(lowered.nodes.size(), 0);
  int phases = 1;
  for (std::size_t i = 0; i < lowered.nodes.size(); ++i) {
    for (const Ref& arg : lowered.nodes[i].args) {
      const int needs = arg.kind == Ref::Kind::tile ? level[at(arg.index)] : level_[at(arg.index)];
      level[i] = std::max(level[i], needs);
    }
    phases = std::max(phases, level[i] + 1);
  }
  for (const int value_level : level_) phases = std::max(phases, value_level + 1);
  if (program_->form != Form::rows) phases = 1;
  for (std::size_t s = 0; s < sections_.size(); ++s) {
    const LoweredSection& from = lowered.sections[s];
    for (int phase = 0; phase < phases; ++phase) {
      std::vector<Sink> sinks;
      for (const Sink& sink : from.sinks)
        if (level[at(sink.node)] == phase) sinks.push_back(sink);
      sections_[s].phases.emplace_back(*program_, lowered, from, sinks, sections_[s].blocks, slots_,
                                       tables_);
    }
  }
  if (program_->form != Form::rows) return;
  for (int phase = 0; phase < phases; ++phase) {
    std::vector<i32> online, cols;
    for (std::size_t i = 0; i < program_->values.size(); ++i) {
      const Value& v = program_->values[i];
      if (level_[i] != phase + 1) continue;
      if (is_online(v.op)) online.push_back(static_cast<i32>(i));
      const bool stores_local = is_store(v.op) && v.op != Op::store_tile &&
                                program_->values[at(v.args[0])].op != Op::col_sum;
      const bool local_op = slots_[i].local && !is_tile_reduction(v.op);
      if (stores_local || local_op) cols.push_back(static_cast<i32>(i));
    }
    finishes_.push_back({std::move(online), VectorCode(*program_, cols, {})});
  }
}

/// Tile and strip sizes.
void CompiledProgram::choose_tiles() {
  strip_rows_ = 64;
  for (Section& section : sections_) {
    double acc_cols = 0;  // of one column of the section
    for (const AccBlock& block : section.blocks)
      acc_cols += static_cast<double>(block.width) / static_cast<double>(section.width);
    const i64 wanted = static_cast<i64>(static_cast<double>(kTileCols) / std::max(acc_cols, 0.5));
    section.tile_cols = even_part(section.width, wanted, section.unit);
    section.strip_cols = even_part(section.tile_cols, kStripCols, section.unit);
    const auto rows = static_cast<std::uint64_t>(kStripFloats / padded(section.strip_cols));
    section.strip_rows = std::clamp<i64>(static_cast<i64>(std::bit_floor(rows)), 1, 64);
    strip_rows_ = std::min(strip_rows_, section.strip_rows);
  }
}

void CompiledProgram::choose_gemm(CpuGemm gemm) {
  if (program_->form != Form::gemm) return;
  const Gemm& product = program_->gemm;
  const auto dtype_of = [&](i32 operand) { return program_->operands[at(operand)].dtype; };
  GemmShape shape{program_->name, dtype_of(product.a), product.transpose_a, product.transpose_b};
  for (const i32 b : product.b)
    if (dtype_of(b) != shape.dtype) return;  // the built-in kernel widens either side
  if (product.k.symbol != Dim::Symbol::M) shape.k = product.k.num;
  for (const Section& section : sections_) {
    for (const AccBlock& block : section.blocks) {
      if (whole_) {
        shape.widths.insert(padded(block.width));
        continue;
      }
      const i64 edge = section.width % section.tile_cols;
      shape.widths.insert(padded(section.tile_cols / block.scale));
      if (edge > 0) shape.widths.insert(padded(edge / block.scale));
    }
  }
  onednn_ = make_onednn_gemm(gemm, shape);
}

/// What many row tiles read is packed once.
void CompiledProgram::place_packed(i64 max_tokens) {
  const Gemm& gemm = program_->gemm;
  if (program_->form != Form::gemm || onednn_) return;
  const auto size = [&](const Dim& dim) { return resolve(dim, max_tokens); };
  if (size(program_->rows) < kPackedRowTiles * (gemm.transpose_a ? kRowGranule : kTileRows)) return;
  const i64 floats = packed_b_floats(size(gemm.k), program_->cols.num);
  if (floats > kMostPacked) return;
  for (const Section& section : sections_)
    for (const AccBlock& block : section.blocks)
      if (block.col % packed_unit() != 0) return;
  packed_offset_ = shared_floats_;
  shared_floats_ += padded(floats);
}

/// Rows of scratch that a tile of `rows` rows of the accumulator needs.
i64 CompiledProgram::acc_rows(i64 rows) const {
  return onednn_ ? round_up(rows, OneDnnGemm::kRowStep) : tile_rows(rows);
}

/// The scratch of a thread.
void CompiledProgram::measure() {
  for (Section& section : sections_) {
    if (program_->form == Form::rows) section.strip_rows = strip_rows_;
    section.slot_floats = section.strip_rows * padded(section.strip_cols) + kPad;
    int slots = 0;
    for (const StripCode& code : section.phases) slots = std::max(slots, code.slot_count());
    i64 floats = slots * section.slot_floats;
    for (const AccBlock& block : section.blocks) {
      const i64 cols = whole_ ? block.width : section.tile_cols / block.scale;
      floats += acc_rows(kTileRows) * padded(cols);
    }
    if (!section.blocks.empty())
      floats += onednn_ ? std::max(onednn_->scratch_floats(), packing_floats(1))
                        : packing_floats(kTileRows);
    if (program_->form == Form::rows) {
      const i64 granules = section.strip_cols / kColumnGranule + 1;
      reduced_floats_ = std::max(reduced_floats_, 2 * granules * padded(section.strip_rows));
    }
    thread_floats_ = std::max(thread_floats_, round_up(floats, kPad));
  }
  thread_floats_ += local_floats_ + reduced_floats_;
}

void CompiledProgram::run(std::span<const TensorView> operands, i64 tokens, float* shared,
                          float* scratch, i64 thread_stride, ThreadPool& pool) const {
  RunMemory memory;
  memory.program = program_.get();
  memory.operands = operands;
  memory.tokens = tokens;
  memory.slots = slots_;
  memory.tables = tables_;
  memory.vectors = shared;
  memory.rows = resolve(program_->rows, tokens);
  if (program_->form == Form::gemm) {
    const TensorView& a = memory.operand(program_->gemm.a);
    memory.rows = program_->gemm.transpose_a ? a.cols : a.rows;
  }
  prologue_->run(memory, pool);
  if (program_->form == Form::gemm) run_gemm(memory, scratch, thread_stride, pool);
  if (program_->form == Form::rows) run_rows(memory, scratch, thread_stride, pool);
}

// --- GEMM programs ---

void CompiledProgram::run_gemm(const RunMemory& memory, float* scratch, i64 stride,
                               ThreadPool& pool) const {
  // Tiles of all sections are numbered through, row tiles of one column tile first: its panel of B
  // stays in the cache. Few tiles are made smaller until every thread has some.
  i64 tile_rows = kTileRows;
  int halvings = 0;
  const auto tile_cols = [&](const Section& section) {
    if (halvings == 0) return section.tile_cols;
    return even_part(section.tile_cols, section.tile_cols >> halvings, section.unit);
  };
  const auto rows_of = [&](const Section& section) {
    return section.rows < 0 ? memory.rows : section.rows;
  };
  const auto count_tiles = [&](const Section& section) {
    return divide_up(rows_of(section), tile_rows) * divide_up(section.width, tile_cols(section));
  };
  const auto count_all = [&] {
    i64 total = 0;
    for (const Section& section : sections_) total += count_tiles(section);
    return total;
  };
  // oneDNN has kernels for tile_cols only, and may sum in another order in tiles of another size.
  const bool onednn = by_onednn(memory);
  const i64 threads = pool.threads();
  const auto are_enough = [&] {
    const i64 count = count_all();
    if (onednn) return count >= kEnoughTiles;
    return count >= kTilesPerThread * threads || (count >= 2 * threads && count % threads == 0);
  };
  if (!are_enough()) tile_rows = kRowGranule;
  while (!onednn && !are_enough() && halvings < 3) ++halvings;

  RunMemory packed = memory;
  const bool fits = std::all_of(sections_.begin(), sections_.end(), [&](const Section& section) {
    const i64 cols = tile_cols(section);
    return cols >= section.width ||
           std::all_of(section.blocks.begin(), section.blocks.end(),
                       [&](const AccBlock& b) { return cols / b.scale % packed_unit() == 0; });
  });
  if (packed_offset_ >= 0 && fits && memory.rows > kTileRows) {
    float* whole = memory.vectors + packed_offset_;
    TensorView b[kMaxBlocks];
    const Factors factors = factors_of(memory, b);
    const i64 n = program_->cols.num;
    pool.parallel_for(pack_b_parts(factors.k, n),
                      [&](i64 part, int) { pack_b(factors, n, part, whole); });
    packed.packed_b = whole;
  }
  pool.parallel_for(count_all(), [&](i64 index, int thread) {
    std::size_t s = 0;
    while (index >= count_tiles(sections_[s])) index -= count_tiles(sections_[s++]);
    const Section& section = sections_[s];
    const i64 row_tiles = divide_up(rows_of(section), tile_rows);
    const i64 row = index % row_tiles * tile_rows;
    const i64 col = index / row_tiles * tile_cols(section);
    run_tile(packed, section, row, std::min(tile_rows, rows_of(section) - row), col,
             std::min(tile_cols(section), section.width - col), scratch + thread * stride);
  });
}

/// One row of A reads B once and multiplies on the way: half the time of copying B to panels for
/// oneDNN (Zen 5, bf16).
bool CompiledProgram::by_onednn(const RunMemory& memory) const {
  const Gemm& gemm = program_->gemm;
  return onednn_ && !(memory.rows == 1 && gemm.transpose_b && !gemm.transpose_a);
}

/// The product's operands; `b` has room for kMaxBlocks.
Factors CompiledProgram::factors_of(const RunMemory& memory, TensorView* b) const {
  const Gemm& gemm = program_->gemm;
  internal_check(gemm.b.size() <= kMaxBlocks, "cpu: {}: {} row blocks of B", program_->name,
                 gemm.b.size());
  for (std::size_t i = 0; i < gemm.b.size(); ++i) b[i] = memory.operand(gemm.b[i]);
  const TensorView& a = memory.operand(gemm.a);
  Factors factors{a, std::span(b, gemm.b.size()), gemm.transpose_a, gemm.transpose_b};
  factors.k = gemm.transpose_a ? a.rows : a.cols;
  factors.packed_b = memory.packed_b;
  factors.packed_cols = program_->cols.num;
  return factors;
}

void CompiledProgram::multiply(const RunMemory& memory, const Section& section, i64 row, i64 rows,
                               i64 col, i64 cols, std::span<float*> acc, std::span<i64> strides,
                               float*& scratch) const {
  TensorView b[kMaxBlocks];
  const Factors factors = factors_of(memory, b);
  float* packing = scratch;
  for (std::size_t i = 0; i < section.blocks.size(); ++i) {
    const AccBlock& block = section.blocks[i];
    strides[i] = padded(whole_ ? block.width : cols / block.scale);
    acc[i] = packing;
    packing += acc_rows(rows) * strides[i];
  }
  scratch = packing;
  TileBlock tiles[kMaxBlocks];
  for (std::size_t i = 0; i < section.blocks.size();) {
    // Blocks of the same rows share the packed panel of A.
    const i64 first_row = section.blocks[i].row;
    std::size_t n = 0;
    for (; i < section.blocks.size() && section.blocks[i].row == first_row; ++i) {
      const AccBlock& block = section.blocks[i];
      tiles[n++] = {block.col + (whole_ ? 0 : col / block.scale),
                    whole_ ? block.width : cols / block.scale, acc[i], strides[i]};
    }
    const std::span<const TileBlock> blocks(tiles, n);
    if (by_onednn(memory))
      onednn_->multiply(factors, first_row + row, rows, blocks, packing);
    else
      multiply_tile(factors, first_row + row, rows, blocks, packing);
  }
}

void CompiledProgram::run_tile(const RunMemory& memory, const Section& section, i64 row, i64 rows,
                               i64 col, i64 cols, float* scratch) const {
  float* acc[kMaxBlocks];
  i64 strides[kMaxBlocks];
  StripRun strip;
  strip.memory = &memory;
  strip.tile_row = row;
  strip.tile_col = col;
  strip.acc = acc;
  strip.acc_stride = strides;
  strip.slot_floats = section.slot_floats;
  strip.slots = scratch;
  float* rest = scratch + section.phases[0].slot_count() * section.slot_floats;
  if (!section.blocks.empty()) multiply(memory, section, row, rows, col, cols, acc, strides, rest);
  for (i64 r = 0; r < rows; r += section.strip_rows) {
    for (i64 c = 0; c < cols; c += section.strip_cols) {
      strip.row = row + r;
      strip.rows = std::min(section.strip_rows, rows - r);
      strip.col = col + c;
      strip.n = std::min(section.strip_cols, cols - c);
      section.phases[0].run(strip);
    }
  }
}

// --- row programs ---

void CompiledProgram::run_rows(const RunMemory& memory, float* scratch, i64 stride,
                               ThreadPool& pool) const {
  pool.parallel_for(divide_up(memory.rows, row_unit_), [&](i64 unit, int thread) {
    const i64 end = std::min(memory.rows, (unit + 1) * row_unit_);
    for (i64 row = unit * row_unit_; row < end; row += strip_rows_)
      run_row_strip(memory, row, std::min(strip_rows_, end - row), scratch + thread * stride);
  });
}

/// A few whole rows: phase by phase, each a pass over the columns, with the cols that the
/// reductions give in between.
void CompiledProgram::run_row_strip(const RunMemory& memory, i64 row, i64 rows,
                                    float* scratch) const {
  StripRun strip;
  strip.memory = &memory;
  strip.row = row;
  strip.rows = rows;
  strip.locals = scratch;
  strip.reduced = scratch + local_floats_;
  strip.slots = strip.reduced + reduced_floats_;
  for (const i32 reduction : reductions_) {
    float* total = strip.locals + slots_[at(reduction)].offset;
    const Op op = program_->values[at(reduction)].op;
    const bool max = op == Op::row_max || is_online(op);
    std::fill_n(total, kRowGranule, max ? -std::numeric_limits<float>::infinity() : 0.0f);
    if (is_online(op)) std::fill_n(total + kRowGranule, kRowGranule, 0.0f);
  }
  for (std::size_t phase = 0; phase < finishes_.size(); ++phase) {
    for (const Section& section : sections_) {
      if (section.phases[phase].empty()) continue;
      strip.slot_floats = section.slot_floats;
      for (i64 col = 0; col < section.width; col += section.strip_cols) {
        strip.col = col;
        strip.n = std::min(section.strip_cols, section.width - col);
        section.phases[phase].run(strip);
      }
    }
    for (const i32 reduction : finishes_[phase].online) {
      float* total = strip.locals + slots_[at(reduction)].offset;
      const bool with_max = program_->values[at(reduction)].op == Op::lse;
      const Kernels& k = kernels();
      (with_max ? k.finish_lse : k.finish_log_sum)(total, total + kRowGranule, rows);
    }
    finishes_[phase].cols.run_local(memory, strip.locals, row, rows);
  }
}

}  // namespace coda::cpu
