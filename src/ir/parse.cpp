// Text -> Program. The grammar is what print.cpp writes:
//
//   [row | vector] program NAME(%acc: [DIM, DIM] [= nt|nn|tn A, B], OPERAND, ...) -> (OPERAND, ...)
//   {
//     %NAME = OP [ATTRIBUTES] ARGUMENT, ... : [partial] [DIM, ...]
//     store_tile OPERAND, %NAME
//   }
//
// OPERAND is `name: [+=] [partial] dtype[DIM, ...]`; B is a name or a list [b0; b1; ...]. Kinds are
// not written: two extents are a tile (rows M) or a weight, one is what loads it.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/check.h"
#include "ir/infer.h"
#include "ops/op_table.h"

namespace coda {

namespace {

std::optional<Op> op_named(std::string_view name) {
  for (const OpRow& row : op_table()) {
    if (row.name == name) return row.op;
  }
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Program run() {
    header();
    while (!accept("}")) statement();
    skip();
    if (at_ < text_.size()) fail("the end of the text", "Give one program at a time");
    resolve_rows();
    finish_types();
    verify(program_);
    return std::move(program_);
  }

 private:
  // --- characters ---

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& fix) const {
    const std::size_t line = 1 + static_cast<std::size_t>(std::count(
                                     text_.begin(), text_.begin() + static_cast<long>(at_), '\n'));
    std::string_view rest = text_.substr(at_);
    rest = rest.substr(0, std::min<std::size_t>(rest.find('\n'), 30));
    throw_error<ProgramError>("program text: line {}: expected {}, got \"{}\". {}.", line, expected,
                              rest, fix);
  }

  bool accept(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token))
      fail(fmt::format("\"{}\"", token), "Write programs as to_string prints them");
  }

  std::string word() {
    skip();
    const std::size_t first = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '_' || text_[at_] == '.')) {
      ++at_;
    }
    if (at_ == first) fail("a name", "Names are letters, digits, '_' and '.'");
    return std::string(text_.substr(first, at_ - first));
  }

  /// A word that stands alone, as a keyword does.
  bool accept_word(std::string_view keyword) {
    skip();
    const std::size_t before = at_;
    if (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_])) &&
        word() == keyword) {
      return true;
    }
    at_ = before;
    return false;
  }

  std::int64_t integer() {
    skip();
    const std::size_t first = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    const std::string digits(text_.substr(first, at_ - first));
    if (digits.empty() || digits == "-" || digits.size() > 18) {
      at_ = first;
      fail("a whole number", "Extents and periods are whole numbers");
    }
    return std::atoll(digits.c_str());
  }

  bool at_digit() {
    skip();
    return at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]));
  }

  double number() {
    skip();
    const std::string rest(text_.substr(at_, 40));
    char* end = nullptr;
    const double value = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str()) fail("a number", "A constant has a value");
    at_ += static_cast<std::size_t>(end - rest.c_str());
    return value;
  }

  // --- types ---

  Dim dim() {
    Dim result = Dim::number(1);
    if (at_digit()) result.num = integer();
    if (accept("M")) {
      result.symbol = Dim::Symbol::M;
    } else if (accept("N")) {
      result.symbol = Dim::Symbol::N;
    }
    if (accept("/")) result.den = integer();
    return result;
  }

  std::vector<Dim> dims() {
    expect("[");
    std::vector<Dim> result;
    if (accept("]")) return result;
    do {
      result.push_back(dim());
    } while (accept(","));
    expect("]");
    return result;
  }

  Operand operand(bool output) {
    Operand result;
    result.output = output;
    result.name = word();
    expect(":");
    result.accumulate = accept("+=");
    result.partial = accept_word("partial");
    const std::string dtype = word();
    try {
      result.dtype = parse_dtype(dtype);
    } catch (const UsageError&) {
      fail("a memory type before the extents", "Use f32, bf16, f16, i32 or i64");
    }
    set_extents(result, dims());
    return result;
  }

  /// One extent: a col of M rows, or open until something loads or stores it.
  void set_extents(Operand& operand, const std::vector<Dim>& extents) {
    operand.rows = operand.cols = Dim::number(1);
    switch (extents.size()) {
      case 0:
        operand.kind = Kind::scalar;
        return;
      case 1:
        if (extents[0].symbol == Dim::Symbol::M) {
          operand.kind = Kind::col;
          operand.rows = extents[0];
        } else {
          operand.kind = Kind::row;
          operand.cols = extents[0];
        }
        return;
      case 2:
        operand.kind = extents[0].symbol == Dim::Symbol::M ? Kind::tile : Kind::weight;
        operand.rows = extents[0];
        operand.cols = extents[1];
        return;
      default:
        fail("at most two extents", "Tensors are matrices, vectors and scalars");
    }
  }

  // --- the header ---

  void header() {
    program_.form = accept_word("row")      ? Form::rows
                    : accept_word("vector") ? Form::vectors
                                            : Form::gemm;
    if (!accept_word("program")) {
      fail("\"program\", \"row program\" or \"vector program\"", "Start with the header");
    }
    program_.name = word();
    expect("(");
    if (program_.form == Form::gemm) accumulator();
    if (!accept(")")) operands(false);
    expect("->");
    expect("(");
    if (!accept(")")) operands(true);
    expect("{");
    if (!a_.empty()) bind_gemm();
  }

  void operands(bool output) {
    do {
      program_.operands.push_back(operand(output));
    } while (accept(","));
    expect(")");
  }

  void accumulator() {
    expect("%");
    if (word() != "acc") fail("%acc", "A GEMM program starts from its accumulator");
    expect(":");
    const std::vector<Dim> extents = dims();
    if (extents.size() != 2) fail("two extents of acc", "acc is a matrix");
    program_.rows = extents[0];
    program_.cols = extents[1];
    Value acc{};
    acc.op = Op::acc;
    acc.name = "acc";
    acc.cols = program_.cols;
    program_.values.push_back(acc);
    values_["acc"] = 0;
    if (accept("=")) {
      const std::string kind = word();
      program_.gemm.transpose_a = kind == "tn";
      program_.gemm.transpose_b = kind == "nt";
      if (kind != "nt" && kind != "nn" && kind != "tn") fail("nt, nn or tn", "Name the product");
      a_ = word();
      expect(",");
      if (accept("[")) {
        do {
          b_.push_back(word());
        } while (accept(";"));
        expect("]");
      } else {
        b_.push_back(word());
      }
    }
    accept(",");
  }

  std::int32_t operand_named(const std::string& name) {
    for (std::size_t i = 0; i < program_.operands.size(); ++i) {
      if (program_.operands[i].name == name) return static_cast<std::int32_t>(i);
    }
    throw_error<ProgramError>(
        "program {}: expected an operand of the header, got \"{}\". Declare it with its type.",
        program_.name, name);
  }

  void bind_gemm() {
    Gemm& gemm = program_.gemm;
    gemm.a = operand_named(a_);
    for (const std::string& b : b_) gemm.b.push_back(operand_named(b));
    const Operand& a = program_.operands[static_cast<std::size_t>(gemm.a)];
    gemm.k = gemm.transpose_a ? a.rows : a.cols;
  }

  // --- the body ---

  void statement() {
    if (accept("%")) return definition();
    Value store{};
    const std::string name = word();
    const std::optional<Op> op = op_named(name);
    if (!op || !is_store(*op)) {
      at_ -= name.size();
      fail("\"%name = ...\", a store, or \"}\"", "Values start with %");
    }
    store.op = *op;
    store.operand = operand_named(word());
    expect(",");
    store.args.push_back(argument());
    program_.values.push_back(store);
    shapes_.emplace_back();
  }

  std::int32_t argument() {
    expect("%");
    const std::string name = word();
    const auto found = values_.find(name);
    if (found == values_.end()) {
      at_ -= name.size();
      fail("a value defined above", "Order values so that operands come first");
    }
    return found->second;
  }

  void definition() {
    const std::string name = word();
    if (values_.count(name)) {
      at_ -= name.size();
      fail("a new name", "Each value is defined once");
    }
    expect("=");
    const std::string op_name = word();
    const std::optional<Op> op = op_named(op_name);
    if (!op || is_store(*op)) {
      at_ -= op_name.size();
      fail("an op", "See docs/ops.md");
    }
    Value value{};
    value.op = *op;
    const bool numbered = name.find_first_not_of("0123456789") == std::string::npos;
    if (!numbered) value.name = name;
    attributes(value);
    if (is_load(value.op)) {
      value.operand = operand_named(word());
    } else {
      skip();
      while (text_.substr(at_, 1) == "%") {
        value.args.push_back(argument());
        if (!accept(",")) break;
        skip();
      }
    }
    expect(":");
    value.partial = accept_word("partial");
    const std::vector<Dim> extents = dims();
    // How many extents there are tells a vector from a tile, where the op does not.
    value.kind = extents.size() == 2                                               ? Kind::tile
                 : extents.empty()                                                 ? Kind::scalar
                 : value.op == Op::load_col || extents[0].symbol == Dim::Symbol::M ? Kind::col
                                                                                   : Kind::row;
    if (value.op == Op::broadcast) value.attrs.index = static_cast<std::int32_t>(value.kind);
    values_[name] = static_cast<std::int32_t>(program_.values.size());
    program_.values.push_back(value);
    shapes_.push_back(extents);
  }

  void attributes(Value& value) {
    Attrs& attrs = value.attrs;
    switch (value.op) {
      case Op::constant:
        attrs.value = number();
        return;
      case Op::cast:
        attrs.dtype = parse_dtype(word());
        return;
      case Op::first_of_pair:
      case Op::second_of_pair:
      case Op::join:
      case Op::rotate:
      case Op::unrotate:
        if (accept_word("interleaved")) return;
        if (!accept_word("halves")) fail("interleaved or halves", "Name the layout of pairs");
        attrs.layout = PairLayout::halves;
        if (accept("(")) {
          attrs.period = integer();
          expect(")");
        }
        return;
      case Op::cols:
      case Op::rows:
        attrs.lo = integer();
        expect(":");
        attrs.hi = integer();
        return;
      case Op::segment_sum:
      case Op::segment_broadcast:
        attrs.period = integer();
        return;
      case Op::broadcast:
      case Op::repeat:
      case Op::fold:
      case Op::onehot:
        if (at_digit()) attrs.hi = integer();
        ignore_index(attrs);
        return;
      case Op::pick:
      case Op::valid:
        return ignore_index(attrs);
      case Op::load_row:
      case Op::load_col:
      case Op::load_scalar:
        if (accept_word("finish_sum")) attrs.finish = Finish::sum;
        if (accept_word("finish_max")) attrs.finish = Finish::max;
        if (accept_word("finish_lse")) attrs.finish = Finish::lse;
        if (accept_word("finish_log_sum")) attrs.finish = Finish::log_sum;
        if (accept_word("finish_lse_max")) attrs.finish = Finish::lse_max;
        return;
      default:
        return;
    }
  }

  void ignore_index(Attrs& attrs) {
    if (!accept_word("ignore")) return;
    expect("(");
    attrs.ignore_index = integer();
    expect(")");
  }

  // --- kinds, rows and types that the text leaves to be derived ---

  /// Rows of a program without acc: M if anything has M rows, else those of its first matrix, or
  /// of a vector that is loaded as a col.
  void resolve_rows() {
    for (const Value& value : program_.values) {
      if (value.op != Op::load_col) continue;
      Operand& operand = program_.operands[static_cast<std::size_t>(value.operand)];
      if (operand.kind != Kind::row) continue;
      operand.kind = Kind::col;
      operand.rows = operand.cols;
      operand.cols = Dim::number(1);
    }
    if (program_.form == Form::gemm) return;
    bool tokens = false;
    std::optional<Dim> rows;
    for (const Operand& operand : program_.operands) {
      tokens = tokens || operand.rows.symbol == Dim::Symbol::M;
      const bool tall = operand.kind == Kind::weight || operand.kind == Kind::col;
      if (tall && !rows) rows = operand.rows;
      if ((operand.kind == Kind::tile || operand.kind == Kind::weight) && !has_width_) {
        program_.cols = operand.cols;
        has_width_ = true;
      }
    }
    if (!tokens && rows) program_.rows = *rows;
  }

  void finish_types() {
    const std::size_t shift = program_.values.size() - shapes_.size();  // acc has no line
    for (std::size_t i = shift; i < program_.values.size(); ++i) {
      Value& value = program_.values[i];
      const auto index = static_cast<std::int32_t>(i);
      if (is_store(value.op)) {
        finish_store(value);
        continue;
      }
      const ValueType type = infer(program_, index);
      const std::vector<Dim> written = shapes_[i - shift];
      const std::vector<Dim> derived = extents_of(type, index);
      if (written != derived || value.partial != type.partial) {
        throw_error<ProgramError>(
            "program {}: {}: expected {} (what {} makes), got another shape in the text. Write the "
            "shape that the op's rule gives.",
            program_.name, call_text(program_, index), type_text(program_, type),
            name_of(value.op));
      }
      value.kind = type.kind;
      value.cols = type.cols;
    }
  }

  std::vector<Dim> extents_of(const ValueType& type, std::int32_t index) {
    switch (type.kind) {
      case Kind::tile:
      case Kind::weight: {
        program_.values[static_cast<std::size_t>(index)].kind = type.kind;
        return {rows_of(program_, index), type.cols};
      }
      case Kind::col:
        return {program_.rows};
      case Kind::row:
        return {type.cols};
      default:
        return {};
    }
  }

  /// A vector output is what is stored in it.
  void finish_store(Value& store) {
    const Value& stored = program_.values[static_cast<std::size_t>(store.args[0])];
    store.kind = stored.kind;
    store.cols = stored.cols;
    Operand& operand = program_.operands[static_cast<std::size_t>(store.operand)];
    if (operand.kind == Kind::row && stored.kind == Kind::col) {
      operand.kind = Kind::col;
      operand.rows = operand.cols;
      operand.cols = Dim::number(1);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Program program_;
  std::string a_;  ///< GEMM's operands by name
  std::vector<std::string> b_;
  std::map<std::string, std::int32_t> values_;
  std::vector<std::vector<Dim>> shapes_;  ///< as written, one a statement
  bool has_width_ = false;
};

}  // namespace

Program parse_program(std::string_view text) { return Parser(text).run(); }

}  // namespace coda
