#include "ir/sections.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ir/infer.h"

namespace coda {

namespace {

bool is_tile(const Value& value) { return value.kind == Kind::tile || value.kind == Kind::weight; }

/// True for values and stores that depend on a tile (a reduction does, a loaded vector does not).
std::vector<char> tile_dependent(const Program& program) {
  std::vector<char> depends(program.values.size(), 0);
  for (std::size_t i = 0; i < depends.size(); ++i) {
    const Value& value = program.values[i];
    depends[i] = !is_store(value.op) && is_tile(value);
    for (const std::int32_t arg : value.args) depends[i] |= depends[static_cast<std::size_t>(arg)];
  }
  return depends;
}

std::int32_t root(std::vector<std::int32_t>& parent, std::int32_t i) {
  while (parent[static_cast<std::size_t>(i)] != i) {
    auto& up = parent[static_cast<std::size_t>(i)];
    up = parent[static_cast<std::size_t>(up)];
    i = up;
  }
  return i;
}

/// acc is a block itself only if something besides cols reads it.
bool acc_is_block(const Program& program, std::int32_t acc) {
  return std::any_of(program.values.begin(), program.values.end(), [&](const Value& value) {
    return value.op != Op::cols &&
           std::find(value.args.begin(), value.args.end(), acc) != value.args.end();
  });
}

}  // namespace

std::vector<Section> sections_of(const Program& program) {
  const auto count = static_cast<std::int32_t>(program.values.size());
  const auto at = [&](std::int32_t i) -> const Value& {
    return program.values[static_cast<std::size_t>(i)];
  };
  const std::vector<char> depends = tile_dependent(program);
  std::vector<std::int32_t> parent(static_cast<std::size_t>(count));
  std::iota(parent.begin(), parent.end(), 0);
  for (std::int32_t i = 0; i < count; ++i) {
    for (const std::int32_t arg : at(i).args) {
      const bool cuts_acc = at(i).op == Op::cols && at(arg).op == Op::acc;
      if (depends[static_cast<std::size_t>(arg)] && !cuts_acc) {
        parent[static_cast<std::size_t>(root(parent, i))] = root(parent, arg);
      }
    }
  }
  std::vector<Section> sections;
  std::vector<std::int32_t> section_of(static_cast<std::size_t>(count), -1);
  for (std::int32_t i = 0; i < count; ++i) {
    const Value& value = at(i);
    if (!depends[static_cast<std::size_t>(i)]) continue;
    if (value.op == Op::acc && !acc_is_block(program, i)) continue;
    auto& slot = section_of[static_cast<std::size_t>(root(parent, i))];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(sections.size());
      sections.emplace_back();
    }
    Section& section = sections[static_cast<std::size_t>(slot)];
    section.values.push_back(i);
    const bool block =
        value.op == Op::acc || (value.op == Op::cols && at(value.args[0]).op == Op::acc);
    if (block) {
      if (!section.acc_offsets.empty() && section.width != value.cols.num) {
        throw_error<ProgramError>(
            "program {}: value {}: expected column blocks of equal width in one epilogue, got {} "
            "linked with blocks of {} columns. Store one of them and combine in another program.",
            program.name, name_text(program, i), value.cols.num, section.width);
      }
      section.width = value.cols.num;
      section.acc_offsets.push_back(value.op == Op::acc ? 0 : value.attrs.lo);
    } else if (section.acc_offsets.empty() && is_tile(value) && !is_store(value.op)) {
      section.width = std::max(section.width, value.cols.num);
    }
  }
  for (Section& section : sections) {
    std::sort(section.acc_offsets.begin(), section.acc_offsets.end());
    const auto last = std::unique(section.acc_offsets.begin(), section.acc_offsets.end());
    section.acc_offsets.erase(last, section.acc_offsets.end());
  }
  return sections;
}

std::vector<std::int32_t> prologue_of(const Program& program) {
  const std::vector<char> depends = tile_dependent(program);
  std::vector<std::int32_t> values;
  for (std::size_t i = 0; i < depends.size(); ++i) {
    if (!depends[i]) values.push_back(static_cast<std::int32_t>(i));
  }
  return values;
}

}  // namespace coda
