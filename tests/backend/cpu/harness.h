// Programs by hand as plain data, plans of a few of them, and runs of such plans on two backends
// with outputs compared element by element.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/element.h"
#include "base/check.h"
#include "coda/program.h"
#include "plan/plan.h"
#include "tensor/tensor.h"

namespace coda::testing {

using i32 = std::int32_t;
using i64 = std::int64_t;

/// Builds a Program value by value; every method returns the value's index.
class Make {
 public:
  Program program;

  Make(const std::string& name, Form form, i64 width) {
    program.name = name;
    program.form = form;
    program.cols = Dim::number(width);
  }

  i32 operand(const std::string& name, Kind kind, DType dtype, Dim rows, i64 cols,
              bool output = false, bool partial = false) {
    program.operands.push_back(
        {name, kind, dtype, rows, Dim::number(cols), output, partial, false});
    return static_cast<i32>(program.operands.size() - 1);
  }

  /// nt: a [M, k], b blocks of [rows, k]. Returns acc.
  i32 gemm_nt(i64 k, const std::vector<i64>& b_rows, DType dtype) {
    program.gemm.transpose_b = true;
    program.gemm.k = Dim::number(k);
    program.gemm.a = operand("a", Kind::tile, dtype, Dim::tokens(), k);
    for (std::size_t i = 0; i < b_rows.size(); ++i)
      program.gemm.b.push_back(
          operand(fmt::format("b{}", i), Kind::weight, dtype, Dim::number(b_rows[i]), k));
    return value(Op::acc, {}, {}, Kind::tile, program.cols.num);
  }
  /// nn: a [M, k], b blocks of [rows, n], rows summing to k.
  i32 gemm_nn(const std::vector<i64>& b_rows, DType dtype) {
    i64 k = 0;
    for (const i64 rows : b_rows) k += rows;
    program.gemm.transpose_b = false;
    program.gemm.k = Dim::number(k);
    program.gemm.a = operand("a", Kind::tile, dtype, Dim::tokens(), k);
    for (std::size_t i = 0; i < b_rows.size(); ++i)
      program.gemm.b.push_back(operand(fmt::format("b{}", i), Kind::weight, dtype,
                                       Dim::number(b_rows[i]), program.cols.num));
    return value(Op::acc, {}, {}, Kind::tile, program.cols.num);
  }
  /// tn: a [M, n1], b [M, n2]: acc [n1, n2].
  i32 gemm_tn(i64 n1, DType dtype) {
    program.gemm.transpose_a = true;
    program.gemm.transpose_b = false;
    program.gemm.k = Dim::tokens();
    program.rows = Dim::number(n1);
    program.gemm.a = operand("a", Kind::tile, dtype, Dim::tokens(), n1);
    program.gemm.b = {operand("b0", Kind::tile, dtype, Dim::tokens(), program.cols.num)};
    return value(Op::acc, {}, {}, Kind::tile, program.cols.num);
  }

  i32 value(Op op, std::vector<i32> args, Attrs attrs, Kind kind, i64 cols, i32 from = -1) {
    Value v;
    v.op = op;
    v.args = std::move(args);
    v.attrs = attrs;
    v.kind = kind;
    v.cols = Dim::number(cols);
    v.operand = from;
    v.name = fmt::format("v{}", program.values.size());
    program.values.push_back(v);
    return static_cast<i32>(program.values.size() - 1);
  }

  i64 width(i32 v) const { return program.values[static_cast<std::size_t>(v)].cols.num; }
  Kind kind(i32 v) const { return program.values[static_cast<std::size_t>(v)].kind; }

  i32 load_tile(const std::string& name, i64 cols, DType dtype = DType::f32) {
    return value(Op::load_tile, {}, {}, Kind::tile, cols,
                 operand(name, Kind::tile, dtype, program.rows, cols));
  }
  i32 load_col(const std::string& name, DType dtype = DType::f32) {
    return value(Op::load_col, {}, {}, Kind::col, 1,
                 operand(name, Kind::col, dtype, program.rows, 1));
  }
  i32 load_row(const std::string& name, i64 cols, DType dtype = DType::f32) {
    return value(Op::load_row, {}, {}, Kind::row, cols,
                 operand(name, Kind::row, dtype, Dim::number(1), cols));
  }
  i32 load_scalar(const std::string& name) {
    return value(Op::load_scalar, {}, {}, Kind::scalar, 1,
                 operand(name, Kind::scalar, DType::f32, Dim::number(1), 1));
  }
  i32 load_finished(const std::string& name, Kind kind, i64 cols, Finish finish) {
    Attrs attrs;
    attrs.finish = finish;
    const Op op = kind == Kind::col   ? Op::load_col
                  : kind == Kind::row ? Op::load_row
                                      : Op::load_scalar;
    const Dim rows = kind == Kind::col ? program.rows : Dim::number(1);
    return value(op, {}, attrs, kind, cols,
                 operand(name, kind, DType::f32, rows, cols, false, true));
  }
  i32 constant(double x) {
    Attrs attrs;
    attrs.value = x;
    return value(Op::constant, {}, attrs, Kind::scalar, 1);
  }

  /// Elementwise: the kind and width of the widest operand.
  i32 op(Op op, const std::vector<i32>& args, Attrs attrs = {}) {
    const auto rank = [&](i32 v) {
      return kind(v) == Kind::tile ? 3 : kind(v) == Kind::scalar ? 0 : kind(v) == Kind::col ? 1 : 2;
    };
    i32 widest = args[0];
    for (const i32 arg : args)
      if (rank(arg) > rank(widest)) widest = arg;
    return value(op, args, attrs, kind(widest), width(widest));
  }
  i32 cast(i32 x, DType dtype) {
    Attrs attrs;
    attrs.dtype = dtype;
    return op(Op::cast, {x}, attrs);
  }
  i32 cols(i32 x, i64 lo, i64 hi) {
    Attrs attrs;
    attrs.lo = lo, attrs.hi = hi;
    return value(Op::cols, {x}, attrs, kind(x), hi - lo);
  }
  i32 rows(i32 x, i64 lo, i64 hi) {
    Attrs attrs;
    attrs.lo = lo, attrs.hi = hi;
    return value(Op::rows, {x}, attrs, Kind::tile, width(x));
  }
  i32 cat(const std::vector<i32>& parts) {
    i64 n = 0;
    for (const i32 part : parts) n += width(part);
    return value(Op::cat_cols, parts, {}, kind(parts[0]), n);
  }
  static Attrs pairs(PairLayout layout, i64 period) {
    Attrs attrs;
    attrs.layout = layout;
    attrs.period = period;
    return attrs;
  }
  i32 split(Op which, i32 x, PairLayout layout, i64 period) {
    return value(which, {x}, pairs(layout, period), Kind::tile, width(x) / 2);
  }
  i32 join(i32 a, i32 b, PairLayout layout, i64 period) {
    return value(Op::join, {a, b}, pairs(layout, period), Kind::tile, 2 * width(a));
  }
  i32 rotate(Op which, i32 x, i32 pos, i32 freq, PairLayout layout) {
    const i64 period = layout == PairLayout::interleaved ? 2 : width(freq);
    return value(which, {x, pos, freq}, pairs(layout, period), Kind::tile, width(x));
  }
  i32 segment(Op which, i32 x, i64 period) {
    Attrs attrs;
    attrs.period = period;
    const i64 n = which == Op::segment_sum ? width(x) / period : width(x) * period;
    return value(which, {x}, attrs, Kind::tile, n);
  }
  i32 broadcast(i32 x, i64 n) {
    Attrs attrs;
    attrs.hi = n;
    return value(Op::broadcast, {x}, attrs, Kind::tile, n);
  }

  void store(const std::string& name, i32 x, DType dtype = DType::f32, bool accumulate = false) {
    Dim rows = program.rows;
    if (program.values[static_cast<std::size_t>(x)].op == Op::rows) {
      const Attrs& a = program.values[static_cast<std::size_t>(x)].attrs;
      rows = Dim::number(a.hi - a.lo);
    }
    const i32 to = operand(name, Kind::tile, dtype, rows, width(x), true);
    program.operands.back().accumulate = accumulate;
    if (dtype != DType::f32) x = cast(x, dtype);
    value(Op::store_tile, {x}, {}, Kind::tile, width(x), to);
  }
  void store_vector(const std::string& name, i32 x, DType dtype = DType::f32,
                    bool accumulate = false) {
    const Dim rows = kind(x) == Kind::col ? program.rows : Dim::number(1);
    const i32 to = operand(name, kind(x), dtype, rows, width(x), true);
    program.operands.back().accumulate = accumulate;
    value(Op::store_vector, {x}, {}, kind(x), width(x), to);
  }
  /// A reduction of a tile, stored as partials (GEMM programs, col_sum, sum).
  void partial(const std::string& name, Op which, const std::vector<i32>& args) {
    const Kind k = which == Op::col_sum ? Kind::row : which == Op::sum ? Kind::scalar : Kind::col;
    const i64 n = which == Op::col_sum ? width(args[0]) : 1;
    const i32 x = value(which, args, {}, k, n);
    program.values.back().partial = true;
    const Dim rows = k == Kind::col ? program.rows : Dim::number(1);
    value(Op::store_partial, {x}, {}, k, n, operand(name, k, DType::f32, rows, n, true, true));
  }
  /// A complete reduction in a row program.
  i32 reduce(Op which, const std::vector<i32>& args) {
    return value(which, args, {}, Kind::col, 1);
  }
};

/// Programs run one after another; operands of one name are one buffer.
class Chain {
 public:
  void add(const Program& program) {
    Step step;
    step.program = std::make_shared<Program>(program);
    for (const Operand& operand : program.operands) {
      Slice slice;
      slice.buffer = buffer_of(operand, program);
      const Buffer& buffer = plan_->buffers[static_cast<std::size_t>(slice.buffer)];
      slice.rows = buffer.rows;
      slice.cols = buffer.cols;
      step.slices.push_back(slice);
    }
    plan_->forward.push_back(step);
    for (Buffer& buffer : plan_->buffers)
      buffer.last_step = static_cast<i32>(plan_->forward.size());
  }
  const std::shared_ptr<Plan>& plan() const { return plan_; }

 private:
  i32 buffer_of(const Operand& operand, const Program& program) {
    const i32 known = [&] {
      for (std::size_t i = 0; i < plan_->buffers.size(); ++i)
        if (plan_->buffers[i].name == operand.name) return static_cast<i32>(i);
      return -1;
    }();
    if (known >= 0) return known;
    Buffer buffer;
    buffer.name = operand.name;
    buffer.kind = operand.kind;
    buffer.dtype = operand.dtype;
    buffer.role = operand.partial ? Role::saved : operand.output ? Role::output : Role::input;
    buffer.rows = operand.rows.symbol == Dim::Symbol::M ? kTokens : operand.rows.num;
    buffer.cols = operand.cols.num;
    if (operand.kind == Kind::col) buffer.cols = 1;
    buffer.partial = operand.partial;
    if (operand.partial) {
      const auto index = static_cast<i32>(&operand - program.operands.data());
      for (const Value& v : program.values) {
        if (v.op != Op::store_partial || v.operand != index) continue;
        const Value& reduction = program.values[static_cast<std::size_t>(v.args[0])];
        const Value& x = program.values[static_cast<std::size_t>(reduction.args[0])];
        const bool rows = reduction.op == Op::col_sum || reduction.op == Op::sum;
        buffer.granules = rows ? (program.rows.symbol == Dim::Symbol::M
                                      ? kTokens
                                      : (program.rows.num + kRowGranule - 1) / kRowGranule)
                               : (x.cols.num + kColumnGranule - 1) / kColumnGranule;
        buffer.finish = is_online(reduction.op)       ? Finish::lse
                        : reduction.op == Op::row_max ? Finish::max
                                                      : Finish::sum;
      }
    }
    plan_->buffers.push_back(buffer);
    return static_cast<i32>(plan_->buffers.size() - 1);
  }

  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
};

/// A matrix inside a wider one: columns [3, 3 + cols) of rows with spare columns all around.
class Strided {
 public:
  Strided(DType dtype, i64 rows, i64 cols, bool strided)
      : memory_(dtype, rows, strided ? cols + 8 : cols), first_(strided ? 3 : 0), cols_(cols) {}

  TensorView view() const {
    TensorView v = memory_.view();
    if (v.data) v.data = v.as<char>() + first_ * static_cast<i64>(size_of(v.dtype));
    v.cols = cols_;
    return v;
  }
  HostTensor& memory() { return memory_; }
  double get(i64 r, i64 c) const { return memory_.get(r * memory_.cols() + first_ + c); }
  void set(i64 r, i64 c, double x) { memory_.set(r * memory_.cols() + first_ + c, x); }

 private:
  HostTensor memory_;
  i64 first_ = 0, cols_ = 0;
};

struct RunOptions {
  i64 tokens = 0;
  i64 max_tokens = -1;  ///< -1: tokens + 5
  bool strided = false;
  unsigned seed = 1;
  std::map<std::string, i64> integer_limit;  ///< of integer cols: values in [0, limit) or -100
  std::map<std::string, i64> id_limit;       ///< the same without -100
  std::map<std::string, std::vector<double>> given;
};

/// What a run left in every output and every buffer of partials, row by row.
using Outputs = std::map<std::string, std::vector<double>>;

/// Binds inputs of small multiples of 1/16 (so that products sum up exactly in fp32), poisons
/// outputs (accumulated ones start at 1.5), runs forward, checks that inputs did not change.
inline Outputs run_plan(Backend& backend, const std::shared_ptr<Plan>& plan,
                        const RunOptions& options) {
  const i64 max_tokens = options.max_tokens < 0 ? options.tokens + 5 : options.max_tokens;
  auto session = backend.prepare(plan, max_tokens);
  std::mt19937 random(options.seed);
  std::map<std::string, std::unique_ptr<Strided>> tensors;
  std::map<std::string, std::vector<char>> before;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const i64 rows = buffer.rows == kTokens ? options.tokens : buffer.rows;
    const bool strided = options.strided && buffer.kind == Kind::tile;
    auto tensor = std::make_unique<Strided>(buffer.dtype, rows, buffer.cols, strided);
    const auto given = options.given.find(buffer.name);
    int writes = 0;  // the first says whether it adds to what is there
    bool accumulate = false;
    for (const auto* steps : {&plan->forward, &plan->backward})
      for (const Step& step : *steps)
        for (std::size_t i = 0; step.program && i < step.slices.size(); ++i)
          if (plan->buffers[static_cast<std::size_t>(step.slices[i].buffer)].name == buffer.name &&
              step.program->operands[i].output && writes++ == 0)
            accumulate = step.program->operands[i].accumulate;
    for (i64 r = 0; r < rows; ++r) {
      for (i64 c = 0; c < buffer.cols; ++c) {
        double x = (static_cast<int>(random() % 33) - 16) / 16.0;
        if (buffer.role == Role::output) x = accumulate ? 1.5 : std::nan("");
        if (!is_float(buffer.dtype)) {
          const auto limit = options.integer_limit.find(buffer.name);
          const auto ids = options.id_limit.find(buffer.name);
          const i64 n = limit != options.integer_limit.end() ? limit->second
                        : ids != options.id_limit.end()      ? ids->second
                                                             : 1000;
          x = static_cast<double>(random() % static_cast<unsigned>(n));
          if (limit != options.integer_limit.end() && random() % 5 == 0) x = -100;
        }
        if (given != options.given.end())
          x = given->second[static_cast<std::size_t>(r * buffer.cols + c) % given->second.size()];
        tensor->set(r, c, x);
      }
    }
    if (buffer.role == Role::input) {
      const TensorView all = tensor->memory().view();
      before[buffer.name].assign(all.as<char>(), all.as<char>() + all.bytes());
    }
    session->bind(buffer.name, tensor->view());
    tensors[buffer.name] = std::move(tensor);
  }
  session->run(Phase::forward, options.tokens);
  if (!plan->backward.empty()) session->run(Phase::backward, options.tokens);
  Outputs outputs;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role == Role::input) {
      const TensorView all = tensors[buffer.name]->memory().view();
      EXPECT_TRUE(all.bytes() == 0 ||
                  std::memcmp(all.data, before[buffer.name].data(), all.bytes()) == 0)
          << buffer.name << " was written";
      continue;
    }
    // The memory of what backward has read may hold another buffer by now.
    if (buffer.role == Role::scratch || (buffer.role == Role::saved && !plan->backward.empty()))
      continue;
    std::vector<double>& out = outputs[buffer.name];
    const TensorView view = session->buffer(buffer.name);
    for (i64 r = 0; r < view.rows; ++r) {
      for (i64 c = 0; c < view.cols; ++c)
        out.push_back(buffer.role == Role::output ? tensors[buffer.name]->get(r, c)
                                                  : read_element(view, r, c));
    }
  }
  return outputs;
}

/// Machine epsilon of a memory type: the largest relative error of one rounding, doubled.
inline double epsilon_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-23;
}

/// terms: how many fp32 roundings (operations in a row, terms of a sum) may have gone into an
/// element, relative to the largest of the buffer or 1. 16-bit outputs may round the other way.
inline void expect_close(const Plan& plan, const Outputs& got, const Outputs& want, double terms) {
  for (const auto& [name, expected] : want) {
    const auto& actual = got.at(name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    Buffer buffer;
    for (const Buffer& candidate : plan.buffers)
      if (candidate.name == name) buffer = candidate;
    double largest = 1;
    for (const double x : expected)
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    int shown = 0;
    for (std::size_t i = 0; i < expected.size() && shown < 5; ++i) {
      const double x = expected[i], y = actual[i];
      if (std::isnan(x) ? std::isnan(y) : x == y) continue;
      const double own = buffer.dtype == DType::f32 ? 0 : epsilon_of(buffer.dtype) * std::fabs(x);
      const double tolerance = terms * 0x1p-23 * largest + own;
      if (std::isfinite(x) && std::fabs(x - y) <= tolerance) continue;
      ADD_FAILURE() << plan.forward[0].program->name << ": " << name << "[" << i << "]: expected "
                    << x << ", got " << y << ", tolerance " << tolerance;
      ++shown;
    }
  }
}

/// Runs on the reference (f32, casts rounding) and on the CPU with 1, 2 and 5 threads: close to the
/// former, and bit for bit the same for every number of threads.
inline void check_chain(const Chain& chain, RunOptions options, double terms,
                        CpuGemm gemm = CpuGemm::from_environment) {
  const auto reference = make_reference_backend(DType::f32);
  static std::map<CpuGemm, std::array<std::unique_ptr<Backend>, 3>> backends;
  auto& threads = backends[gemm];
  if (!threads[0])
    threads = {make_cpu_backend(1, gemm), make_cpu_backend(2, gemm), make_cpu_backend(5, gemm)};
  const Outputs want = run_plan(*reference, chain.plan(), options);
  const Outputs got = run_plan(*threads[0], chain.plan(), options);
  expect_close(*chain.plan(), got, want, terms);
  for (int t = 1; t < 3; ++t) {
    const Outputs again = run_plan(*threads[static_cast<std::size_t>(t)], chain.plan(), options);
    for (const auto& [name, values] : got)
      EXPECT_TRUE(values.empty() || std::memcmp(values.data(), again.at(name).data(),
                                                values.size() * sizeof(double)) == 0)
          << name << " depends on the number of threads";
  }
}

}  // namespace coda::testing
