// The kernel that makes a program's vectors before its GEMM starts: one thread an element, every
// value of a stage in order. Partials are combined in ascending order, as every backend does.
#include <algorithm>
#include <map>

#include "backend/cuda/device_sources.h"
#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }
bool is_store(Op op) { return op == Op::store_vector || op == Op::store_partial; }

class VectorText {
 public:
  VectorText(const Program& program, const EpiloguePlan& plan) : program_(program), plan_(plan) {}

  std::string write() {
    std::string text;
    for (i32 stage = 0; stage < plan_.stage_count; ++stage) {
      body_.clear();
      for (i32 i = 0; i < static_cast<i32>(program_.values.size()); ++i)
        if (plan_.stages[at(i)] == stage) write_value(i);
      if (stage + 1 == plan_.stage_count) write_angles();
      text += fmt::format("  if (p.stage == {}) {{\n{}  }}\n", stage, body_);
    }
    return text;
  }

 private:
  const Value& value(i32 index) const { return program_.values[at(index)]; }

  void add(const std::string& line) { body_ += "    " + line + "\n"; }

  static std::string operand(std::size_t index) { return fmt::format("p.operands[{}]", index); }

  /// The slot of a value, -1: none.
  i64 slot_of(i32 index) const {
    for (std::size_t s = 0; s < plan_.vectors.size(); ++s)
      if (plan_.vectors[s].value == index && plan_.vectors[s].frequency < 0)
        return static_cast<i64>(program_.operands.size() + s);
    return -1;
  }

  std::string name(i32 index) const { return fmt::format("v{}", index); }

  /// Element `i` of a value that lies in memory, a slot or an operand.
  std::string element(i32 index, const std::string& i) const {
    const Value& v = value(index);
    if (v.op == Op::constant) return literal_text(v.attrs.value);
    if (!is_direct(program_, index))
      return fmt::format("F32::load({}.pointer, {})", operand(at(static_cast<i32>(slot_of(index)))),
                         v.kind == Kind::scalar ? "0" : i);
    const std::string from = operand(at(v.operand));
    const std::string place = v.kind == Kind::scalar ? "0"
                              : v.kind == Kind::col  ? fmt::format("({}) * {}.stride", i, from)
                                                     : i;
    return fmt::format("{}::load({}.pointer, {})",
                       element_text(program_.operands[at(v.operand)].dtype), from, place);
  }

  /// An argument for element `index` of the reader.
  std::string argument(i32 arg, i32 reader) const {
    if (plan_.stages[at(arg)] >= 0 && plan_.stages[at(arg)] == plan_.stages[at(reader)])
      return name(arg);
    return element(arg, "index");
  }

  std::string length(i32 index) const {
    const Value& v = value(index);
    return v.kind == Kind::col   ? "p.rows"
           : v.kind == Kind::row ? fmt::format("{}", v.cols.num)
                                 : "1";
  }

  /// Values that other threads do not have: outside its length a thread's value is never stored.
  void write_value(i32 index) {
    const Value& v = value(index);
    if (is_store(v.op)) return write_store(index);
    if (v.op == Op::sum && v.partial) return;  // its store adds up
    add(fmt::format("float {} = 0.0f;", name(index)));
    add(fmt::format("if (index < {}) {{", length(index)));
    write_element(index);
    const i64 slot = slot_of(index);
    if (slot >= 0)
      add(fmt::format("  F32::store({}.pointer, index, {});", operand(at(static_cast<i32>(slot))),
                      name(index)));
    add("}");
  }

  void write_element(i32 index) {
    const Value& v = value(index);
    const std::string y = name(index);
    switch (v.op) {
      case Op::load_col:
      case Op::load_row:
      case Op::load_scalar:
        return write_finish(v, y);
      case Op::valid: {
        const Value& target = value(v.args[0]);
        const std::string from = operand(at(target.operand));
        add(
            fmt::format("  {} = load_integer({}.pointer, index * {}.stride, {}) == {}ll ? 0.0f : "
                        "1.0f;",
                        y, from, from, program_.operands[at(target.operand)].dtype == DType::i64,
                        v.attrs.ignore_index));
        return;
      }
      case Op::cols:
        return add(fmt::format("  {} = {};", y,
                               element(v.args[0], fmt::format("index + {}", v.attrs.lo))));
      case Op::repeat:
        return add(
            fmt::format("  {} = {};", y,
                        element(v.args[0], fmt::format("index % {}", value(v.args[0]).cols.num))));
      case Op::fold: {
        const i64 times = value(v.args[0]).cols.num / std::max<i64>(1, v.cols.num);
        add(fmt::format("  for (int t = 0; t < {}; ++t) {} = op::add({}, {});", times, y, y,
                        element(v.args[0], fmt::format("t * {} + index", v.cols.num))));
        return;
      }
      case Op::cat_cols: {
        i64 start = 0;
        for (const i32 arg : v.args) {
          const i64 width = value(arg).cols.num;
          add(fmt::format("  if (index >= {} && index < {}) {} = {};", start, start + width, y,
                          element(arg, fmt::format("index - {}", start))));
          start += width;
        }
        return;
      }
      case Op::sum:
        return write_sum(v, y, "0", length(v.args[0]), kColumnGranule);
      case Op::broadcast:
        return add(fmt::format("  {} = {};", y, argument(v.args[0], index)));
      default:
        break;
    }
    const std::string a = argument(v.args[0], index);
    const std::string b = v.args.size() > 1 ? argument(v.args[1], index) : "";
    add(fmt::format("  {} = {};", y, op_text(v.op, v.attrs, a, b)));
  }

  /// Combines partials, one row of the operand a granule.
  void write_finish(const Value& v, const std::string& y) {
    const std::string from = operand(at(v.operand));
    const std::string partial =
        fmt::format("F32::load({}.pointer, g * {}.stride + index)", from, from);
    switch (v.attrs.finish) {
      case Finish::sum:
        add("#pragma unroll 8");  // loads on their way together; the order stays
        add(fmt::format("  for (long long g = 0; g < {}.rows; ++g) {} = op::add({}, {});", from, y,
                        y, partial));
        return;
      case Finish::max:
        add(fmt::format("  {} = minus_infinity();", y));
        add("#pragma unroll 8");
        add(fmt::format("  for (long long g = 0; g < {}.rows; ++g) {} = op::maximum({}, {});", from,
                        y, y, partial));
        return;
      case Finish::lse:
      case Finish::log_sum:
      case Finish::lse_max:
        add("  LogSum all;");
        add("#pragma unroll 4");
        add(
            fmt::format("  for (long long g = 0; g < {0}.rows / 2; ++g) all.add({1}, "
                        "F32::load({0}.pointer, (g + {0}.rows / 2) * {0}.stride + index));",
                        from, partial));
        add(fmt::format("  {} = all.{};", y,
                        v.attrs.finish == Finish::lse       ? "value()"
                        : v.attrs.finish == Finish::log_sum ? "log_sum()"
                                                            : "max"));
        return;
      default:
        throw_error<InternalError>("epilogue: {}: a load that finishes nothing has no slot",
                                   program_.name);
    }
  }

  /// Sums elements [from, to) granule by granule, then the granules, both ascending.
  void write_sum(const Value& v, const std::string& y, const std::string& from,
                 const std::string& to, i64 granule) {
    add(fmt::format("  for (long long c = {}; c < {}; c += {}) {{", from, to, granule));
    add("    float part = 0.0f;");
    add(fmt::format(
        "    for (long long e = c; e < c + {} && e < {}; ++e) part = op::add(part, {});", granule,
        to, element(v.args[0], "e")));
    add(fmt::format("    {} = op::add({}, part);", y, y));
    add("  }");
  }

  void write_store(i32 index) {
    const Value& v = value(index);
    const Value& stored = value(v.args[0]);
    const Operand& to = program_.operands[at(v.operand)];
    const std::string where = operand(at(v.operand));
    if (v.op == Op::store_partial) {
      internal_check(stored.op == Op::sum, "epilogue: {}: store_partial of {} is of no tile",
                     program_.name, name_of(stored.op));
      const std::string n = length(stored.args[0]);
      add(fmt::format("for (long long r = 0; index == 0 && r < {}; r += {}) {{", n, kRowGranule));
      add("  float part = 0.0f;");
      add(fmt::format(
          "  for (long long e = r; e < r + {} && e < {}; ++e) part = op::add(part, {});",
          kRowGranule, n, element(stored.args[0], "e")));
      add(fmt::format("  F32::store({}.pointer, r / {} * {}.stride, part);", where, kRowGranule,
                      where));
      add("}");
      return;
    }
    const std::string x = argument(v.args[0], index);
    const std::string place = stored.kind == Kind::col   ? fmt::format("index * {}.stride", where)
                              : stored.kind == Kind::row ? "index"
                                                         : "0";
    const auto type = element_text(to.dtype);
    const std::string sum =
        to.accumulate ? fmt::format("op::add({}::load({}.pointer, {}), {})", type, where, place, x)
                      : x;
    add(fmt::format("if (index < {}) {}::store({}.pointer, {}, {});", length(v.args[0]), type,
                    where, place, sum));
  }

  void write_angles() {
    for (std::size_t s = 0; s < plan_.vectors.size(); ++s) {
      const EpilogueVector& angles = plan_.vectors[s];
      if (angles.frequency < 0) continue;
      const Value& position = value(angles.value);
      const std::string from = operand(at(position.operand));
      const std::string to = operand(program_.operands.size() + s);
      const i64 half = angles.period / 2;
      add("{");
      add(fmt::format("  const long long row = index / {}, f = index % {};", half, half));
      add("  if (row < p.rows) {");
      add("    float cosine, sine;");
      add(fmt::format(
          "    angle_of(load_integer({0}.pointer, row * {0}.stride, {1}), {2}, {3}, "
          "cosine, sine);",
          from, program_.operands[at(position.operand)].dtype == DType::i64,
          element(angles.frequency, "f"), element(angles.frequency, fmt::format("f + {}", half))));
      add(fmt::format("    F32::store({0}.pointer, row * {0}.stride + f, cosine);", to));
      add(fmt::format("    F32::store({0}.pointer, row * {0}.stride + f + {1}, sine);", to, half));
      add("  }");
      add("}");
    }
  }

  const Program& program_;
  const EpiloguePlan& plan_;
  std::string body_;
};

}  // namespace

i64 stage_length(const Program& program, const EpiloguePlan& plan, i32 stage, i64 rows) {
  i64 longest = 0;
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    if (plan.stages[i] != stage) continue;
    const Value& v = program.values[i];
    const Value& made = is_store(v.op) ? program.values[at(v.args[0])] : v;
    longest = std::max(longest, made.kind == Kind::col   ? rows
                                : made.kind == Kind::row ? made.cols.num
                                                         : 1);
  }
  if (stage + 1 == plan.stage_count)
    for (const EpilogueVector& vector : plan.vectors)
      if (vector.frequency >= 0) longest = std::max(longest, rows * vector.period / 2);
  return longest;
}

KernelSource vectors_source(const Program& program, const EpiloguePlan& plan) {
  KernelSource source;
  source.name = fmt::format("vectors_{}", program.name);
  source.entry = "coda_vectors";
  if (plan.stage_count == 0) return source;
  source.text = device_text({"params.cuh", "ptx.cuh", "elements.cuh", "op_math.cuh"});
  source.text += fmt::format(
      "// Vectors of {}\nnamespace coda_device {{\n"
      "struct VectorParams {{\n  EpilogueOperand operands[{}];\n  int rows;\n  int stage;\n}};\n\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "    coda_vectors(const __grid_constant__ VectorParams p) {{\n"
      "  // What came before is done; the next kernel may start and waits for this one by itself.\n"
      "  await_dependencies();\n"
      "  launch_dependents();\n"
      "  const long long index = blockIdx.x * 128ll + threadIdx.x;\n",
      program.name, operand_count(program, plan));
  source.text += VectorText(program, plan).write();
  source.text += "}\n\n}  // namespace coda_device\n";
  return source;
}

}  // namespace coda::cuda
