#include "graph/rule.h"

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/check.h"
#include "graph/axis.h"
#include "ops/op_table.h"

namespace coda {
namespace {

/// A number, a name (dy, y, a, b, c), or a call of an op or of a function below.
struct Expression {
  enum class Form { number, name, call } form = Form::number;
  double number = 0;
  std::string name;
  std::vector<Expression> arguments;
};

Expression call(std::string name, std::vector<Expression> arguments) {
  return {Expression::Form::call, 0, std::move(name), std::move(arguments)};
}

/// sum := product {(+|-) product}; product := unary {(*|/) unary}; unary := -unary | atom;
/// atom := number | name | name(sum, ...) | (sum)
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expression parse() {
    Expression result = sum();
    check(next() == '\0');
    return result;
  }

 private:
  void check(bool holds) const {
    internal_check(holds, "rule '{}': cannot be read at column {}", text_, at_ + 1);
  }

  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }

  Expression sum() {
    Expression left = product();
    for (;;) {
      if (take('+')) {
        left = call("add", {left, product()});
      } else if (take('-')) {
        left = call("sub", {left, product()});
      } else {
        return left;
      }
    }
  }

  Expression product() {
    Expression left = unary();
    for (;;) {
      if (take('*')) {
        left = call("mul", {left, unary()});
      } else if (take('/')) {
        left = call("div", {left, unary()});
      } else {
        return left;
      }
    }
  }

  Expression unary() {
    if (take('-')) return call("neg", {unary()});
    if (take('(')) {
      Expression inner = sum();
      check(take(')'));
      return inner;
    }
    const auto word = [this](auto accept) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && accept(static_cast<unsigned char>(text_[at_]))) ++at_;
      return std::string(text_.substr(begin, at_ - begin));
    };
    if (std::isdigit(static_cast<unsigned char>(next()))) {
      const std::string digits = word([](int c) { return std::isdigit(c) || c == '.'; });
      return {Expression::Form::number, std::strtod(digits.c_str(), nullptr), {}, {}};
    }
    std::string name = word([](int c) { return std::isalnum(c) || c == '_'; });
    check(!name.empty());
    if (!take('(')) return {Expression::Form::name, 0, std::move(name), {}};
    std::vector<Expression> arguments;
    do {
      arguments.push_back(sum());
    } while (take(','));
    check(take(')'));
    return call(std::move(name), std::move(arguments));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// All rules of the table, parsed when the first one is applied.
const Expression& parsed(std::string_view rule) {
  static const auto rules = [] {
    std::map<std::string_view, Expression> all;
    const auto add = [&all](std::string_view text) {
      if (!text.empty() && !all.contains(text)) all.emplace(text, Parser(text).parse());
    };
    for (const OpRow& row : op_table()) {
      for (std::string_view text : row.derivative) add(text);
      add(row.inverse);
    }
    for (const bool transpose_a : {false, true}) {
      Attrs attrs;
      attrs.transpose_a = transpose_a;
      for (std::string_view text : derivative_of(Op::matmul, attrs)) add(text);
    }
    return all;
  }();
  const auto it = rules.find(rule);
  internal_check(it != rules.end(), "rule '{}': not in the op table", rule);
  return it->second;
}

std::optional<Op> op_named(std::string_view name) {
  for (const OpRow& row : op_table()) {
    if (row.name == name) return row.op;
  }
  return std::nullopt;
}

class Evaluation {
 public:
  explicit Evaluation(const RuleContext& context)
      : context_(context), graph_(context.graph), node_(context.graph.node(context.node)) {}

  Tensor of(const Expression& expression) {
    if (expression.form == Expression::Form::number) return graph_.constant(expression.number);
    if (expression.form == Expression::Form::name) return named(expression.name);
    std::vector<Tensor> operands;
    for (const Expression& argument : expression.arguments) operands.push_back(of(argument));
    return called(expression.name, operands);
  }

 private:
  Tensor named(std::string_view name) {
    if (name == "dy") return context_.dy;
    if (name == "y") return context_.y;
    internal_check(name.size() == 1 && name[0] >= 'a' && name[0] <= 'c', "rule: no value '{}'",
                   name);
    auto index = static_cast<std::size_t>(name[0] - 'a');
    if (context_.swapped && index < 2) index = 1 - index;
    return graph_.at(node_.in.at(index));
  }

  Tensor called(std::string_view name, const std::vector<Tensor>& operands) {
    if (name == "matmul_nt") return matmul_nt(operands[0], operands[1]);
    if (name == "matmul_nn") return matmul_nn(operands[0], operands[1]);
    if (name == "matmul_tn") return matmul_tn(operands[0], operands[1]);
    if (name == "pad_cols" || name == "pad_rows") return pad(operands[0], {name == "pad_rows"});
    if (name == "part_cols" || name == "part_rows") return part(operands[0], {name == "part_rows"});
    const auto op = op_named(name);
    internal_check(op.has_value(), "rule: no function '{}'", name);
    if (*op == Op::join) return join_filled(operands[0], operands[1]);
    return graph_.make(*op, operands, node_.attrs);
  }

  /// A scalar beside a tile fills a tile of the same shape.
  Tensor join_filled(Tensor a, Tensor b) {
    const Type type = a.type().kind == Kind::scalar ? b.type() : a.type();
    return graph_.make(Op::join, {broadcast(a, type), broadcast(b, type)}, node_.attrs);
  }

  /// x at [attrs.lo, attrs.hi) of zeros with the operand's extent.
  Tensor pad(Tensor x, Axis axis) {
    const Type whole = graph_.node(node_.in[0]).type;
    const auto zeros = [&](std::int64_t extent) {
      return broadcast(graph_.constant(0), axis.with_extent(whole, extent));
    };
    return axis.join({zeros(node_.attrs.lo), x, zeros(axis.extent(whole) - node_.attrs.hi)});
  }

  /// Of x, what this operand of a concatenation lies at.
  Tensor part(Tensor x, Axis axis) {
    std::int64_t begin = 0, end = 0;
    for (std::size_t i = 0; i <= context_.operand; ++i) {
      begin = end;
      end += axis.extent(graph_.node(node_.in[i]).type);
    }
    return axis.part(x, begin, end);
  }

  const RuleContext& context_;
  Graph& graph_;
  const Node node_;  // a copy: making nodes moves the graph's
};

}  // namespace

Tensor apply_rule(std::string_view rule, const RuleContext& context) {
  return Evaluation(context).of(parsed(rule));
}

}  // namespace coda
