// Random graphs of the operators that Transformers are made of, the values of their inputs, and
// what their outputs and gradients are: evaluated node by node in double, without any rewrite of
// the compiler. Equal seeds give equal graphs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "backend/reference/graph_evaluator.h"
#include "coda/graph.h"
#include "plan/compile.h"

namespace coda::random_graph {

/// A graph with the request that asks for its outputs and for the gradients of all inputs.
struct Built {
  Graph graph;
  CompileRequest request;
  std::string story;  ///< what was put together, for messages
};

struct Sizes {
  std::int64_t tokens = 0;
  /// 0: matmul, add, tanh gate, silu, norms, bias, post-norm residual. 1: also pairs, rotation,
  /// per-head norms, soft caps, column slices. 2: also softmax, tied weights, reductions over
  /// tokens, attention, embedding, vector outputs, a cross-entropy head.
  std::int64_t level = 0;
};

class Generator {
 public:
  /// dtype: memory type of tile inputs, cotangents and weights.
  Generator(std::uint64_t seed, DType dtype) : random_(seed), dtype_(dtype) {}

  Sizes sizes() {
    constexpr std::int64_t kTokenCounts[] = {0, 1, 2, 3, 5, 8, 13, 17, 24, 129};
    sizes_.tokens = kTokenCounts[below(10)];
    sizes_.level = below(3);
    constexpr std::int64_t kWidths[] = {1, 2, 3, 5, 7, 8, 13, 17, 24, 65};
    for (std::int64_t& width : widths_) width = kWidths[below(10)];
    if (below(3) == 0 && sizes_.tokens > 0 && sizes_.tokens < 64) widths_[0] = sizes_.tokens;
    return sizes_;
  }

  void build(Built& built) {
    graph_ = &built.graph;
    story_ = &built.story;
    pool_ = {input("x0", widths_[0])};
    if (below(3) == 0) pool_.push_back(input("x1", widths_[below(3)]));
    const std::int64_t steps = 4 + below(11);
    for (std::int64_t i = 0; i < steps; ++i) pool_.push_back(step());
    const std::int64_t last = sizes_.level == 2 ? below(4) : 0;
    if (last == 1) {
      add_output(built, cross_entropy(pool_.back()));
    } else if (last == 2) {
      add_output(built, lse(pool_.back()));
    } else {
      add_output(built, pool_.back());
    }
    if (below(2) == 0) add_output(built, pool_[static_cast<std::size_t>(below(size()))]);
    if (sizes_.level == 2 && below(4) == 0) add_output(built, col_sum(pool_.back()));
    if (built.request.outputs.empty()) add_output(built, tanh(pool_.back()));
  }

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(pool_.size()); }
  std::int64_t width(Tensor t) const { return t.type().cols; }
  std::string fresh(const char* stem) { return stem + std::to_string(names_++); }
  void tell(const std::string& what) { *story_ += (story_->empty() ? "" : ", ") + what; }

  Tensor input(const std::string& name, std::int64_t cols) {
    tell(name + "[" + std::to_string(cols) + "]");
    return graph_->tile(name, cols, dtype_);
  }
  Tensor row(const char* stem, std::int64_t cols) { return graph_->row(fresh(stem), cols); }

  /// Mostly one of the latest values, so that graphs grow deep as well as wide.
  Tensor any() {
    const std::int64_t back =
        below(4) == 0 ? below(size()) : below(std::min<std::int64_t>(size(), 3));
    return pool_[static_cast<std::size_t>(size() - 1 - back)];
  }

  /// With a weight of its own or, rarely, with some rows of one.
  Tensor matmul(Tensor x, std::int64_t n) {
    if (below(8) != 0) return matmul_nt(x, graph_->weight(fresh("w"), n, width(x), dtype_));
    const std::int64_t lo = below(3), more = below(3);
    const Tensor w = graph_->weight(fresh("w"), lo + n + more, width(x), dtype_);
    return matmul_nt(x, rows(w, lo, lo + n));
  }

  /// Another value of x's width, made by a matmul if there is none.
  Tensor partner(Tensor x) {
    std::vector<Tensor> fitting;
    for (const Tensor& t : pool_) {
      if (width(t) == width(x) && t.id() != x.id()) fitting.push_back(t);
    }
    if (!fitting.empty() && below(4) != 0) {
      return fitting[static_cast<std::size_t>(below(static_cast<std::int64_t>(fitting.size())))];
    }
    return matmul(any(), width(x));
  }

  Tensor rms_norm(Tensor x) {
    const double n = static_cast<double>(width(x));
    return x * rsqrt(row_sum(x * x) * (1 / n) + 0.01) * row("n", width(x));
  }

  Tensor layer_norm(Tensor x) {
    const double n = static_cast<double>(width(x));
    Tensor centred = x - row_sum(x) * (1 / n);
    Tensor scale = rsqrt(row_sum(centred * centred) * (1 / n) + 0.01);
    return centred * scale * row("g", width(x)) + row("b", width(x));
  }

  Tensor step() {
    Tensor x = any();
    constexpr std::int64_t kChoices[] = {8, 14, 22};
    switch (below(kChoices[sizes_.level])) {
      case 0:
      case 1:
        tell("matmul");
        return matmul(x, widths_[below(3)]);
      case 2:
        tell("add");
        return x + partner(x);
      case 3:
        tell("tanh gate");
        return tanh(x) * partner(x);
      case 4:
        tell("silu");
        return x * sigmoid(x);
      case 5:
        tell("rms_norm");
        return rms_norm(x);
      case 6:
        if (below(2) == 0) {
          tell("layer_norm");
          return layer_norm(x);
        }
        tell("bias");
        return x + row("b", width(x));
      case 7:
        tell("post-norm residual");
        return x + rms_norm(partner(x));
      case 8:
        tell("swiglu of two weights");
        return gated(matmul(x, widths_[1]), matmul(x, widths_[1]));
      case 9: {
        tell("swiglu of interleaved pairs");
        Tensor z = matmul(x, 2 * widths_[2]);
        return gated(first_of_pair(z, Pairs::interleaved()),
                     second_of_pair(z, Pairs::interleaved()));
      }
      case 10: {
        tell("swiglu of halves");
        Tensor z = matmul(x, 2 * widths_[0]);
        return gated(first_of_pair(z, Pairs::halves()), second_of_pair(z, Pairs::halves()));
      }
      case 11: {
        tell("rotation");
        const std::int64_t head = 2 * (1 + below(3)), heads = 1 + below(3);
        Tensor pos = graph_->col("pos", DType::i32);
        Tensor freq = graph_->row("freq" + std::to_string(head), head);
        const Pairs pairs = below(2) == 0 ? Pairs::halves(head) : Pairs::interleaved();
        return rotate(matmul(x, head * heads), pos, freq, pairs);
      }
      case 12: {
        tell("per-head norm");
        const std::int64_t head = 1 + below(4), heads = 1 + below(3);
        Tensor z = matmul(x, head * heads);
        Tensor mean = segment_sum(z * z, head) * (1.0 / static_cast<double>(head));
        return z * segment_broadcast(rsqrt(mean + 0.01), head) * repeat(row("h", head), heads);
      }
      case 13: {
        if (below(2) == 0 || width(x) < 2) {
          tell("soft cap");
          return tanh(x * 0.5) * 2;
        }
        tell("columns");
        const std::int64_t lo = below(width(x) - 1);
        return cols(x, lo, lo + 1 + below(width(x) - lo));
      }
      case 14: {
        tell("softmax");
        Tensor shifted = exp(x - row_max(x));
        return shifted / row_sum(shifted);
      }
      case 15:
        tell("tied weight");
        return tied(x);
      case 16:
        tell("column sums broadcast");
        return x + col_sum(x) * 0.01;
      case 17:
        tell("norm over all tokens");
        return x * rsqrt(sum(row_sum(x * x)) * 0.1 + 1.0);
      case 18:
        tell("log-softmax");
        return x - lse(x);
      case 19:
        return attend(x);
      case 20: {
        tell("embedding");
        Tensor ids = graph_->col("ids", DType::i32);
        return embedding(graph_->weight(fresh("e"), 7, widths_[below(3)], dtype_), ids);
      }
      default:
        tell("gelu");
        return x * 0.5 * (erf(x * 0.70710678118654752) + 1);
    }
  }

  /// A matmul with a weight that was used before, if its width fits.
  Tensor tied(Tensor x) {
    for (NodeId id = graph_->size(); id-- > 0;) {
      const Node& node = graph_->node(id);
      if (node.op == Op::input && node.type.kind == Kind::weight && node.type.cols == width(x) &&
          node.name[0] == 'w') {
        return matmul_nt(x, graph_->at(id));
      }
    }
    return matmul(x, width(x));
  }

  Tensor attend(Tensor x) {
    tell("attention");
    const std::int64_t head = 1 + below(4), kv_heads = 1 + below(2), group = 1 + below(2);
    Tensor q = matmul(x, head * kv_heads * group);
    Tensor k = matmul(x, head * kv_heads), v = matmul(x, head * kv_heads);
    AttentionOptions options;
    if (below(3) == 0) options.window = 1 + below(9);
    if (below(3) == 0) options.softcap = 0.5 * static_cast<double>(1 + below(6));
    return attention(q, k, v, graph_->list("cu_seqlens"), kv_heads * group, kv_heads, head,
                     1 / std::sqrt(static_cast<double>(head)), options);
  }

  /// Mean over the counted rows, as in docs/operators: no row counted gives NaN and no gradient.
  Tensor cross_entropy(Tensor x) {
    tell("cross-entropy");
    constexpr std::int64_t kClasses = 7;
    Tensor targets = graph_->col("targets", DType::i32);
    Tensor logits = matmul(x, kClasses);
    Tensor counted = valid(targets);
    Tensor count = sum(counted);
    return sum(counted * (lse(logits) - pick(logits, targets))) *
           (graph_->constant(1) / maximum(count, 1.0));
  }

  static Tensor gated(Tensor gate, Tensor up) { return gate * sigmoid(gate) * up; }

  void add_output(Built& built, Tensor value) {
    for (const Output& output : built.request.outputs) {
      if (output.value.id() == value.id()) return;
    }
    if (graph_->node(value.id()).op == Op::input) return;
    const std::string number = std::to_string(built.request.outputs.size());
    const std::string name = "cot" + number;
    Tensor cotangent;
    switch (value.type().kind) {
      case Kind::col:
        cotangent = graph_->col(name);
        break;
      case Kind::row:
        cotangent = graph_->row(name, width(value));
        break;
      case Kind::scalar:
        cotangent = below(2) == 0 ? graph_->scalar(name) : graph_->constant(1);
        break;
      default:
        cotangent = graph_->tile(name, width(value), dtype_);
    }
    built.request.outputs.push_back({"out" + number, value, cotangent, true});
  }

  std::mt19937_64 random_;
  DType dtype_;
  Sizes sizes_;
  std::int64_t widths_[3] = {};
  Graph* graph_ = nullptr;
  std::string* story_ = nullptr;
  std::vector<Tensor> pool_;
  int names_ = 0;
};

/// Inputs that may be differentiated: floats other than cotangents and frequencies.
inline std::vector<Tensor> parameters(Graph& graph) {
  std::vector<Tensor> result;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    const bool constant = node.name.rfind("cot", 0) == 0 || node.name.rfind("freq", 0) == 0;
    if (node.op == Op::input && is_float(node.type.dtype) && !constant) {
      result.push_back(graph.at(id));
    }
  }
  return result;
}

/// The graph of a seed. Identical for each call, so that no compilation sees another's nodes.
inline Sizes build(std::uint64_t seed, Built& built, DType dtype = DType::f32) {
  Generator generator(seed, dtype);
  const Sizes sizes = generator.sizes();
  generator.build(built);
  return sizes;
}

/// Values of every input, drawn from the seed and the input's name order.
inline reference::GraphBindings values_of(const Graph& graph, std::uint64_t seed,
                                          std::int64_t tokens) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15ull);
  std::normal_distribution<double> normal;
  reference::GraphBindings values;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (node.op != Op::input) continue;
    const Type& type = node.type;
    reference::Matrix m(type.rows == kTokens ? tokens : type.rows, type.cols);
    const double scale =
        type.kind == Kind::weight
            ? 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(type.cols, 1)))
            : 1;
    const double offset = type.kind == Kind::row ? 0.5 : 0;
    for (double& x : m.v) x = scale * normal(random) + offset;
    if (type.kind == Kind::list) {  // two sequences
      m = reference::Matrix(1, 3);
      m.v = {0, static_cast<double>(tokens / 3), static_cast<double>(tokens)};
    } else if (!is_float(type.dtype)) {
      for (std::size_t i = 0; i < m.v.size(); ++i) m.v[i] = static_cast<double>(i * 5 % 7);
      if (node.name == "targets" && !m.v.empty()) m.v[m.v.size() / 2] = -100;
    }
    values[node.name] = m;
  }
  return values;
}

}  // namespace coda::random_graph
