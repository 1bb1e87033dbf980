#include "plan/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "ops/op_table.h"
#include "ops/opaque.h"

namespace coda {
namespace {

const char* form_name(Form form) {
  switch (form) {
    case Form::gemm:
      return "gemm";
    case Form::rows:
      return "rows";
    case Form::vectors:
      return "vectors";
  }
  return "?";
}

std::string counted(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// "5 elementwise ops, 1 rotation; loads 2 tiles; stores 3 tiles, 1 partial"
std::string fused_text(const Program& program) {
  int math = 0, loads = 0, stores = 0, partials = 0, vectors = 0;
  std::map<std::string_view, int> named;
  for (const Value& value : program.values) {
    const bool tile = value.kind == Kind::tile || value.kind == Kind::weight;
    switch (row_of(value.op).op_class) {
      case OpClass::memory:
        loads += value.op == Op::load_tile;
        vectors += value.op == Op::load_row || value.op == Op::load_col;
        stores += value.op == Op::store_tile;
        partials += value.op == Op::store_partial;
        break;
      case OpClass::elementwise:
        math += tile && value.op != Op::cast;
        break;
      case OpClass::pairs:
      case OpClass::segment:
      case OpClass::reduction:
      case OpClass::target:
        ++named[row_of(value.op).name];
        break;
      default:
        break;
    }
  }
  if (math + loads + partials == 0 && named.empty() && stores <= 1) return "";
  std::string text = counted(math, "elementwise op");
  for (const auto& [name, count] : named) text += fmt::format(", {} {}", count, name);
  text += fmt::format("; loads {}, {}; stores {}, {}", counted(loads, "tile"),
                      counted(vectors, "vector"), counted(stores, "tile"),
                      counted(partials, "partial"));
  return text;
}

double floor_of(const Cost& cost, const Peaks& peaks) {
  const double math = peaks.flops_per_second > 0 ? cost.flops / peaks.flops_per_second : 0;
  const double memory = peaks.bytes_per_second > 0 ? cost.bytes / peaks.bytes_per_second : 0;
  return std::max(math, memory);
}

/// Operands A and B and one result of acc's extents, in the type of A.
double bare_bytes(const Step& step, const Plan& plan, std::int64_t tokens) {
  const Program& program = *step.program;
  const auto size = [&](Dim dim) {
    return dim.symbol == Dim::Symbol::M ? static_cast<double>(tokens)
                                        : static_cast<double>(dim.num);
  };
  const auto bytes = [&](std::int32_t operand) {
    const Operand& o = program.operands[static_cast<std::size_t>(operand)];
    const Slice& slice = step.slices[static_cast<std::size_t>(operand)];
    const DType dtype = plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype;
    return size(o.rows) * size(o.cols) * static_cast<double>(size_of(dtype));
  };
  double total = bytes(program.gemm.a);
  for (const std::int32_t b : program.gemm.b) total += bytes(b);
  const DType dtype = program.operands[static_cast<std::size_t>(program.gemm.a)].dtype;
  return total + size(program.rows) * size(program.cols) * static_cast<double>(size_of(dtype));
}

}  // namespace

PlanReport report(const Plan& plan, std::int64_t tokens, const Peaks& peaks) {
  if (tokens < 0) throw_error<UsageError>("explain: expected 0 tokens or more, got {}.", tokens);
  PlanReport report;
  report.tokens = tokens;
  report.math = plan.math;
  report.rewrites = plan.rewrites;
  report.saved_bytes = saved_bytes(plan, tokens);
  for (const auto* steps : {&plan.forward, &plan.backward})
    for (const Step& step : *steps) {
      const bool forward = steps == &plan.forward;
      StepReport entry;
      entry.phase = forward ? "forward" : "backward";
      entry.cost = cost_of(step, plan, tokens);
      entry.floor_seconds = floor_of(entry.cost, peaks);
      entry.note = step.note;
      entry.piece = step.piece;
      if (step.program) {
        entry.name = step.program->name;
        entry.form = form_name(step.program->form);
        entry.text = to_string(*step.program);
        if (step.program->form == Form::gemm) {
          entry.fused = fused_text(*step.program);
          report.gemm_bytes += bare_bytes(step, plan, tokens);
        }
      } else {
        entry.name = row_of(step.opaque).name;
        entry.form = "opaque";
        entry.counted = false;
        report.counted = false;
      }
      Cost& phase = forward ? report.forward : report.backward;
      phase.bytes += entry.cost.bytes;
      phase.flops += entry.cost.flops;
      report.floor_seconds += entry.floor_seconds;
      report.steps.push_back(std::move(entry));
    }
  return report;
}

std::string explain(const Plan& plan, std::int64_t tokens, const Peaks& peaks, bool programs) {
  const PlanReport r = report(plan, tokens, peaks);
  std::string text = fmt::format("math\n{}\n", r.math);
  if (!r.rewrites.empty()) text += "rewrites\n";
  for (const std::string& rewrite : r.rewrites) text += fmt::format("  {}\n", rewrite);
  const char* phase = "";
  std::set<std::string> seen;  // what a program is stands at its first piece
  for (const StepReport& step : r.steps) {
    if (step.phase != phase) text += fmt::format("\n{}, M = {}\n", step.phase, tokens);
    phase = step.phase == "forward" ? "forward" : "backward";
    text += fmt::format("  {:<8}{:<40}{:>10.1f} MB{:>12} GFLOP", step.form, step.name,
                        step.cost.bytes / 1e6,
                        step.counted ? fmt::format("{:.1f}", step.cost.flops / 1e9) : "n/a");
    if (step.floor_seconds > 0) text += fmt::format("{:>12.1f} us", step.floor_seconds * 1e6);
    if (step.piece.count > 1)
      text += fmt::format("  rows: piece {} of {}", step.piece.index + 1, step.piece.count);
    text += "\n";
    if (!seen.insert(step.name).second && step.piece.count > 1) continue;
    if (!step.fused.empty()) text += fmt::format("    fused: {}\n", step.fused);
    if (!step.note.empty()) text += fmt::format("    apart: {}\n", step.note);
    if (programs && !step.text.empty()) text += step.text;
  }
  text += fmt::format(
      "\nforward {:.1f} MB, {:.1f} GFLOP; backward {:.1f} MB, {:.1f} GFLOP; held between them "
      "{:.1f} MB; the GEMMs alone move {:.1f} MB\n",
      r.forward.bytes / 1e6, r.forward.flops / 1e9, r.backward.bytes / 1e6, r.backward.flops / 1e9,
      r.saved_bytes / 1e6, r.gemm_bytes / 1e6);
  if (!r.counted) text += "GFLOP and floors leave out the operations of opaque steps\n";
  if (r.floor_seconds > 0)
    text += fmt::format("floor at {:.1f} TFLOP/s and {:.2f} TB/s: {:.1f} us\n",
                        peaks.flops_per_second / 1e12, peaks.bytes_per_second / 1e12,
                        r.floor_seconds * 1e6);
  return text;
}

}  // namespace coda
