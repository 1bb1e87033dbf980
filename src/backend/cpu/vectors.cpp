#include "backend/cpu/vectors.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/convert.h"
#include "ops/op_table.h"

namespace coda::cpu {
namespace {

using i32 = std::int32_t;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

float read_float(const char* p, DType dtype) {
  if (dtype == DType::f32) return *reinterpret_cast<const float*>(p);
  const auto bits = *reinterpret_cast<const std::uint16_t*>(p);
  return dtype == DType::bf16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

void write_float(char* p, DType dtype, float value) {
  if (dtype == DType::f32)
    *reinterpret_cast<float*>(p) = value;
  else
    *reinterpret_cast<std::uint16_t*>(p) =
        dtype == DType::bf16 ? bf16_from_f32(value) : f16_from_f32(value);
}

/// One value on elements [start, start + n) of its vectors. Values live in RunMemory::vectors, or
/// in `locals` from element 0 if they are local.
class Chunk {
 public:
  Chunk(const RunMemory& memory, i64 start, i64 n, float* locals = nullptr)
      : m_(memory), start_(start), n_(n), locals_(locals) {}

  void run(i32 index) const {
    const Value& v = m_.program->values[at(index)];
    switch (v.op) {
      case Op::constant:
        *out(index) = static_cast<float>(v.attrs.value);
        return;
      case Op::load_scalar:
        return load_scalar(v, out(index));
      case Op::load_col:
      case Op::load_row:
        if (!m_.slot(index).integer) load(v, out(index));
        return;
      case Op::store_vector:
        return store(v);
      case Op::store_partial:
        return store_partial(v);
      case Op::sum:
        if (!v.partial) *out(index) = sum_all(v.args[0]);
        return;
      case Op::valid:
        return valid(v, out(index));
      case Op::cols:
        return gather(v.args[0], out(index), [&](i64 c) { return c + v.attrs.lo; });
      case Op::repeat: {
        const i64 period = m_.slot(v.args[0]).length;
        return gather(v.args[0], out(index), [&](i64 c) { return c % period; });
      }
      case Op::fold:
        return fold(v, out(index));
      case Op::cat_cols:
        return concatenate(v, out(index));
      case Op::broadcast:
        return k_.copy({out(index), 0}, arg(v.args[0]), 1, n_);
      case Op::cast:
        return k_.round[index_of(v.attrs.dtype)]({out(index), 0}, arg(v.args[0]), 1, n_);
      default:
        break;
    }
    if (const UnaryKernel unary = k_.unary[index_of(v.op)])
      return unary({out(index), 0}, arg(v.args[0]), 1, n_);
    const BinaryKernel binary = k_.binary[index_of(v.op)];
    internal_check(binary != nullptr, "cpu: {} on a vector", name_of(v.op));
    binary({out(index), 0}, arg(v.args[0]), arg(v.args[1]), 1, n_);
  }

 private:
  float* base(i32 index) const {
    const VectorSlot& slot = m_.slot(index);
    return (slot.local ? locals_ : m_.vectors) + slot.offset;
  }
  bool is_scalar(i32 index) const { return m_.program->values[at(index)].kind == Kind::scalar; }

  float* out(i32 index) const {
    return base(index) + (is_scalar(index) || m_.slot(index).local ? 0 : start_);
  }

  Arg arg(i32 index) const { return {out(index), 0, is_scalar(index)}; }

  i64 length(i32 index) const {
    const i64 own = m_.slot(index).length;
    return own < 0 ? m_.rows : own;
  }

  // --- loads ---
  void load(const Value& v, float* y) const {
    const TensorView& view = m_.operand(v.operand);
    if (v.attrs.finish != Finish::none) return finish(view, v.attrs.finish, y);
    const bool col = v.kind == Kind::col;
    const i64 stride = col ? view.stride : 1;
    if (stride == 1) {
      const char* x = col ? address(view, start_, 0) : address(view, 0, start_);
      return k_.load[index_of(view.dtype)]({y, 0}, x, 0, 1, n_);
    }
    for (i64 r = 0; r < n_; ++r) y[r] = read_float(address(view, start_ + r, 0), view.dtype);
  }

  /// Combines partials, one row a granule, in ascending order.
  void finish(const TensorView& view, Finish how, float* y) const {
    alignas(64) float more[kVectorChunk], sum[kVectorChunk], more_sum[kVectorChunk];
    const LoadKernel read = k_.load[index_of(DType::f32)];
    const i64 granules = is_online(how) ? view.rows / 2 : view.rows;
    const bool online_sums = how == Finish::lse || how == Finish::log_sum;
    const Strip total{y, 0}, partial{more, 0};
    std::fill_n(y, padded(n_), how == Finish::sum ? 0.0f : kMinusInfinity);
    std::fill_n(sum, padded(n_), 0.0f);
    for (i64 g = 0; g < granules; ++g) {
      read(partial, address(view, g, start_), 0, 1, n_);
      if (online_sums) {
        read({more_sum, 0}, address(view, g + granules, start_), 0, 1, n_);
        k_.combine_lse(y, sum, more, more_sum, n_);
      } else {
        const Op op = how == Finish::sum ? Op::add : Op::maximum;
        k_.binary[index_of(op)](total, {y, 0, false}, {more, 0, false}, 1, n_);
      }
    }
    if (how == Finish::lse) k_.finish_lse(y, sum, n_);
    if (how == Finish::log_sum) k_.finish_log_sum(y, sum, n_);
  }

  void load_scalar(const Value& v, float* y) const {
    const TensorView& view = m_.operand(v.operand);
    if (v.attrs.finish == Finish::none) {
      *y = read_float(address(view, 0, 0), view.dtype);
      return;
    }
    const bool sum = v.attrs.finish == Finish::sum;
    float total = sum ? 0.0f : kMinusInfinity;
    for (i64 g = 0; g < view.rows; ++g) {
      const float more = *reinterpret_cast<const float*>(address(view, g, 0));
      total = sum ? total + more : (more != more || more > total ? more : total);
    }
    *y = total;
  }

  // --- stores ---
  void store(const Value& v) const {
    const i32 value = v.args[0];
    const bool accumulate = m_.program->operands[at(v.operand)].accumulate;
    const TensorView& view = m_.operand(v.operand);
    const float* x = out(value);
    const bool scalar = is_scalar(value);
    const bool col = m_.program->values[at(value)].kind == Kind::col;
    const i64 n = scalar ? 1 : n_;
    char* y = scalar ? address(view, 0, 0)
              : col  ? address(view, start_, 0)
                     : address(view, 0, start_);
    if (!col || view.stride == 1) {
      const StoreKernel kernel = accumulate ? k_.accumulate : k_.store[index_of(view.dtype)];
      return kernel(y, 0, {x, 0, false}, 1, n);
    }
    for (i64 r = 0; r < n; ++r) {
      char* p = address(view, start_ + r, 0);
      write_float(p, view.dtype, accumulate ? read_float(p, view.dtype) + x[r] : x[r]);
    }
  }

  /// Partials of a sum, one a granule of rows. A local col brings them strip by strip.
  void store_partial(const Value& v) const {
    const Value& sum = m_.program->values[at(v.args[0])];
    internal_check(sum.op == Op::sum, "cpu: store_partial of {} in a vector program",
                   name_of(sum.op));
    const TensorView& view = m_.operand(v.operand);
    if (m_.slot(sum.args[0]).local) {
      auto* y = reinterpret_cast<float*>(address(view, start_ / kRowGranule, 0));
      float total = start_ % kRowGranule == 0 ? 0.0f : *y;
      for (i64 r = 0; r < n_; ++r) total += out(sum.args[0])[r];
      *y = total;
      return;
    }
    const i64 n = length(sum.args[0]);
    for (i64 r = 0; r < n; r += kRowGranule) {
      float total = 0.0f;
      for (i64 i = r; i < std::min(n, r + kRowGranule); ++i) total += base(sum.args[0])[i];
      *reinterpret_cast<float*>(address(view, r / kRowGranule, 0)) = total;
    }
  }

  // --- ops that look beyond their own elements ---
  template <class From>
  void gather(i32 x, float* y, From from) const {
    for (i64 c = 0; c < n_; ++c) y[c] = base(x)[from(start_ + c)];
  }

  void concatenate(const Value& v, float* y) const {
    for (i64 c = 0; c < n_; ++c) {
      i64 from = start_ + c;
      std::size_t part = 0;
      while (from >= length(v.args[part])) from -= length(v.args[part++]);
      y[c] = base(v.args[part])[from];
    }
  }

  /// y[c] = x[c] + x[c + n] + ...: the adjoint of repeat.
  void fold(const Value& v, float* y) const {
    const i64 width = v.cols.num;
    const i64 times = length(v.args[0]) / width;
    for (i64 c = 0; c < n_; ++c) {
      y[c] = 0.0f;
      for (i64 t = 0; t < times; ++t) y[c] += base(v.args[0])[t * width + start_ + c];
    }
  }

  /// Sums granule by granule, then the granules, both ascending.
  float sum_all(i32 x) const {
    const i64 n = is_scalar(x) ? 1 : length(x);
    float total = 0.0f;
    for (i64 c = 0; c < n; c += kColumnGranule) {
      float granule = 0.0f;
      k_.row_sum(&granule, 1, {base(x) + c, 0, false}, 1, std::min(kColumnGranule, n - c));
      total += granule;
    }
    return total;
  }

  void valid(const Value& v, float* y) const {
    const IntColumn target = m_.integers(v.args[0]);
    for (i64 r = 0; r < n_; ++r) y[r] = target[start_ + r] == v.attrs.ignore_index ? 0.0f : 1.0f;
  }

  const RunMemory& m_;
  i64 start_ = 0, n_ = 0;
  float* locals_ = nullptr;
  const Kernels& k_ = kernels();
};

/// Reads elements of an argument other than its own.
bool reads_across(Op op) {
  return op == Op::sum || op == Op::cols || op == Op::repeat || op == Op::fold ||
         op == Op::cat_cols;
}

Kind loop_kind(const Program& program, const Value& v) {
  if (v.op == Op::store_vector) return program.values[at(v.args[0])].kind;
  if (v.op == Op::store_partial) return Kind::scalar;
  return v.kind;
}

}  // namespace

VectorCode::VectorCode(const Program& program, std::span<const i32> values,
                       std::span<const AngleTable> tables)
    : values_(values.begin(), values.end()), tables_(tables.begin(), tables.end()) {
  std::map<std::pair<int, Kind>, Stage> stages;
  std::vector<int> level(program.values.size(), 0);
  for (const i32 index : values) {
    const Value& v = program.values[at(index)];
    const Kind kind = loop_kind(program, v);
    for (const i32 arg : v.args) {
      const bool same = program.values[at(arg)].kind == kind && !reads_across(v.op);
      level[at(index)] = std::max(level[at(index)], level[at(arg)] + (same ? 0 : 1));
    }
    Stage& stage = stages[{level[at(index)], kind}];
    stage.kind = kind;
    stage.values.push_back(index);
  }
  for (auto& [key, stage] : stages) stages_.push_back(std::move(stage));
}

void VectorCode::run(const RunMemory& memory, ThreadPool& pool) const {
  for (const Stage& stage : stages_) {
    if (stage.kind == Kind::scalar) {
      for (const i32 value : stage.values) Chunk(memory, 0, 1).run(value);
      continue;
    }
    // Values of a stage may differ in length (row vectors of several widths).
    i64 longest = 0;
    const auto length_of = [&](i32 index) {
      const Value& v = memory.program->values[at(index)];
      const i64 own = memory.slot(v.op == Op::store_vector ? v.args[0] : index).length;
      return own < 0 ? memory.rows : own;
    };
    for (const i32 value : stage.values) longest = std::max(longest, length_of(value));
    pool.parallel_for((longest + kVectorChunk - 1) / kVectorChunk, [&](i64 chunk, int) {
      const i64 start = chunk * kVectorChunk;
      for (const i32 value : stage.values) {
        const i64 n = std::min(kVectorChunk, length_of(value) - start);
        if (n > 0) Chunk(memory, start, n).run(value);
      }
    });
  }
  for (const AngleTable& table : tables_) {
    const IntColumn position = memory.integers(table.position);
    const float* frequency = memory.vectors + memory.slot(table.frequency).offset;
    const i64 count = (memory.rows + kVectorChunk - 1) / kVectorChunk;
    pool.parallel_for(count, [&](i64 chunk, int) {
      const i64 start = chunk * kVectorChunk;
      for (i64 r = start; r < std::min(memory.rows, start + kVectorChunk); ++r)
        kernels().angles(memory.vectors + table.offset + r * table.period, position[r], frequency,
                         table.period / 2);
    });
  }
}

void VectorCode::run_local(const RunMemory& memory, float* locals, i64 row, i64 rows) const {
  const Chunk chunk(memory, row, rows, locals);
  for (const i32 value : values_) chunk.run(value);
}

}  // namespace coda::cpu
