// The kernel for what no accumulator fragment can hold (columns that would move between lanes,
// slices that cut through pairs or granules): the product is in memory, every node is made whole,
// one launch a node or store, one thread an element. Slow and right, for odd widths only.
#include "backend/cuda/device_sources.h"
#include "backend/cuda/epilogue_source.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

using lowering::Node;
using lowering::Ref;
using lowering::Sink;
using i32 = std::int32_t;
using i64 = std::int64_t;

std::size_t at(i32 index) { return static_cast<std::size_t>(index); }

class GeneralText {
 public:
  GeneralText(const Program& program, const EpiloguePlan& plan) : program_(program), plan_(plan) {}

  std::string write() {
    std::string text;
    for (std::size_t s = 0; s < plan_.general_stages.size(); ++s) {
      const GeneralStage& stage = plan_.general_stages[s];
      body_.clear();
      if (stage.sink) {
        write_sink(plan_.lowered.sections[at(stage.section)].sinks[at(stage.index)]);
      } else {
        write_node(stage.index);
      }
      text += fmt::format("  if (p.stage == {}) {{\n{}  }}\n", s, body_);
    }
    return text;
  }

 private:
  const Node& node(i32 index) const { return plan_.lowered.nodes[at(index)]; }
  void add(const std::string& line) { body_ += "    " + line + "\n"; }
  static std::string operand(std::size_t index) { return fmt::format("p.operands[{}]", index); }

  /// Element (r, c) of a node, from memory.
  std::string element(i32 index, const std::string& r, const std::string& c) const {
    const Node& n = node(index);
    if (n.op == Op::acc || n.op == Op::load_tile) {
      const bool acc = n.op == Op::acc;
      const std::string from = operand(acc ? acc_operand() : at(n.operand));
      const auto type =
          acc ? element_text(DType::f32) : element_text(program_.operands[at(n.operand)].dtype);
      return fmt::format("{}::load({}.pointer, ({} + {}) * {}.stride + ({}) + {})", type, from, r,
                         n.row, from, c, n.col);
    }
    return fmt::format("F32::load({0}.pointer, ({1}) * {0}.stride + ({2}))",
                       operand(node_operand(index)), r, c);
  }
  std::size_t acc_operand() const { return operand_count(program_, plan_); }
  std::size_t node_operand(i32 index) const {
    std::size_t place = acc_operand() + 1;
    for (const GeneralStage& stage : plan_.general_stages) {
      if (stage.sink) continue;
      if (stage.index == index) return place;
      ++place;
    }
    throw_error<InternalError>("epilogue: {}: a node without memory", program_.name);
  }

  /// A vector value: where it lies, or a literal.
  std::string vector(const Ref& ref, const std::string& r, const std::string& c) const {
    const Value& v = program_.values[at(ref.index)];
    if (v.op == Op::constant) return literal_text(v.attrs.value);
    std::size_t from = at(v.operand);
    auto type = element_text(DType::f32);
    if (is_direct(program_, ref.index)) {
      type = element_text(program_.operands[from].dtype);
    } else {
      from = slot_of(ref.index, -1);
    }
    const std::string place = ref.kind == Ref::Kind::col   ? fmt::format("({} + {}) * {}.stride", r,
                                                                         ref.offset, operand(from))
                              : ref.kind == Ref::Kind::row ? fmt::format("({}) + {}", c, ref.offset)
                                                           : "0";
    return fmt::format("{}::load({}.pointer, {})", type, operand(from), place);
  }
  std::size_t slot_of(i32 value, i32 frequency) const {
    for (std::size_t s = 0; s < plan_.vectors.size(); ++s)
      if (plan_.vectors[s].value == value && plan_.vectors[s].frequency == frequency)
        return program_.operands.size() + s;
    throw_error<InternalError>("epilogue: {}: no slot for vector %{}", program_.name, value);
  }
  std::string argument(const Ref& ref) const {
    return ref.kind == Ref::Kind::tile ? element(ref.index, "r", "c") : vector(ref, "r", "c");
  }
  /// Row r's target.
  std::string target(const Ref& ref) const {
    const Value& v = program_.values[at(ref.index)];
    return fmt::format("load_integer({0}.pointer, (r + {1}) * {0}.stride, {2})",
                       operand(at(v.operand)), ref.offset,
                       program_.operands[at(v.operand)].dtype == DType::i64);
  }

  void write_node(i32 index) {
    const Node& n = node(index);
    add(fmt::format("const long long r = index / {}, c = index % {};", n.width, n.width));
    add("if (r >= p.rows) return;");
    add("float y = 0.0f;");
    const bool interleaved = n.attrs.layout == PairLayout::interleaved;
    const auto tile = [&](std::size_t arg, const std::string& c) {
      return element(n.args[arg].index, "r", c);
    };
    switch (n.op) {
      case Op::onehot:
        add(fmt::format("const long long t = {};", target(n.args[0])));
        add(fmt::format("y = t != {}ll && t == c + {} ? 1.0f : 0.0f;", n.attrs.ignore_index,
                        n.col));
        break;
      case Op::broadcast:
        add(fmt::format("y = {};", argument(n.args[0])));
        break;
      case Op::cols:
        add(fmt::format("y = {};", tile(0, fmt::format("c + {}", n.attrs.lo))));
        break;
      case Op::cat_cols: {
        i64 start = 0;
        for (std::size_t i = 0; i < n.args.size(); ++i) {
          const i64 width = node(n.args[i].index).width;
          add(fmt::format("if (c >= {} && c < {}) y = {};", start, start + width,
                          tile(i, fmt::format("c - {}", start))));
          start += width;
        }
        break;
      }
      case Op::first_of_pair:
      case Op::second_of_pair: {
        const int second = n.op == Op::second_of_pair ? 1 : 0;
        const i64 half = (n.attrs.period == 0 ? 2 * n.width : n.attrs.period) / 2;
        add(fmt::format("y = {};",
                        tile(0, interleaved ? fmt::format("2 * c + {}", second)
                                            : fmt::format("c / {0} * {1} + c % {0} + {2}", half,
                                                          2 * half, second * half))));
        break;
      }
      case Op::join: {
        const i64 half = (n.attrs.period == 0 ? n.width : n.attrs.period) / 2;
        const std::string first = interleaved ? "c % 2 == 0" : fmt::format("c / {} % 2 == 0", half);
        const std::string from =
            interleaved ? "c / 2" : fmt::format("c / {1} * {0} + c % {0}", half, 2 * half);
        add(fmt::format("y = {} ? {} : {};", first, tile(0, from), tile(1, from)));
        break;
      }
      case Op::rotate:
      case Op::unrotate: {
        const std::size_t table = slot_of(n.args[1].index, n.args[2].index);
        const i64 period = plan_.vectors[table - program_.operands.size()].period,
                  half = period / 2;
        const std::string first =
            interleaved ? "c % 2 == 0" : fmt::format("c % {} < {}", period, half);
        const i64 other = interleaved ? 1 : half;
        add(fmt::format("const bool first = {};", first));
        add(fmt::format("const long long f = {};", interleaved ? fmt::format("c / 2 % {}", half)
                                                               : fmt::format("c % {}", half)));
        add(fmt::format("const long long angle = (r + {}) * {}.stride + f;", n.args[1].offset,
                        operand(table)));
        add(fmt::format("const float cosine = F32::load({}.pointer, angle);", operand(table)));
        add(fmt::format("const float sine = {}F32::load({}.pointer, angle + {});",
                        n.op == Op::unrotate ? "-" : "", operand(table), half));
        add(fmt::format("const float x = {}, z = {};", tile(0, "c"),
                        tile(0, fmt::format("first ? c + {} : c - {}", other, other))));
        add("y = first ? op::sub(op::mul(x, cosine), op::mul(z, sine))");
        add("          : op::add(op::mul(x, cosine), op::mul(z, sine));");
        break;
      }
      case Op::segment_sum:
        add(fmt::format("for (int e = 0; e < {}; ++e) y = op::add(y, {});", n.attrs.period,
                        tile(0, fmt::format("c * {} + e", n.attrs.period))));
        break;
      case Op::segment_broadcast:
        add(fmt::format("y = {};", tile(0, fmt::format("c / {}", n.attrs.period))));
        break;
      default: {
        const std::string a = argument(n.args[0]);
        const std::string b = n.args.size() > 1 ? argument(n.args[1]) : "";
        add(fmt::format("y = {};", op_text(n.op, n.attrs, a, b)));
      }
    }
    add(fmt::format("F32::store({0}.pointer, r * {0}.stride + c, y);",
                    operand(node_operand(index))));
  }

  void write_sink(const Sink& sink) {
    const i64 width = node(sink.node).width;
    const Operand& to = program_.operands[at(sink.operand)];
    const std::string where = operand(at(sink.operand));
    const std::string value = element(sink.node, "r", "c");
    if (sink.op == Op::store_tile) {
      add(fmt::format("const long long r = index / {}, c = index % {};", width, width));
      add("if (r >= p.rows) return;");
      add(fmt::format("const long long to = r * {}.stride + c + {};", where, sink.col));
      const auto type = element_text(to.dtype);
      const std::string y =
          to.accumulate ? fmt::format("op::add({}::load({}.pointer, to), {})", type, where, value)
                        : value;
      add(fmt::format("{}::store({}.pointer, to, {});", type, where, y));
      return;
    }
    if (sink.op == Op::col_sum) {
      add(fmt::format("const long long g = index / {}, c = index % {};", width, width));
      add(fmt::format("if (g * {} >= p.rows) return;", kRowGranule));
      add("float y = 0.0f;");
      add(
          fmt::format("for (long long r = g * {0}; r < g * {0} + {0} && r < p.rows; ++r) y = "
                      "op::add(y, {1});",
                      kRowGranule, value));
      add(fmt::format("F32::store({0}.pointer, g * {0}.stride + c + {1}, y);", where, sink.col));
      return;
    }
    const i64 granules = (width + kColumnGranule - 1) / kColumnGranule;
    add(fmt::format("const long long r = index / {}, g = index % {};", granules, granules));
    add("if (r >= p.rows) return;");
    const bool online = is_online(sink.op);
    add(sink.op == Op::row_max ? "float y = minus_infinity();" : "float y = 0.0f;");
    if (online) add("LogSum all;");
    if (sink.op == Op::pick) add(fmt::format("const long long t = {};", target(sink.target)));
    add(fmt::format("for (long long c = g * {0}; c < g * {0} + {0} && c < {1}; ++c) {{",
                    kColumnGranule, width));
    if (online) {
      add(fmt::format("  all.add({});", value));
    } else if (sink.op == Op::pick) {
      add(fmt::format("  if (t != {}ll && t == c + {}) y = {};", sink.ignore_index, sink.col,
                      value));
    } else {
      add(fmt::format("  y = op::{}(y, {});", sink.op == Op::row_max ? "maximum" : "add", value));
    }
    add("}");
    const i64 first = sink.col / kColumnGranule;
    add(fmt::format("F32::store({0}.pointer, (g + {1}) * {0}.stride + r, {2});", where, first,
                    online ? "all.max" : "y"));
    if (online)
      add(fmt::format(
          "F32::store({0}.pointer, (g + {1} + {0}.rows / 2) * {0}.stride + r, all.sum);", where,
          first));
  }

  const Program& program_;
  const EpiloguePlan& plan_;
  std::string body_;
};

}  // namespace

std::vector<GeneralStage> general_stages(const EpiloguePlan& plan) {
  std::vector<GeneralStage> stages;
  for (const i32 s : plan.general) {
    const auto& section = plan.lowered.sections[at(s)];
    for (const i32 index : section.nodes) {
      const Node& n = plan.lowered.nodes[at(index)];
      if (n.op != Op::acc && n.op != Op::load_tile) stages.push_back({s, index, false});
    }
    for (std::size_t i = 0; i < section.sinks.size(); ++i)
      stages.push_back({s, static_cast<i32>(i), true});
  }
  return stages;
}

i64 general_threads(const EpiloguePlan& plan, const GeneralStage& stage, i64 rows) {
  const auto& section = plan.lowered.sections[at(stage.section)];
  if (!stage.sink) return rows * plan.lowered.nodes[at(stage.index)].width;
  const Sink& sink = section.sinks[at(stage.index)];
  const i64 width = plan.lowered.nodes[at(sink.node)].width;
  if (sink.op == Op::store_tile) return rows * width;
  if (sink.op == Op::col_sum) return (rows + kRowGranule - 1) / kRowGranule * width;
  return rows * ((width + kColumnGranule - 1) / kColumnGranule);
}

KernelSource general_source(const Program& program, const EpiloguePlan& plan) {
  KernelSource source;
  source.name = fmt::format("general_{}", program.name);
  source.entry = "coda_general";
  source.text = device_text({"params.cuh", "ptx.cuh", "elements.cuh", "op_math.cuh"});
  std::size_t operands = operand_count(program, plan) + 1;
  for (const GeneralStage& stage : plan.general_stages) operands += stage.sink ? 0 : 1;
  source.text += fmt::format(
      "// Nodes of {}\nnamespace coda_device {{\n"
      "struct GeneralParams {{\n  EpilogueOperand operands[{}];\n  int rows;\n  int stage;\n}};\n\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "    coda_general(const __grid_constant__ GeneralParams p) {{\n"
      "  const long long index = blockIdx.x * 128ll + threadIdx.x;\n",
      program.name, operands);
  source.text += GeneralText(program, plan).write();
  source.text += "}\n\n}  // namespace coda_device\n";
  return source;
}

Program product_of(const Program& program) {
  Program product;
  product.name = program.name + "_product";
  product.form = Form::gemm;
  product.gemm = program.gemm;
  product.rows = program.rows;
  product.cols = program.cols;
  product.operands = program.operands;
  Operand to;
  to.name = "product";
  to.kind = Kind::tile;
  to.dtype = DType::f32;
  to.rows = program.rows;
  to.cols = program.cols;
  to.output = true;
  product.operands.push_back(to);
  const auto add = [&](Op op, std::vector<i32> args, i64 lo, i64 hi) {
    Value v;
    v.op = op;
    v.args = std::move(args);
    v.attrs.lo = op == Op::cols ? lo : 0;
    v.attrs.hi = op == Op::cols ? hi : 0;
    v.cols = Dim::number(hi - lo);
    v.name = fmt::format("product_{}", product.values.size());
    product.values.push_back(v);
    return static_cast<i32>(product.values.size()) - 1;
  };
  const i64 width = program.cols.num;
  i32 all = add(Op::acc, {}, 0, width);
  // Each row block of B by itself: a tile of C never crosses from one to the next.
  if (program.gemm.transpose_b && program.gemm.b.size() > 1) {
    std::vector<i32> blocks;
    i64 lo = 0;
    for (const i32 b : program.gemm.b) {
      const i64 hi = lo + program.operands[static_cast<std::size_t>(b)].rows.num;
      blocks.push_back(add(Op::cols, {0}, lo, hi));
      lo = hi;
    }
    all = add(Op::cat_cols, blocks, 0, width);
  }
  add(Op::store_tile, {all}, 0, width);
  product.values.back().operand = static_cast<i32>(product.operands.size()) - 1;
  product.values.back().name.clear();
  return product;
}

}  // namespace coda::cuda
