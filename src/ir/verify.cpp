// What makes a Program well formed. Types of values come from infer.cpp; here stand the rules about
// the whole: names, operands, the GEMM, and that every output is stored once.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/check.h"
#include "ir/infer.h"
#include "ir/sections.h"
#include "ops/op_table.h"

namespace coda {

namespace {

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.';
  });
}

[[noreturn]] void fail(const Program& program, const std::string& what, const std::string& fix) {
  throw_error<ProgramError>("program {}: {}. {}.", program.name, what, fix);
}

void check_names(const Program& program) {
  if (!is_name(program.name)) {
    fail(program,
         fmt::format("expected a name of letters, digits, '_' and '.', got \"{}\"", program.name),
         "Name the program");
  }
  std::set<std::string> operands, values;
  for (const Operand& operand : program.operands) {
    if (!is_name(operand.name)) {
      fail(program,
           fmt::format("operand: expected a name of letters, digits, '_' and '.', got \"{}\"",
                       operand.name),
           "Name the operand");
    }
    if (!operands.insert(operand.name).second) {
      fail(program, fmt::format("operand {}: expected a unique name, got it twice", operand.name),
           "Rename one of the two");
    }
  }
  for (const Value& value : program.values) {
    if (value.name.empty()) continue;
    if (!is_name(value.name)) {
      fail(program,
           fmt::format("value: expected a name of letters, digits, '_' and '.', got \"{}\"",
                       value.name),
           "Rename the value");
    }
    if (!values.insert(value.name).second) {
      fail(program, fmt::format("value %{}: expected a unique name, got it twice", value.name),
           "Rename one of the two");
    }
  }
}

void check_types(const Program& program) {
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    const Value& value = program.values[i];
    const ValueType inferred = infer(program, index);
    if (is_store(value.op)) continue;
    const bool wide =
        inferred.kind == Kind::tile || inferred.kind == Kind::weight || inferred.kind == Kind::row;
    // Tiles of features may be written as weights: the kind tells the same shape.
    const auto group = [](Kind kind) { return kind == Kind::weight ? Kind::tile : kind; };
    if (group(value.kind) != group(inferred.kind) || value.partial != inferred.partial ||
        (wide && value.cols != inferred.cols)) {
      fail(program,
           fmt::format("{}: value {}: expected {} (what {} makes), got {}",
                       call_text(program, index), name_text(program, index),
                       type_text(program, inferred), name_of(value.op),
                       type_text(program, {value.kind, value.cols, value.partial})),
           "Write the type that the op's shape rule gives");
    }
    if (!is_whole(inferred.cols)) {
      fail(program,
           fmt::format("{}: expected a whole number of columns, got {}", call_text(program, index),
                       to_string(inferred.cols)),
           "Choose a width that the op divides");
    }
  }
}

void check_form(const Program& program) {
  std::int32_t accs = 0;
  for (const Value& value : program.values) {
    accs += value.op == Op::acc;
    if (program.form == Form::vectors && !is_store(value.op) &&
        (value.kind == Kind::tile || value.kind == Kind::weight)) {
      fail(program,
           fmt::format(
               "{}: expected vectors and scalars only (a vector program), got a "
               "tile",
               call_text(program, static_cast<std::int32_t>(&value - program.values.data()))),
           "Use a row program");
    }
  }
  if (program.form == Form::gemm && accs != 1) {
    fail(
        program, fmt::format("expected one accumulator, got {}", accs),
        accs == 0 ? "A program that reads no acc is a row program" : "Slice the one acc with cols");
  }
}

/// Reads and writes of each operand; the GEMM's operands count as reads.
void check_operands(const Program& program) {
  std::vector<int> uses(program.operands.size(), 0);
  for (const Value& value : program.values) {
    if (value.operand < 0) continue;
    int& count = uses[static_cast<std::size_t>(value.operand)];
    ++count;
    if (is_store(value.op) && count > 1) {
      fail(program,
           fmt::format("output {}: expected one store, got several",
                       program.operands[static_cast<std::size_t>(value.operand)].name),
           "Declare an output for each store");
    }
  }
  if (program.gemm.a >= 0) {
    ++uses[static_cast<std::size_t>(program.gemm.a)];
    for (const std::int32_t b : program.gemm.b) ++uses[static_cast<std::size_t>(b)];
  }
  bool any = false;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const Operand& operand = program.operands[i];
    any = any || operand.output;
    if (uses[i] == 0) {
      fail(program,
           fmt::format("operand {}: expected it to be {}, got no use of it", operand.name,
                       operand.output ? "stored" : "read"),
           operand.output ? "Store a value in it, or remove it" : "Remove it");
    }
    if (operand.accumulate && (!operand.output || operand.partial || operand.dtype != DType::f32)) {
      fail(program,
           fmt::format("operand {}: expected a complete f32 output to accumulate into, got "
                       "a {}{}{}",
                       operand.name, operand.partial ? "partial " : "", name_of(operand.dtype),
                       operand.output ? " output" : " input"),
           "Accumulate in f32 outputs only");
    }
  }
  if (!any)
    fail(program, "expected at least one output, got none", "Store what the program is for");
}

void check_gemm(const Program& program) {
  const Gemm& gemm = program.gemm;
  if (program.form != Form::gemm) return;
  const auto size = static_cast<std::int32_t>(program.operands.size());
  if (gemm.a < 0 && gemm.b.empty()) return;  // an epilogue alone: operands come when planned
  if (gemm.a < 0 || gemm.a >= size || gemm.b.empty() ||
      std::any_of(gemm.b.begin(), gemm.b.end(), [&](auto b) { return b < 0 || b >= size; })) {
    fail(program, "gemm: expected operands A and B, got an index out of range",
         "Declare both among the operands");
  }
  if (gemm.transpose_a && gemm.transpose_b) {
    fail(program, "gemm: expected nt, nn or tn, got both operands transposed",
         "Swap A and B instead");
  }
  const auto at = [&](std::int32_t i) -> const Operand& {
    return program.operands[static_cast<std::size_t>(i)];
  };
  const auto expect = [&](const Operand& operand, const char* what, Dim want, Dim got) {
    if (operand.output) {
      fail(program, fmt::format("gemm: operand {}: expected an input, got an output", operand.name),
           "A program never writes what it reads");
    }
    if (operand.partial || (operand.kind != Kind::tile && operand.kind != Kind::weight)) {
      fail(program,
           fmt::format("gemm: operand {}: expected a tile or a weight, got a {}", operand.name,
                       name_of(operand.kind)),
           "Matrix products read matrices");
    }
    if (want != got) {
      fail(program,
           fmt::format("gemm: operand {}: expected {} {}, got {}", operand.name, to_string(want),
                       what, to_string(got)),
           "Give A [M, K] and B [N, K] (nt), [K, N] (nn), or A [K, N1] and B [K, N2] (tn)");
    }
  };
  // Sums the extents of B's row blocks; numbers unless there is a single block.
  const auto stacked = [&] {
    if (gemm.b.size() == 1) return at(gemm.b[0]).rows;
    Dim total = Dim::number(0);
    for (const std::int32_t b : gemm.b) {
      if (at(b).rows.symbol != Dim::Symbol::none) {
        fail(program,
             fmt::format("gemm: operand {}: expected a number of rows in a list of row "
                         "blocks, got {}",
                         at(b).name, to_string(at(b).rows)),
             "Blocks of B are weights with known rows");
      }
      total.num += at(b).rows.num;
    }
    return total;
  };
  if (gemm.transpose_a) {
    expect(at(gemm.a), "rows (K)", gemm.k, at(gemm.a).rows);
    expect(at(gemm.a), "columns (N1, rows of acc)", program.rows, at(gemm.a).cols);
    if (gemm.b.size() != 1)
      fail(program, "gemm: expected one operand B in tn, got a list",
           "Both operands contract over tokens");
    expect(at(gemm.b[0]), "rows (K)", gemm.k, at(gemm.b[0]).rows);
    expect(at(gemm.b[0]), "columns (N2, columns of acc)", program.cols, at(gemm.b[0]).cols);
    return;
  }
  expect(at(gemm.a), "rows (those of acc)", program.rows, at(gemm.a).rows);
  expect(at(gemm.a), "columns (K)", gemm.k, at(gemm.a).cols);
  for (const std::int32_t b : gemm.b) {
    expect(at(b), gemm.transpose_b ? "columns (K)" : "columns (N)",
           gemm.transpose_b ? gemm.k : program.cols, at(b).cols);
  }
  expect(at(gemm.b[0]),
         gemm.transpose_b ? "rows in all blocks of B (N)" : "rows in all blocks of B (K)",
         gemm.transpose_b ? program.cols : gemm.k, stacked());
}

}  // namespace

void verify(const Program& program) {
  check_names(program);
  check_types(program);
  check_form(program);
  check_gemm(program);
  check_operands(program);
  if (program.form == Form::gemm && program.cols.symbol == Dim::Symbol::none) {
    (void)sections_of(program);  // blocks of one section are equally wide
  }
}

}  // namespace coda
