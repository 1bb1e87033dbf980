// Every derivative rule against central finite differences in double.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "coda/error.h"
#include "coda/graph.h"
#include "graph/evaluate.h"
#include "graph/rewrite.h"

namespace coda {
namespace {

using testing::Bindings;
using testing::Value;

double inner(const Value& a, const Value& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) sum += a.data[i] * b.data[i];
  return sum;
}

/// Gradients of <y, cotangent> for all float inputs of the graph against differences of step h.
/// The error of a central difference is h^2 |f'''| / 6 + 2^-52 |f| / h: with h = 1e-5, third
/// derivatives below 1e3 and |f| below 1e3, less than 1e-7 on this scale.
void check_gradients(Graph& g, Tensor y, std::int64_t tokens, Bindings bindings) {
  constexpr double kStep = 1e-5, kTolerance = 1e-7;
  std::vector<Tensor> wrt;
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& node = g.node(id);
    const bool wanted = node.op == Op::input && is_float(node.type.dtype) && node.name != "freq";
    if (wanted) wrt.push_back(g.at(id));  // frequencies are not differentiable, by definition
  }
  const Type type = y.type();
  Tensor dy;
  switch (type.kind) {
    case Kind::tile:
      dy = g.tile("dy", type.cols);
      break;
    case Kind::weight:
      dy = g.weight("dy", type.rows, type.cols);
      break;
    case Kind::col:
      dy = g.col("dy");
      break;
    case Kind::row:
      dy = g.row("dy", type.cols);
      break;
    default:
      dy = g.scalar("dy");
      break;
  }
  Value cotangent = testing::make_value(type, tokens);
  for (std::size_t i = 0; i < cotangent.data.size(); ++i) {
    cotangent.data[i] = 0.3 + 0.1 * static_cast<double>(i % 7);
  }
  bindings["dy"] = cotangent;
  const std::vector<Tensor> grads = gradients({{y, dy}}, wrt);
  const auto values = testing::evaluate(g, grads, bindings, tokens);
  const auto loss = [&](const Bindings& at) {
    return inner(testing::evaluate(g, {y}, at, tokens).at(y.id()), cotangent);
  };
  for (std::size_t w = 0; w < wrt.size(); ++w) {
    const std::string name = g.node(wrt[w].id()).name;
    if (!grads[w]) {  // then nothing may depend on it
      Bindings moved = bindings;
      for (double& x : moved[name].data) x += kStep;
      EXPECT_EQ(loss(moved), loss(bindings)) << name;
      continue;
    }
    EXPECT_EQ(to_string(grads[w].type()), to_string(wrt[w].type())) << name;
    const Value& grad = values.at(grads[w].id());
    for (std::size_t i = 0; i < bindings[name].data.size(); ++i) {
      Bindings moved = bindings;
      moved[name].data[i] += kStep;
      const double above = loss(moved);
      moved[name].data[i] -= 2 * kStep;
      const double numeric = (above - loss(moved)) / (2 * kStep);
      EXPECT_NEAR(grad.data[i], numeric, kTolerance * (1 + std::abs(numeric)))
          << name << "[" << i << "], M = " << tokens;
    }
  }
}

struct Case {
  std::string name;
  std::function<Tensor(Graph&)> build;
  double lo = -1, hi = 1;  // range of float inputs
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

Tensor x(Graph& g) { return g.tile("x", 6); }
Tensor y(Graph& g) { return g.tile("y", 6); }
Tensor c(Graph& g) { return g.col("c"); }
Tensor r(Graph& g) { return g.row("r", 6); }
Tensor s(Graph& g) { return g.scalar("s"); }
Tensor w(Graph& g) { return g.weight("w", 4, 6); }
Tensor t(Graph& g) { return g.col("t", DType::i32); }

std::vector<Case> cases() {
  const Pairs inter = Pairs::interleaved();
  return {
      {"add", [](Graph& g) { return x(g) + y(g) + c(g) + r(g) + s(g); }},
      {"sub", [](Graph& g) { return (c(g) - x(g)) - r(g) - (s(g) - c(g)); }},
      {"mul", [](Graph& g) { return x(g) * y(g) * c(g) * r(g) * s(g); }},
      {"square", [](Graph& g) { return x(g) * x(g) * x(g); }},
      {"mul weight", [](Graph& g) { return w(g) * r(g) * s(g) + r(g); }},
      {"mul vectors", [](Graph& g) { return sum(c(g) * s(g)) * r(g) + r(g) * s(g); }},
      {"div", [](Graph& g) { return x(g) / c(g) / r(g) + s(g) / y(g); }, 0.5, 1.5},
      {"neg", [](Graph& g) { return -(x(g) * y(g)); }},
      {"exp", [](Graph& g) { return exp(x(g) * c(g)); }},
      {"log", [](Graph& g) { return log(x(g)); }, 0.5, 1.5},
      {"tanh", [](Graph& g) { return tanh(x(g)); }},
      {"sigmoid", [](Graph& g) { return sigmoid(x(g)); }},
      {"rsqrt", [](Graph& g) { return rsqrt(x(g)); }, 0.5, 1.5},
      {"erf", [](Graph& g) { return erf(x(g)); }},
      {"maximum", [](Graph& g) { return maximum(x(g), y(g)) * maximum(c(g), r(g) * x(g)); }},
      {"cast", [](Graph& g) { return cast(x(g) * y(g), DType::bf16); }},
      {"greater", [](Graph& g) { return greater(x(g), y(g)) * x(g) + equal(x(g), y(g)); }},
      {"broadcast",
       [](Graph& g) {
         const Tensor tile = broadcast(c(g), x(g).type()) * r(g);
         return tile * tile + broadcast(s(g), x(g).type());
       }},
      {"broadcast to weight", [](Graph& g) { return broadcast(r(g), w(g).type()) * w(g); }},
      {"interleaved",
       [=](Graph& g) { return first_of_pair(x(g), inter) * exp(second_of_pair(x(g), inter)); }},
      {"interleaved, one half", [=](Graph& g) { return exp(second_of_pair(x(g), inter)); }},
      {"join", [=](Graph& g) { return join(x(g) * y(g), exp(x(g)), inter); }},
      {"halves",
       [](Graph& g) {
         return first_of_pair(x(g), Pairs::halves()) * exp(second_of_pair(x(g), Pairs::halves()));
       }},
      {"halves(4)",
       [](Graph& g) {
         const Tensor z = cat_cols({x(g), cols(y(g), 0, 2)});
         return join(exp(second_of_pair(z, Pairs::halves(4))), first_of_pair(z, Pairs::halves(4)),
                     Pairs::halves(2));
       }},
      {"rotate",
       [](Graph& g) {
         return exp(rotate(x(g), g.col("pos", DType::i32), g.row("freq", 2), Pairs::halves(2)));
       }},
      {"rotate interleaved",
       [](Graph& g) {
         const Tensor pos = g.col("pos", DType::i32), freq = g.row("freq", 6);
         return x(g) * unrotate(exp(x(g)), pos, freq, Pairs::interleaved());
       }},
      {"cols",
       [](Graph& g) { return cols(exp(x(g)), 0, 4) * cols(x(g), 2, 6) + cols(r(g), 1, 5); }},
      {"cat_cols",
       [](Graph& g) {
         return exp(cat_cols({x(g), y(g) * c(g), cols(x(g), 1, 3)}));
       }},
      {"cat_cols of rows",
       [](Graph& g) {
         return cat_cols({exp(r(g)), cols(r(g), 2, 3)});
       }},
      {"rows", [](Graph& g) { return exp(rows(w(g), 1, 3)) * rows(w(g), 0, 2); }},
      {"cat_rows",
       [](Graph& g) {
         return exp(cat_rows({w(g) * r(g), rows(w(g), 1, 2)}));
       }},
      {"segment_sum", [](Graph& g) { return exp(segment_sum(x(g) * x(g), 3)); }},
      {"segment_broadcast", [](Graph& g) { return exp(segment_broadcast(x(g), 2)); }},
      {"repeat", [](Graph& g) { return exp(repeat(r(g), 2)); }},
      {"fold", [](Graph& g) { return exp(fold(r(g), 3)); }},
      {"row_sum", [](Graph& g) { return exp(row_sum(x(g) * x(g))); }},
      {"row_sum of a product", [](Graph& g) { return row_sum(x(g) * c(g) / exp(c(g)) * r(g)); }},
      {"row_max", [](Graph& g) { return row_max(x(g) * x(g)); }},
      {"col_sum", [](Graph& g) { return exp(col_sum(x(g) * c(g) * r(g))); }},
      {"col_sum of a weight", [](Graph& g) { return exp(col_sum(w(g) * w(g))); }},
      {"lse", [](Graph& g) { return lse(x(g) * 3.0) * c(g); }},
      {"sum", [](Graph& g) { return exp(sum(c(g) * c(g))) + sum(r(g) * s(g)); }},
      {"pick", [](Graph& g) { return exp(pick(x(g), t(g))) * valid(t(g)); }},
      {"pick, ignoring", [](Graph& g) { return pick(exp(x(g)), t(g), -1); }},
      {"onehot", [](Graph& g) { return onehot(t(g), 6) * x(g); }},
      {"matmul nt", [](Graph& g) { return exp(matmul_nt(x(g), w(g))); }},
      {"matmul nn", [](Graph& g) { return matmul_nn(g.tile("a", 4), w(g) * w(g)); }},
      {"matmul tn", [](Graph& g) { return matmul_tn(x(g), y(g) * x(g)) * r(g); }},
      {"rms norm and a matmul",
       [](Graph& g) {
         const Tensor h = x(g) * rsqrt(row_sum(x(g) * x(g)) / 6.0 + 1e-3) * r(g);
         return matmul_nt(h, w(g));
       }},
      {"cross-entropy",
       [](Graph& g) {
         const Tensor ok = valid(t(g)), count = sum(ok);
         const Tensor rows = ok * (lse(x(g)) - pick(x(g), t(g)));
         return sum(rows * (g.constant(1) / maximum(count, 1.0))) + g.constant(0) / count;
       }},
  };
}

class Gradients : public ::testing::TestWithParam<Case> {};

TEST_P(Gradients, MatchFiniteDifferences) {
  for (const std::int64_t tokens : {1, 5, 6}) {
    Graph g;
    const Tensor value = GetParam().build(g);
    const Bindings bindings = testing::random_bindings(g, tokens, 7, GetParam().lo, GetParam().hi);
    check_gradients(g, value, tokens, bindings);
  }
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char ch : info.param.name) {
    if (std::isalnum(static_cast<unsigned char>(ch))) name += ch;
  }
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(EveryOp, Gradients, ::testing::ValuesIn(cases()), test_name);

TEST(GradientCases, CoverEveryRule) {
  std::set<Op> covered;
  for (const Case& test : cases()) {
    Graph g;
    test.build(g);
    for (NodeId id = 0; id < g.size(); ++id) covered.insert(g.node(id).op);
  }
  for (const OpRow& row : op_table()) {
    EXPECT_TRUE(row.derivative[0].empty() || covered.contains(row.op)) << row.name;
  }
}

TEST(GradientRules, IgnoredTargetsGiveNothing) {
  Graph g;
  const Tensor z = g.tile("z", 3), targets = g.col("t", DType::i64);
  const Tensor ok = valid(targets), count = sum(ok);
  const Tensor loss =
      sum(ok * (lse(z) - pick(z, targets)) * (g.constant(1) / maximum(count, 1.0))) +
      g.constant(0) / count;
  const Tensor dz = gradients({{loss, g.constant(1)}}, {z})[0];
  Bindings bindings = testing::random_bindings(g, 2, 3);
  bindings["t"].data = {-100, -100};
  const auto values = testing::evaluate(g, {loss, dz}, bindings, 2);
  EXPECT_TRUE(std::isnan(values.at(loss.id()).data[0]));
  for (const double x : values.at(dz.id()).data) EXPECT_EQ(x, 0);
}

TEST(GradientRules, IndependentInputsGiveNull) {
  Graph g;
  const Tensor a = g.tile("a", 3), b = g.tile("b", 3);
  const auto grads = gradients({{a * 2.0, g.tile("d", 3)}}, {b, a});
  EXPECT_FALSE(grads[0]);
  EXPECT_TRUE(grads[1]);
}

TEST(GradientRules, SquareGivesOneTerm) {
  Graph g;
  const Tensor a = g.tile("a", 3), d = g.col("d");
  EXPECT_EQ(to_string(g, gradients({{row_sum(a * a), d}}, {a})),
            "%a = input : f32[M, 3]\n"
            "%d = input : f32[M]\n"
            "%0 = constant 2 : []\n"
            "%1 = mul %d, %0 : [M]\n"
            "%2 = mul %a, %1 : [M, 3]\n"
            "roots %2\n");
}

TEST(GradientRules, PartsAreCollected) {
  Graph g;
  const Tensor a = g.tile("a", 6);
  const auto d = [&](const char* name) { return g.tile(name, 2); };
  const auto grads = gradients(
      {{cols(a, 2, 4), d("d2")}, {cols(a, 0, 2), d("d1")}, {cols(a, 4, 6), d("d3")}}, {a});
  EXPECT_EQ(grads[0].id(), cat_cols({d("d1"), d("d2"), d("d3")}).id()) << to_string(g, grads);
}

TEST(GradientRules, OpaqueNodesGoThroughTheRegistry) {
  Graph g;
  const Tensor q = g.tile("q", 8), k = g.tile("k", 4), v = g.tile("v", 4);
  const Tensor o = attention(q, k, v, g.list("cu"), 4, 2, 2, 0.5);
  const Tensor table = g.weight("table", 11, 8), ids = g.col("ids", DType::i32);
  const auto grads =
      gradients({{o, g.tile("d_o", 8)}, {embedding(table, ids), g.tile("d_x", 8)}}, {q, v, table});
  EXPECT_EQ(to_string(g, grads),
            "%q = input : f32[M, 8]\n"
            "%k = input : f32[M, 4]\n"
            "%v = input : f32[M, 4]\n"
            "%cu = input : i32[any]\n"
            "%0 = opaque attention(4, 2, 2, 0.5) %q, %k, %v, %cu : [M, 8]\n"
            "%1 = proj %0, 0 : [M, 8]\n"
            "%ids = input : i32[M]\n"
            "%d_o = input : f32[M, 8]\n"
            "%d_x = input : f32[M, 8]\n"
            "%2 = opaque embedding_backward %ids, %d_x : [11, 8]\n"
            "%3 = proj %2, 0 : [11, 8]\n"
            "%4 = proj %0, 1 : [M, 4]\n"
            "%5 = opaque attention_backward(4, 2, 2, 0.5) %q, %k, %v, %cu, %1, %4, %d_o : [M, 8]\n"
            "%6 = proj %5, 0 : [M, 8]\n"
            "%7 = proj %5, 2 : [M, 4]\n"
            "roots %6 %7 %3\n");
}

TEST(GradientRules, AttentionKeepsItsOptions) {
  Graph g;
  const Tensor q = g.tile("q", 8), k = g.tile("k", 4), v = g.tile("v", 4), cu = g.list("cu");
  const auto text = [&](AttentionOptions options) {
    const Tensor o = attention(q, k, v, cu, 4, 2, 2, 0.5, options);
    return to_string(g, gradients({{o, g.tile("d_o", 8)}}, {q}));
  };
  const std::string both = text({.window = 3, .softcap = 2.5});
  EXPECT_NE(both.find("attention(4, 2, 2, 0.5, window 3, softcap 2.5)"), std::string::npos) << both;
  EXPECT_NE(both.find("attention_backward(4, 2, 2, 0.5, window 3, softcap 2.5)"), std::string::npos)
      << both;
  EXPECT_NE(text({.window = 3}).find("_backward(4, 2, 2, 0.5, window 3)"), std::string::npos);
  EXPECT_NE(text({.softcap = 2.5}).find("_backward(4, 2, 2, 0.5, softcap 2.5)"), std::string::npos);
  EXPECT_NE(attention(q, k, v, cu, 4, 2, 2, 0.5, {.window = 3}).id(),
            attention(q, k, v, cu, 4, 2, 2, 0.5, {.window = 4}).id());
}

TEST(GradientRules, WrongCotangentsAreUsageErrors) {
  Graph g;
  const Tensor a = g.tile("a", 3);
  EXPECT_THROW(gradients({{a, g.tile("d", 4)}}, {a}), UsageError);
  EXPECT_THROW(gradients({{a, Tensor()}}, {a}), UsageError);
}

TEST(GradientRules, WhatHasNoDerivativeIsAnError) {
  Graph g;
  const Tensor a = g.tile("a", 4), pos = g.col("pos", DType::i32), freq = g.row("freq", 4);
  const Tensor y = rotate(a, pos, freq, Pairs::interleaved());
  EXPECT_THROW(gradients({{y, g.tile("d", 4)}}, {a, freq}), UsageError);
  EXPECT_THROW(gradients({{y, g.tile("d", 4)}}, {a, pos}), UsageError);
  EXPECT_TRUE(gradients({{y, g.tile("d", 4)}}, {a})[0]);
}

}  // namespace
}  // namespace coda
