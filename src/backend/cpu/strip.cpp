#include "backend/cpu/strip.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/chains.h"
#include "base/check.h"

namespace coda::cpu {
namespace {

using i32 = std::int32_t;

/// Ops whose kernels read each element before they write it, so that the result may take the place
/// of an argument.
bool may_overwrite(Op op) {
  const Kernels& k = kernels();
  return k.unary[index_of(op)] != nullptr || k.binary[index_of(op)] != nullptr || op == Op::cast ||
         op == Op::rotate || op == Op::unrotate;
}

/// Turns nodes into instructions and gives each a slot for as long as it is needed.
class Emitter {
 public:
  Emitter(const Program& program, const Lowered& lowered, std::span<const AccBlock> blocks,
          std::span<const VectorSlot> vectors, std::span<const AngleTable> tables)
      : program_(program),
        lowered_(lowered),
        blocks_(blocks),
        vectors_(vectors),
        tables_(tables),
        places_(lowered.nodes.size()),
        uses_(lowered.nodes.size(), 0),
        needed_(lowered.nodes.size(), false),
        fused_(lowered.nodes.size(), false) {}

  std::vector<Instruction> emit(const LoweredSection& section, std::span<const Sink> sinks) {
    for (const Sink& sink : sinks) need(sink.node);
    for (const Sink& sink : sinks) ++uses_[at(sink.node)];
    const Chains chains(program_, lowered_, sinks, uses_);
    for (const i32 node : section.nodes) fused_[at(node)] = chains.absorbs(node);
    for (const i32 node : section.nodes)
      if (needed_[at(node)]) fuse(node);
    for (const i32 node : section.nodes) {
      if (!needed_[at(node)] || chains.absorbs(node)) continue;
      const StoredChain* chain = chains.ending_in(node);
      if (chain)
        emit_chain(node, *chain);
      else if (!fused_[at(node)])
        emit_node(node);
      for (const Sink& sink : sinks)
        if (sink.node == node && !(chain && chain->sink == &sink)) emit_sink(sink);
    }
    return std::move(code_);
  }

  int slot_count() const { return slot_count_; }

 private:
  static std::size_t at(i32 index) { return static_cast<std::size_t>(index); }
  const Node& node(i32 index) const { return lowered_.nodes[at(index)]; }

  void need(i32 index) {
    if (needed_[at(index)]) return;
    needed_[at(index)] = true;
    for (const Ref& arg : node(index).args) {
      if (arg.kind != Ref::Kind::tile) continue;
      need(arg.index);
      ++uses_[at(arg.index)];
    }
  }

  /// Marks nodes that the instruction of their only user computes along the way: a sigmoid that is
  /// a factor (SwiGLU), what is rounded and not used otherwise.
  void fuse(i32 index) {
    const Node& n = node(index);
    const Kernels& k = kernels();
    if (n.op == Op::mul) {
      for (const Ref& arg : n.args) {
        if (!only_use(arg, Op::sigmoid)) continue;
        fused_[at(arg.index)] = true;
        return;
      }
    }
    if (n.op == Op::cast) {
      const Node& x = node(n.args[0].index);
      const bool product_of_sigmoid = x.op == Op::mul && fused_factor(x) != nullptr;
      const BinaryKernel kernel = product_of_sigmoid
                                      ? k.rounded_mul_sigmoid[index_of(n.attrs.dtype)]
                                      : k.rounded[index_of(n.attrs.dtype)][index_of(x.op)];
      if (kernel && only_use(n.args[0], x.op)) fused_[at(n.args[0].index)] = true;
    }
  }

  bool only_use(const Ref& arg, Op op) const {
    return arg.kind == Ref::Kind::tile && node(arg.index).op == op && uses_[at(arg.index)] == 1;
  }

  bool is_fused(const Ref& ref) const {
    return ref.kind == Ref::Kind::tile && fused_[at(ref.index)];
  }

  /// The sigmoid that a product computes along the way, if any.
  const Ref* fused_factor(const Node& n) const {
    for (const Ref& arg : n.args)
      if (is_fused(arg) && node(arg.index).op == Op::sigmoid) return &arg;
    return nullptr;
  }

  Place place_of(const Ref& ref) const {
    if (ref.kind == Ref::Kind::tile) return places_[at(ref.index)];
    Place place;
    place.index = ref.index;
    place.offset = ref.offset;
    const bool local = vectors_[at(ref.index)].local;
    place.in = ref.kind == Ref::Kind::col   ? (local ? Place::In::local_col : Place::In::col)
               : ref.kind == Ref::Kind::row ? Place::In::row
                                            : Place::In::scalar;
    return place;
  }

  i32 take_slot() {
    if (!free_.empty()) {
      const i32 slot = free_.back();
      free_.pop_back();
      return slot;
    }
    return slot_count_++;
  }

  void release(i32 index) {
    if (--uses_[at(index)] == 0 && places_[at(index)].in == Place::In::slot)
      free_.push_back(places_[at(index)].index);
  }

  void release_args(const Node& n) {
    for (const Ref& arg : n.args) {
      if (arg.kind != Ref::Kind::tile) continue;
      if (fused_[at(arg.index)])
        release_args(node(arg.index));
      else
        release(arg.index);
    }
  }

  void emit_node(i32 index) {
    const Node& n = node(index);
    Place& place = places_[at(index)];
    place.scale = lowered_.scale[at(index)];
    place.width = n.width;
    if (n.op == Op::acc) {
      place.in = Place::In::acc;
      for (std::size_t i = 0; i < blocks_.size(); ++i)
        if (blocks_[i].node == index) place.index = static_cast<i32>(i);
      return;
    }
    Instruction made;
    made.op = n.op;
    made.attrs = n.attrs;
    made.operand = n.operand;
    made.col = n.col;
    made.row = n.row;
    if (!n.args.empty()) made.a = place_of(n.args[0]);
    if (n.args.size() > 1) made.b = place_of(n.args[1]);
    if (n.op == Op::cat_cols)
      for (const Ref& arg : n.args) made.more.push_back(place_of(arg));
    choose_kernel(made, n);
    // An instruction that reads elements in place may write over an argument that dies here.
    if (may_overwrite(n.op)) release_args(n);
    place.in = Place::In::slot;
    place.index = take_slot();
    if (!may_overwrite(n.op)) release_args(n);
    made.y = place;
    code_.push_back(std::move(made));
  }

  /// What a chain makes goes to memory at once, and to a slot if others read it.
  void emit_chain(i32 index, const StoredChain& chain) {
    Place& place = places_[at(index)];
    place.scale = lowered_.scale[at(index)];
    place.width = node(index).width;
    Instruction made;
    made.op = Op::store_tile;
    made.chain = chain.kernel;
    made.operand = chain.sink->operand;
    made.col = chain.sink->col;
    made.a = place_of(chain.a);
    made.b = place_of(chain.b);
    if (chain.c.index >= 0) made.more.push_back(place_of(chain.c));
    if (chain.gated) {
      made.gated = chain.gated;
      made.attrs.layout = chain.interleaved ? PairLayout::interleaved : PairLayout::halves;
      made.more.push_back(place_of(chain.scale));
      made.factors[0] = {chain.gate->operand, chain.gate->col};
      made.factors[1] = {chain.up->operand, chain.up->col};
      release(chain.a.index);
      if (!chain.interleaved) release(chain.b.index);
    } else {
      release_args(node(index));
    }
    made.y = place;
    if (--uses_[at(index)] > 0) {
      place.in = Place::In::slot;
      place.index = take_slot();
      made.y = place;
    }
    code_.push_back(std::move(made));
  }

  void choose_kernel(Instruction& made, const Node& n) {
    const Kernels& k = kernels();
    made.unary = k.unary[index_of(n.op)];
    made.binary = k.binary[index_of(n.op)];
    if (n.op == Op::mul) take_factor(made, n, k.mul_sigmoid);
    if (n.op == Op::cast) made.unary = k.round[index_of(n.attrs.dtype)];
    if (n.op == Op::cast && is_fused(n.args[0])) {
      const Node& x = node(n.args[0].index);
      made.a = place_of(x.args[0]);
      made.b = place_of(x.args[1]);
      made.unary = nullptr;
      made.binary = k.rounded[index_of(n.attrs.dtype)][index_of(x.op)];
      take_factor(made, x, k.rounded_mul_sigmoid[index_of(n.attrs.dtype)]);
    }
    if (n.op == Op::broadcast) made.unary = k.copy;
    if (n.op == Op::onehot) {
      made.target = n.args[0].index;
      made.target_row = n.args[0].offset;
    }
    if (n.op == Op::rotate || n.op == Op::unrotate) {
      AngleTable wanted{n.args[1].index, n.args[2].index, n.attrs.period, 0};
      for (std::size_t i = 0; i < tables_.size(); ++i) {
        wanted.offset = tables_[i].offset;
        if (tables_[i] == wanted) made.target = static_cast<i32>(i);
      }
      made.target_row = n.args[1].offset;
    }
  }

  /// a * sigmoid(b) for a product with a fused sigmoid.
  void take_factor(Instruction& made, const Node& product, BinaryKernel kernel) const {
    const Ref* factor = fused_factor(product);
    if (!factor) return;
    const Ref& other = &product.args[0] == factor ? product.args[1] : product.args[0];
    made.a = place_of(other);
    made.b = place_of(node(factor->index).args[0]);
    made.binary = kernel;
  }

  void emit_sink(const Sink& sink) {
    Instruction made;
    made.op = sink.op;
    made.a = places_[at(sink.node)];
    made.operand = sink.operand;
    made.col = sink.col;
    made.value = sink.value;
    made.attrs.ignore_index = sink.ignore_index;
    made.target = sink.target.index;
    made.target_row = sink.target.offset;
    if (sink.op == Op::store_tile) made.store = store_of(sink);
    code_.push_back(made);
    release(sink.node);
  }

  StoreKernel store_of(const Sink& sink) const {
    const Kernels& k = kernels();
    const Operand& operand = program_.operands[at(sink.operand)];
    if (operand.accumulate) return k.accumulate;
    const Node& n = node(sink.node);
    const bool rounded = n.op == Op::cast && n.attrs.dtype == operand.dtype;
    const StoreKernel exact = k.store_rounded[index_of(operand.dtype)];
    return rounded && exact ? exact : k.store[index_of(operand.dtype)];
  }

  const Program& program_;
  const Lowered& lowered_;
  std::span<const AccBlock> blocks_;
  std::span<const VectorSlot> vectors_;
  std::span<const AngleTable> tables_;
  std::vector<Place> places_;
  std::vector<int> uses_;
  std::vector<bool> needed_, fused_;
  std::vector<i32> free_;
  std::vector<Instruction> code_;
  i32 slot_count_ = 0;
};

/// Runs instructions on one strip.
class Executor {
 public:
  Executor(const StripRun& strip, bool whole) : s_(strip), m_(*strip.memory), whole_(whole) {}

  void run(const Instruction& i) const {
    const i64 n = cols(i.y);
    switch (i.op) {
      case Op::load_tile: {
        const TensorView& view = m_.operand(i.operand);
        k_.load[index_of(view.dtype)](strip(i.y), address(view, s_.row + i.row, first(i.y) + i.col),
                                      view.stride, s_.rows, n);
        return;
      }
      case Op::store_tile:
        return store(i);
      case Op::first_of_pair:
      case Op::second_of_pair:
        return split(i, n);
      case Op::join:
        return join(i);
      case Op::rotate:
      case Op::unrotate: {
        const AngleTable& table = m_.tables[static_cast<std::size_t>(i.target)];
        k_.rotate(strip(i.y), arg(i.a),
                  m_.vectors + table.offset + (s_.row + i.target_row) * table.period, s_.rows, n,
                  table.period, i.attrs.layout, i.op == Op::unrotate);
        return;
      }
      case Op::segment_sum:
        k_.segment_sum(strip(i.y), arg(i.a), s_.rows, cols(i.a), i.attrs.period);
        return;
      case Op::segment_broadcast:
        return spread(i);
      case Op::onehot:
        return onehot(i, n);
      case Op::cols: {
        const Arg a = arg(i.a);
        return copy(strip(i.y), {a.data + i.attrs.lo, a.row_stride, false}, n);
      }
      case Op::cat_cols:
        return concatenate(i);
      case Op::row_sum:
      case Op::row_max:
      case Op::lse:
      case Op::log_sum:
      case Op::pick:
        return i.operand >= 0 ? reduce(i) : reduce_complete(i);
      case Op::col_sum: {
        const TensorView& view = m_.operand(i.operand);
        auto* y = reinterpret_cast<float*>(address(view, s_.row / kRowGranule, first(i.a) + i.col));
        k_.col_sum(y, arg(i.a), s_.rows, cols(i.a), s_.row % kRowGranule == 0);
        return;
      }
      default:
        if (i.binary)
          i.binary(strip(i.y), arg(i.a), arg(i.b), s_.rows, n);
        else
          i.unary(strip(i.y), arg(i.a), s_.rows, n);
    }
  }

 private:
  // --- places ---
  i64 first(const Place& p) const { return whole_ ? 0 : s_.col / p.scale; }
  i64 cols(const Place& p) const { return whole_ ? p.width : s_.n / p.scale; }

  Strip strip(const Place& p) const {
    return {s_.slots + p.index * s_.slot_floats, padded(cols(p))};
  }

  Arg arg(const Place& p) const {
    switch (p.in) {
      case Place::In::slot:
        return {s_.slots + p.index * s_.slot_floats, padded(cols(p)), false};
      case Place::In::acc: {
        const i64 stride = s_.acc_stride[p.index];
        const i64 col = whole_ ? 0 : (s_.col - s_.tile_col) / p.scale;
        return {s_.acc[p.index] + (s_.row - s_.tile_row) * stride + col, stride, false};
      }
      case Place::In::col:
        return {m_.vectors + m_.slot(p.index).offset + p.offset + s_.row, 1, true};
      case Place::In::local_col:
        return {s_.locals + m_.slot(p.index).offset, 1, true};
      case Place::In::row:
        return {m_.vectors + m_.slot(p.index).offset + p.offset + row_start(), 0, false};
      default:
        return {m_.vectors + m_.slot(p.index).offset, 0, true};
    }
  }

  /// Row vectors are as wide as the instruction's result, whose scale the caller set.
  i64 row_start() const { return row_start_; }

 public:
  void at(const Instruction& i) {
    row_start_ = i.y.in == Place::In::none && !i.chain ? 0 : first(i.y);
  }

 private:
  void copy(Strip y, Arg x, i64 n) const {
    for (i64 r = 0; r < s_.rows; ++r)
      std::copy_n(x.data + r * x.row_stride, n, y.data + r * y.row_stride);
  }

  // --- instructions ---
  void store(const Instruction& i) const {
    if (i.gated) return make_gated(i);
    const TensorView& view = m_.operand(i.operand);
    if (i.chain) {
      const Strip keep = i.y.in == Place::In::slot ? strip(i.y) : Strip{};
      const Arg c = i.more.empty() ? Arg{} : arg(i.more[0]);
      return i.chain(address(view, s_.row, first(i.y) + i.col), view.stride, keep, arg(i.a),
                     arg(i.b), c, s_.rows, cols(i.y));
    }
    i.store(address(view, s_.row, first(i.a) + i.col), view.stride, arg(i.a), s_.rows, cols(i.a));
  }

  void make_gated(const Instruction& i) const {
    const TensorView& view = m_.operand(i.operand);
    const TensorView& gate = m_.operand(i.factors[0].operand);
    const TensorView& up = m_.operand(i.factors[1].operand);
    GatedProduct product{arg(i.a), arg(i.b), arg(i.more[0])};
    product.interleaved = i.attrs.layout == PairLayout::interleaved;
    product.gate_out = address(gate, s_.row, first(i.a) + i.factors[0].col);
    product.up_out = address(up, s_.row, first(i.b) + i.factors[1].col);
    product.y = address(view, s_.row, first(i.y) + i.col);
    product.gate_stride = gate.stride;
    product.up_stride = up.stride;
    product.stride = view.stride;
    i.gated(product, s_.rows, cols(i.y));
  }

  void split(const Instruction& i, i64 n) const {
    const bool second = i.op == Op::second_of_pair;
    if (i.attrs.layout == PairLayout::interleaved) {
      (second ? k_.second_interleaved : k_.first_interleaved)(strip(i.y), arg(i.a), s_.rows, n, 2);
      return;
    }
    const i64 half = i.attrs.period / 2;
    const Strip y = strip(i.y);
    const Arg x = arg(i.a);
    for (i64 r = 0; r < s_.rows; ++r)
      for (i64 c = 0; c < n; c += half)
        std::copy_n(x.data + r * x.row_stride + 2 * c + (second ? half : 0), half,
                    y.data + r * y.row_stride + c);
  }

  void join(const Instruction& i) const {
    const i64 n = cols(i.a);
    const Strip y = strip(i.y);
    const Arg a = arg(i.a), b = arg(i.b);
    if (i.attrs.layout == PairLayout::interleaved) return k_.join_interleaved(y, a, b, s_.rows, n);
    const i64 half = i.attrs.period / 2;
    for (i64 r = 0; r < s_.rows; ++r) {
      float* out = y.data + r * y.row_stride;
      for (i64 c = 0; c < n; c += half) {
        std::copy_n(a.data + r * a.row_stride + c, half, out + 2 * c);
        std::copy_n(b.data + r * b.row_stride + c, half, out + 2 * c + half);
      }
    }
  }

  void spread(const Instruction& i) const {
    const Strip y = strip(i.y);
    const Arg x = arg(i.a);
    for (i64 r = 0; r < s_.rows; ++r)
      for (i64 c = 0; c < cols(i.a); ++c)
        std::fill_n(y.data + r * y.row_stride + c * i.attrs.period, i.attrs.period,
                    x.data[r * x.row_stride + c]);
  }

  void onehot(const Instruction& i, i64 n) const {
    const Strip y = strip(i.y);
    const IntColumn target = m_.integers(i.target);
    const i64 lo = first(i.y) + i.col;
    for (i64 r = 0; r < s_.rows; ++r) {
      float* out = y.data + r * y.row_stride;
      std::fill_n(out, n, 0.0f);
      const i64 t = target[s_.row + i.target_row + r];
      if (t != i.attrs.ignore_index && t >= lo && t < lo + n) out[t - lo] = 1.0f;
    }
  }

  void concatenate(const Instruction& i) const {
    Strip y = strip(i.y);
    for (const Place& part : i.more) {
      copy(y, arg(part), cols(part));
      y.data += cols(part);
    }
  }

  /// Granules of one strip to y[granule * stride + row]; lse, log_sum: sums `plane` floats behind.
  void reduce_to(const Instruction& i, float* y, i64 plane, i64 stride) const {
    const Arg x = arg(i.a);
    const i64 n = cols(i.a);
    switch (i.op) {
      case Op::row_sum:
        return k_.row_sum(y, stride, x, s_.rows, n);
      case Op::row_max:
        return k_.row_max(y, stride, x, s_.rows, n);
      case Op::lse:
      case Op::log_sum:
        return k_.lse(y, plane, stride, x, s_.rows, n);
      default:
        break;
    }
    const IntColumn target = m_.integers(i.target);
    const i64 lo = first(i.a) + i.col;
    for (i64 r = 0; r < s_.rows; ++r) {
      for (i64 c = 0; c < n; c += kColumnGranule) y[c / kColumnGranule * stride + r] = 0.0f;
      const i64 t = target[s_.row + i.target_row + r];
      if (t != i.attrs.ignore_index && t >= lo && t < lo + n)
        y[(t - lo) / kColumnGranule * stride + r] = x.data[r * x.row_stride + t - lo];
    }
  }

  void reduce(const Instruction& i) const {
    const TensorView& view = m_.operand(i.operand);
    const i64 granule = (first(i.a) + i.col) / kColumnGranule;
    reduce_to(i, reinterpret_cast<float*>(address(view, granule, s_.row)),
              view.rows / 2 * view.stride, view.stride);
  }

  /// Adds the strip's granules, in ascending order, to what the row has so far.
  void reduce_complete(const Instruction& i) const {
    const i64 stride = padded(s_.rows);
    const i64 granules = (cols(i.a) + kColumnGranule - 1) / kColumnGranule;
    const i64 plane = granules * stride;
    reduce_to(i, s_.reduced, plane, stride);
    float* total = s_.locals + m_.slot(i.value).offset;
    const Arg sum{total, 0, false};
    for (i64 g = 0; g < granules; ++g) {
      float* more = s_.reduced + g * stride;
      if (is_online(i.op)) {
        k_.combine_lse(total, total + kRowGranule, more, more + plane, s_.rows);
      } else {
        const Op op = i.op == Op::row_max ? Op::maximum : Op::add;
        k_.binary[index_of(op)]({total, 0}, sum, {more, 0, false}, 1, s_.rows);
      }
    }
  }

  const StripRun& s_;
  const RunMemory& m_;
  const Kernels& k_ = kernels();
  bool whole_ = false;
  i64 row_start_ = 0;
};

}  // namespace

StripCode::StripCode(const Program& program, const Lowered& lowered, const LoweredSection& section,
                     std::span<const Sink> sinks, std::span<const AccBlock> blocks,
                     std::span<const VectorSlot> slots, std::span<const AngleTable> tables)
    : whole_(lowered.whole) {
  Emitter emitter(program, lowered, blocks, slots, tables);
  code_ = emitter.emit(section, sinks);
  slot_count_ = emitter.slot_count();
}

void StripCode::run(const StripRun& strip) const {
  Executor executor(strip, whole_);
  for (const Instruction& instruction : code_) {
    executor.at(instruction);
    executor.run(instruction);
  }
}

}  // namespace coda::cpu
