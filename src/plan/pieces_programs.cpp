#include "plan/pieces_programs.h"

#include <algorithm>
#include <utility>

namespace coda {

bool sums_vectors(const Step& step) {
  if (!step.program || step.program->form != Form::vectors) return false;
  const auto& values = step.program->values;
  const auto is_sum = [&](std::int32_t v) {
    return values[static_cast<std::size_t>(v)].op == Op::sum;
  };
  return std::all_of(values.begin(), values.end(), [&](const Value& value) {
    if (value.op == Op::store_partial) return false;
    // A sum that something else is made of would have to be of all rows.
    if (value.op != Op::store_vector)
      return std::none_of(value.args.begin(), value.args.end(), is_sum);
    const Operand& operand = step.program->operands[static_cast<std::size_t>(value.operand)];
    return is_sum(value.args[0]) && operand.dtype == DType::f32;
  });
}

std::shared_ptr<Program> adding(const Program& program) {
  auto more = std::make_shared<Program>(program);
  more->name += "_more";
  for (Operand& operand : more->operands) operand.accumulate = operand.output;
  return more;
}

std::shared_ptr<Program> without_addend(const Program& program, std::int32_t operand) {
  auto rest = std::make_shared<Program>(program);
  std::vector<std::int32_t> place(program.values.size(), -1);  // in `rest`, of what a value becomes
  rest->values.clear();
  std::int32_t load = -1;
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    Value value = program.values[i];
    if (value.operand == operand) {
      load = static_cast<std::int32_t>(i);
      continue;
    }
    const auto addend = std::find(value.args.begin(), value.args.end(), load);
    if (load >= 0 && addend != value.args.end()) {
      const std::int32_t sum = value.args[addend == value.args.begin() ? 1 : 0];
      place[i] = place[static_cast<std::size_t>(sum)];
      continue;
    }
    for (std::int32_t& arg : value.args) arg = place[static_cast<std::size_t>(arg)];
    if (value.operand > operand) --value.operand;
    place[i] = static_cast<std::int32_t>(rest->values.size());
    rest->values.push_back(std::move(value));
  }
  rest->operands.erase(rest->operands.begin() + operand);
  const auto lower = [&](std::int32_t& at) { at -= at > operand ? 1 : 0; };
  lower(rest->gemm.a);
  for (std::int32_t& b : rest->gemm.b) lower(b);
  return rest;
}

Step with_stores(const Step& step, const std::vector<char>& keep) {
  const Program& program = *step.program;
  std::vector<char> values(program.values.size(), 0), operands(program.operands.size(), 0);
  for (std::size_t v = program.values.size(); v-- > 0;) {
    const Value& value = program.values[v];
    values[v] = values[v] || keep[v];
    for (const std::int32_t arg : value.args) values[static_cast<std::size_t>(arg)] |= values[v];
    if (value.operand >= 0) operands[static_cast<std::size_t>(value.operand)] |= values[v];
  }
  auto part = std::make_shared<Program>(program);
  part->values.clear();
  part->operands.clear();
  Step kept = step;
  kept.slices.clear();
  std::vector<std::int32_t> place(program.values.size(), -1), operand(program.operands.size(), -1);
  for (std::size_t i = 0; i < program.operands.size(); ++i) {
    if (!operands[i]) continue;
    operand[i] = static_cast<std::int32_t>(part->operands.size());
    part->operands.push_back(program.operands[i]);
    kept.slices.push_back(step.slices[i]);
  }
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    if (!values[v]) continue;
    Value value = program.values[v];
    for (std::int32_t& arg : value.args) arg = place[static_cast<std::size_t>(arg)];
    if (value.operand >= 0) value.operand = operand[static_cast<std::size_t>(value.operand)];
    place[v] = static_cast<std::int32_t>(part->values.size());
    part->values.push_back(std::move(value));
  }
  kept.program = std::move(part);
  return kept;
}

}  // namespace coda
