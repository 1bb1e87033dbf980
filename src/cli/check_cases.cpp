#include "cli/check_cases.h"

#include <algorithm>
#include <cmath>

#include "coda/nn.h"

namespace coda {

CaseGraph::CaseGraph(DType dtype, bool product) : dtype_(dtype), product_(product) {
  sizes_.dtype = dtype;
  sizes_.vocab = n();
  sizes_.head_dim = 10;
}

Tensor CaseGraph::differentiated(Tensor input) {
  const auto same = [&](const Tensor& t) { return t.id() == input.id(); };
  if (std::none_of(request_.wrt.begin(), request_.wrt.end(), same)) request_.wrt.push_back(input);
  return input;
}

Tensor CaseGraph::tile(const std::string& name, std::int64_t cols) {
  return differentiated(graph_.tile(name, cols, dtype_));
}
Tensor CaseGraph::weight(const std::string& name, std::int64_t rows, std::int64_t cols) {
  return differentiated(graph_.weight(name, rows, cols, dtype_));
}
Tensor CaseGraph::row(const std::string& name, std::int64_t cols) {
  return differentiated(graph_.row(name, cols));
}
Tensor CaseGraph::col(const std::string& name) { return differentiated(graph_.col(name)); }

Tensor CaseGraph::frequencies(std::int64_t head_dim) {
  sizes_.head_dim = head_dim;
  return graph_.row("rope_freq", head_dim);
}

Tensor CaseGraph::product() { return matmul_nt(tile("a", 40), weight("w", n(), 40)); }

void CaseGraph::output(const std::string& name, Tensor value) {
  const Type type = value.type();
  const std::string cotangent = "d_" + name;
  const Tensor d = type.kind == Kind::tile  ? graph_.tile(cotangent, type.cols, dtype_)
                   : type.kind == Kind::col ? graph_.col(cotangent)
                   : type.kind == Kind::row ? graph_.row(cotangent, type.cols)
                   : type.kind == Kind::weight
                       ? graph_.weight(cotangent, type.rows, type.cols, dtype_)
                       : graph_.constant(1);
  request_.outputs.push_back({name, value, d, true});
}

void CaseGraph::fixed(const std::string& name, Tensor value) {
  request_.outputs.push_back({name, value, {}, true});
}

std::shared_ptr<const Plan> CaseGraph::compile_plan() {
  const bool differentiable =
      std::any_of(request_.outputs.begin(), request_.outputs.end(),
                  [](const Output& output) { return static_cast<bool>(output.cotangent); });
  if (!differentiable) request_.wrt.clear();
  CompileOptions options;
  options.dtype = options.output_dtype = options.weight_grad_dtype = dtype_;
  return compile(graph_, request_, options);
}

namespace {

using Build = std::function<void(CaseGraph&)>;

/// Numbers of at least a half.
Tensor positive(Tensor x) { return x * x + 0.5; }

/// y = f(a tile, b) with b a tile, a column, a row and a constant.
Build binary(const std::function<Tensor(Tensor, Tensor)>& f) {
  return [f](CaseGraph& g) {
    const Tensor x = g.x();
    g.output("y_tile", f(x, g.tile("t", g.n())));
    g.output("y_col", f(x, g.col("c")));
    g.output("y_row", f(x, g.row("r", g.n())));
    g.output("y_constant", f(x, g.graph().constant(0.75)));
    g.output("y_swapped", f(g.col("c"), x));
  };
}
Build unary(const std::function<Tensor(Tensor)>& f) {
  return [f](CaseGraph& g) { g.output("y", f(g.x())); };
}
Build forward_only(const std::function<Tensor(CaseGraph&)>& f) {
  return [f](CaseGraph& g) { g.fixed("y", f(g)); };
}

Build pairs(const std::function<Tensor(Tensor, Pairs)>& f) {
  return [f](CaseGraph& g) {
    const Tensor x = g.x();
    g.output("interleaved", f(x, Pairs::interleaved()));
    g.output("halves", f(x, Pairs::halves()));
    g.output("short", f(x, Pairs::halves(2)));
  };
}

Build rotations(const std::function<Tensor(Tensor, Tensor, Tensor, Pairs)>& f) {
  return [f](CaseGraph& g) {
    const std::int64_t head = g.n() == 64 ? 16 : 10;
    const Tensor x = g.x(), freq = g.frequencies(head);
    g.output("interleaved", f(x, g.positions(), freq, Pairs{PairLayout::interleaved, head}));
    g.output("halves", f(x, g.positions(), freq, Pairs::halves(head)));
  };
}

std::vector<CheckCase> op_cases() {
  return {
      {"op/add", binary([](Tensor a, Tensor b) { return a + b; })},
      {"op/sub", binary([](Tensor a, Tensor b) { return a - b; })},
      {"op/mul", binary([](Tensor a, Tensor b) { return a * b; })},
      {"op/div", binary([](Tensor a, Tensor b) { return a / positive(b); })},
      {"op/neg", unary([](Tensor x) { return -x; })},
      {"op/exp", unary([](Tensor x) { return exp(x); })},
      {"op/log", unary([](Tensor x) { return log(positive(x)); })},
      {"op/tanh", unary([](Tensor x) { return tanh(x); })},
      {"op/sigmoid", unary([](Tensor x) { return sigmoid(x); })},
      {"op/rsqrt", unary([](Tensor x) { return rsqrt(positive(x)); })},
      {"op/erf", unary([](Tensor x) { return erf(x); })},
      {"op/maximum", binary([](Tensor a, Tensor b) { return maximum(a, b); }), false},
      {"op/greater", forward_only([](CaseGraph& g) { return greater(g.x(), g.tile("t", g.n())); }),
       false},
      {"op/equal", forward_only([](CaseGraph& g) {
         const Tensor x = g.x();
         return equal(x, maximum(x, 0.0));
       })},
      // To its own type: float64 math does not round at casts.
      {"op/cast", [](CaseGraph& g) { g.output("y", cast(g.x() * 3.0, g.dtype())); }},
      {"op/broadcast",
       [](CaseGraph& g) {
         const Type type = g.tile("x", g.n()).type();
         g.output("of_col", broadcast(g.col("c"), type));
         g.output("of_row", broadcast(g.row("r", g.n()), type));
       }},
      {"op/first_of_pair", pairs([](Tensor x, Pairs p) { return first_of_pair(x, p); })},
      {"op/second_of_pair", pairs([](Tensor x, Pairs p) { return second_of_pair(x, p); })},
      {"op/join",
       pairs([](Tensor x, Pairs p) { return join(second_of_pair(x, p), first_of_pair(x, p), p); })},
      {"op/rotate", rotations([](Tensor x, Tensor pos, Tensor freq, Pairs p) {
         return rotate(x, pos, freq, p);
       })},
      {"op/unrotate", rotations([](Tensor x, Tensor pos, Tensor freq, Pairs p) {
         return unrotate(x, pos, freq, p);
       })},
      {"op/cols", unary([](Tensor x) { return cols(x, 7, 33); })},
      {"op/cat_cols",
       [](CaseGraph& g) {
         g.output("y", cat_cols({g.x(), g.tile("t", 9), g.tile("u", 32)}));
       }},
      {"op/rows",
       [](CaseGraph& g) {
         const Tensor a = g.tile("t", 40), w = g.weight("v", 70, 40);
         g.output("y", matmul_nt(a, rows(w, 5, 41)));
       }},
      {"op/cat_rows",
       [](CaseGraph& g) {
         const Tensor a = g.tile("t", 40);
         g.output("y", matmul_nt(a, cat_rows({g.weight("v", 33, 40), g.weight("u", 64, 40)})));
       }},
      {"op/segment_sum", unary([](Tensor x) { return segment_sum(x, 2); })},
      {"op/segment_broadcast", unary([](Tensor x) { return segment_broadcast(x, 3); })},
      {"op/repeat", [](CaseGraph& g) { g.output("y", repeat(g.row("r", 8), 5)); }},
      {"op/fold", [](CaseGraph& g) { g.output("y", fold(g.row("r", 40), 5)); }},
      {"op/row_sum", unary([](Tensor x) { return row_sum(x); })},
      {"op/row_max", unary([](Tensor x) { return row_max(x); }), false},
      {"op/col_sum", unary([](Tensor x) { return col_sum(x); })},
      {"op/lse", unary([](Tensor x) { return lse(x); })},
      {"op/log_sum", forward_only([](CaseGraph& g) { return log_sum(g.x()); })},
      {"op/sum",
       [](CaseGraph& g) {
         const Tensor c = g.col("c"), r = g.row("r", g.n());
         g.output("of_col", sum(c * c));
         g.output("of_row", sum(r * r));
       }},
      {"op/pick", [](CaseGraph& g) { g.output("y", pick(g.x(), g.targets())); }},
      {"op/onehot", [](CaseGraph& g) { g.output("y", g.x() * onehot(g.targets(), g.n())); }},
      {"op/valid", [](CaseGraph& g) { g.output("y", g.x() * valid(g.targets())); }},
      {"op/matmul",
       [](CaseGraph& g) {
         const Tensor t = g.tile("t", 48);
         g.output("nt", matmul_nt(t, g.weight("v", g.n(), 48)));
         g.output("nn", matmul_nn(t, g.weight("u", 48, 56)));
         g.output("tn", matmul_tn(t, g.tile("x", g.n())));
       }},
  };
}

std::vector<CheckCase> operator_cases() {
  const auto attend = [](CaseGraph& g) {
    const Tensor q = g.tile("q", 64), k = g.tile("k", 32), v = g.tile("v", 32);
    const auto o = [&](AttentionOptions options) {
      return attention(q, k, v, g.graph().list("cu_seqlens"), 4, 2, 16, 0.25, options);
    };
    g.output("o", o({}));
    g.output("window", o({.window = 3}));
    g.output("softcap", o({.softcap = 2}));
    g.output("both", o({.window = 3, .softcap = 2}));
  };
  return {
      {"attention", attend},
      {"embedding",
       [](CaseGraph& g) { g.output("y", embedding(g.weight("table", g.n(), 24), g.targets())); }},
      {"operator/linear",
       [](CaseGraph& g) {
         g.output("y", linear(g.tile("t", 48), g.weight("v", g.n(), 48), g.row("bias", g.n())));
       }},
      {"operator/rms_norm",
       [](CaseGraph& g) { g.output("y", rms_norm(g.x(), g.row("norm", g.n()), 1e-6)); }},
      {"operator/silu", unary([](Tensor x) { return silu(x); })},
      {"operator/gelu", unary([](Tensor x) { return gelu(x); })},
      {"operator/gelu_tanh", unary([](Tensor x) { return gelu_tanh(x); })},
      {"operator/swiglu",
       [](CaseGraph& g) {
         const Tensor x = g.x();
         g.output("two", swiglu(x, g.tile("up", g.n())));
         g.output("halves", swiglu(x, Pairs::halves()));
         g.output("interleaved", swiglu(x, Pairs::interleaved()));
       }},
      {"operator/rope",
       [](CaseGraph& g) {
         const Tensor x = g.x(), freq = g.frequencies(g.n() == 64 ? 16 : 10);
         g.output("halves", rope(x, g.positions(), freq));
         g.output("interleaved", rope(x, g.positions(), freq, PairLayout::interleaved));
       }},
      {"operator/cross_entropy",
       [](CaseGraph& g) {
         const Tensor x = g.x();
         g.output("mean", cross_entropy(x, g.targets()));
         g.output("each", cross_entropy(x, g.targets(), Reduction::none));
       }},
  };
}

}  // namespace

const std::vector<CheckCase>& check_cases() {
  static const std::vector<CheckCase> cases = [] {
    std::vector<CheckCase> all = op_cases();
    for (CheckCase& c : operator_cases()) all.push_back(std::move(c));
    return all;
  }();
  return cases;
}

}  // namespace coda
