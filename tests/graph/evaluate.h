// A small evaluator of Graphs in double, for the tests of this folder: every op by its equation.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "coda/graph.h"
#include "ops/op_table.h"

namespace coda::testing {

struct Value {
  std::int64_t rows = 1, cols = 1;
  std::vector<double> data;
  double& at(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i * cols + j)];
  }
  double at(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i * cols + j)];
  }
  /// at, for operands that are broadcast.
  double get(std::int64_t i, std::int64_t j) const {
    return at(rows == 1 ? 0 : i, cols == 1 ? 0 : j);
  }
};

using Bindings = std::map<std::string, Value>;

inline Value make_value(const Type& type, std::int64_t tokens) {
  Value v;
  v.rows = type.rows == kTokens ? tokens : type.rows;
  v.cols = type.cols;
  v.data.assign(static_cast<std::size_t>(v.rows * v.cols), 0.0);
  return v;
}

/// Column pair p of group period: (first, second).
inline std::pair<std::int64_t, std::int64_t> pair_columns(PairLayout layout, std::int64_t period,
                                                          std::int64_t p) {
  if (layout == PairLayout::interleaved) return {2 * p, 2 * p + 1};
  const std::int64_t half = period / 2, group = p / half, j = p % half;
  return {group * period + j, group * period + j + half};
}

inline double elementwise(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::neg:
      return -a;
    case Op::exp:
      return std::exp(a);
    case Op::log:
      return std::log(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Op::rsqrt:
      return 1 / std::sqrt(a);
    case Op::erf:
      return std::erf(a);
    case Op::maximum:
      return std::max(a, b);
    case Op::greater:
      return a > b;
    case Op::equal:
      return a == b;
    case Op::cast:
    case Op::broadcast:
      return a;
    default:
      throw std::logic_error("elementwise");
  }
}

inline void evaluate_matmul(const Attrs& attrs, const Value& a, const Value& b, Value& y) {
  const std::int64_t inner = attrs.transpose_a ? a.rows : a.cols;
  for (std::int64_t i = 0; i < y.rows; ++i) {
    for (std::int64_t j = 0; j < y.cols; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += (attrs.transpose_a ? a.at(k, i) : a.at(i, k)) *
               (attrs.transpose_b ? b.at(j, k) : b.at(k, j));
      }
      y.at(i, j) = sum;
    }
  }
}

inline void evaluate_reduction(Op op, const Value& a, Value& y) {
  const double low = -std::numeric_limits<double>::infinity();
  if (op == Op::row_max || is_online(op)) y.data.assign(y.data.size(), low);
  std::vector<double> sums(y.data.size(), 0.0);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) {
      const auto to = static_cast<std::size_t>(op == Op::sum ? 0 : op == Op::col_sum ? j : i);
      if (op == Op::row_max || is_online(op)) {
        y.data[to] = std::max(y.data[to], a.at(i, j));
      } else {
        y.data[to] += a.at(i, j);
      }
    }
  }
  if (!is_online(op)) return;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < a.cols; ++j) sum += std::exp(a.at(i, j) - y.at(i, 0));
    y.at(i, 0) = (op == Op::lse ? y.at(i, 0) : 0) + std::log(sum);
  }
}

inline void evaluate_pairs(const Node& node, const std::vector<const Value*>& in, Value& y) {
  const Value& a = *in[0];
  const Attrs& t = node.attrs;
  const std::int64_t pairs = (node.op == Op::join ? y.cols : a.cols) / 2;
  for (std::int64_t i = 0; i < y.rows; ++i) {
    for (std::int64_t p = 0; p < pairs; ++p) {
      const auto [c1, c2] = pair_columns(t.layout, t.period, p);
      if (node.op == Op::first_of_pair) y.at(i, p) = a.at(i, c1);
      if (node.op == Op::second_of_pair) y.at(i, p) = a.at(i, c2);
      if (node.op == Op::join) {
        y.at(i, c1) = a.at(i, p);
        y.at(i, c2) = in[1]->at(i, p);
      }
      if (node.op == Op::rotate || node.op == Op::unrotate) {
        const std::int64_t half = t.period / 2, j = p % half;
        const double sign = node.op == Op::rotate ? 1 : -1;
        const double turns = in[1]->at(i, 0) * (in[2]->at(0, j) + in[2]->at(0, j + half));
        const double angle = sign * turns * 2 * 3.14159265358979323846;
        y.at(i, c1) = a.at(i, c1) * std::cos(angle) - a.at(i, c2) * std::sin(angle);
        y.at(i, c2) = a.at(i, c2) * std::cos(angle) + a.at(i, c1) * std::sin(angle);
      }
    }
  }
}

inline void evaluate_addressing(const Node& node, const std::vector<const Value*>& in, Value& y) {
  const bool by_rows = node.op == Op::rows || node.op == Op::cat_rows;
  if (node.op == Op::cols || node.op == Op::rows) {
    for (std::int64_t i = 0; i < y.rows; ++i) {
      for (std::int64_t j = 0; j < y.cols; ++j) {
        y.at(i, j) =
            in[0]->at(i + (by_rows ? node.attrs.lo : 0), j + (by_rows ? 0 : node.attrs.lo));
      }
    }
    return;
  }
  std::int64_t begin = 0;
  for (const Value* part : in) {
    for (std::int64_t i = 0; i < part->rows; ++i) {
      for (std::int64_t j = 0; j < part->cols; ++j) {
        y.at(i + (by_rows ? begin : 0), j + (by_rows ? 0 : begin)) = part->at(i, j);
      }
    }
    begin += by_rows ? part->rows : part->cols;
  }
}

inline void evaluate_segment(const Node& node, const Value& a, Value& y) {
  const std::int64_t period = node.attrs.period;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) {
      if (node.op == Op::segment_sum) y.at(i, j / period) += a.at(i, j);
      if (node.op == Op::fold) y.at(i, j % y.cols) += a.at(i, j);
    }
  }
  for (std::int64_t i = 0; i < y.rows; ++i) {
    for (std::int64_t j = 0; j < y.cols; ++j) {
      if (node.op == Op::segment_broadcast) y.at(i, j) = a.at(i, j / period);
      if (node.op == Op::repeat) y.at(i, j) = a.at(i, j % a.cols);
    }
  }
}

inline void evaluate_target(const Node& node, const std::vector<const Value*>& in, Value& y) {
  const Value& targets = *in.back();
  for (std::int64_t i = 0; i < y.rows; ++i) {
    const auto t = static_cast<std::int64_t>(targets.at(i, 0));
    const bool ignored = t == node.attrs.ignore_index;
    if (node.op == Op::valid) y.at(i, 0) = ignored ? 0 : 1;
    if (ignored) continue;
    if (node.op == Op::pick) y.at(i, 0) = in[0]->at(i, t);
    if (node.op == Op::onehot) y.at(i, t) = 1;
  }
}

inline Value evaluate_node(const Node& node, const std::vector<const Value*>& in,
                           const Bindings& bindings, std::int64_t tokens) {
  if (node.op == Op::input) return bindings.at(node.name);
  Value y = make_value(node.type, tokens);
  switch (row_of(node.op).op_class) {
    case OpClass::leaf:
      y.data[0] = node.attrs.value;
      break;
    case OpClass::elementwise:
      for (std::int64_t i = 0; i < y.rows; ++i) {
        for (std::int64_t j = 0; j < y.cols; ++j) {
          // Kinds, not extents, say what is broadcast; get() reads row 0 of one-row operands,
          // which is right for them in any case.
          y.at(i, j) = elementwise(node.op, in[0]->get(i, j), in.size() > 1 ? in[1]->get(i, j) : 0);
        }
      }
      break;
    case OpClass::pairs:
      evaluate_pairs(node, in, y);
      break;
    case OpClass::addressing:
      evaluate_addressing(node, in, y);
      break;
    case OpClass::segment:
      evaluate_segment(node, *in[0], y);
      break;
    case OpClass::reduction:
      evaluate_reduction(node.op, *in[0], y);
      break;
    case OpClass::target:
      evaluate_target(node, in, y);
      break;
    case OpClass::matmul:
      evaluate_matmul(node.attrs, *in[0], *in[1], y);
      break;
    default:
      throw std::logic_error("no evaluation of opaque nodes");
  }
  return y;
}

/// Values of all nodes that the roots need, by id.
inline std::map<NodeId, Value> evaluate(const Graph& graph, const std::vector<Tensor>& roots,
                                        const Bindings& bindings, std::int64_t tokens) {
  std::vector<bool> needed(static_cast<std::size_t>(graph.size()));
  for (Tensor root : roots) {
    if (root) needed[static_cast<std::size_t>(root.id())] = true;
  }
  for (NodeId id = graph.size(); id-- > 0;) {
    if (!needed[static_cast<std::size_t>(id)]) continue;
    for (NodeId in : graph.node(id).in) needed[static_cast<std::size_t>(in)] = true;
  }
  std::map<NodeId, Value> values;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!needed[static_cast<std::size_t>(id)]) continue;
    std::vector<const Value*> in;
    for (NodeId operand : graph.node(id).in) in.push_back(&values.at(operand));
    values.emplace(id, evaluate_node(graph.node(id), in, bindings, tokens));
  }
  return values;
}

/// Random values in [lo, hi) for every input of the graph; integer inputs get values in [0, limit).
inline Bindings random_bindings(const Graph& graph, std::int64_t tokens, unsigned seed,
                                double lo = -1, double hi = 1, int limit = 3) {
  std::mt19937 random(seed);
  Bindings bindings;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (node.op != Op::input) continue;
    Value value = make_value(node.type, tokens);
    for (double& x : value.data) {
      x = is_float(node.type.dtype) ? std::uniform_real_distribution<double>(lo, hi)(random)
                                    : std::uniform_int_distribution<int>(0, limit - 1)(random);
    }
    bindings.emplace(node.name, value);
  }
  return bindings;
}

}  // namespace coda::testing
