#include "graph/rewrite.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "coda/error.h"
#include "graph/blocks.h"
#include "graph/evaluate.h"

namespace coda {
namespace {

using testing::Bindings;
using testing::LlamaLayer;

std::vector<NodeId> ids_of(const std::vector<Tensor>& tensors) {
  std::vector<NodeId> ids;
  for (Tensor t : tensors) ids.push_back(t ? t.id() : kNoNode);
  return ids;
}

std::vector<Tensor> mapped(const Rewritten& rewritten, std::vector<Tensor> tensors) {
  for (Tensor& t : tensors) t = rewritten[t];
  return tensors;
}

/// nt, nn, tn products that the roots need and `known` do not.
struct Products {
  int nt = 0, nn = 0, tn = 0;
  bool operator==(const Products&) const = default;
};
void PrintTo(const Products& p, std::ostream* out) {
  *out << p.nt << " nt, " << p.nn << " nn, " << p.tn << " tn";
}

Products products_of(const Graph& g, const std::vector<Tensor>& roots,
                     const std::vector<Tensor>& known = {}) {
  Products count;
  const std::vector<bool> is_known = mask_of(g, ids_of(known));
  for (NodeId id : needed_by(g, ids_of(roots))) {
    const Node& node = g.node(id);
    if (node.op != Op::matmul || is_known[static_cast<std::size_t>(id)]) continue;
    ++(node.attrs.transpose_a ? count.tn : node.attrs.transpose_b ? count.nt : count.nn);
  }
  return count;
}

/// Differences of values are bounded by the rounding of double: sums of fewer than 1000 terms of
/// order 10 in another order.
constexpr double kRounding = 1e-11;

void expect_same_values(const Graph& g, const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                        std::int64_t tokens) {
  Bindings bindings = testing::random_bindings(g, tokens, 11);
  const auto left = testing::evaluate(g, a, bindings, tokens);
  const auto right = testing::evaluate(g, b, bindings, tokens);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(static_cast<bool>(a[i]), static_cast<bool>(b[i])) << i;
    if (!a[i]) continue;
    const auto& x = left.at(a[i].id()).data;
    const auto& y = right.at(b[i].id()).data;
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t j = 0; j < x.size(); ++j) {
      ASSERT_NEAR(x[j], y[j], kRounding * (1 + std::abs(x[j]))) << "value " << i << "[" << j << "]";
    }
  }
}

TEST(Defer, MovesTheScaleOfANormPastTheProduct) {
  Graph g;
  const Tensor a = g.tile("a", 6), w0 = g.weight("w0", 8, 6), b = g.tile("b", 8);
  const Tensor n = g.row("n", 8), w1 = g.weight("w1", 5, 8);
  const Tensor x = g.named(matmul_nt(a, w0) + b, "x");
  const Tensor y = matmul_nt(testing::rms_norm(x, n), w1);
  const Rewritten deferred = defer(g, ids_of({y}));
  EXPECT_EQ(to_string(g, {deferred[y]}),
            "%a = input : f32[M, 6]\n"
            "%w0 = input : f32[8, 6]\n"
            "%b = input : f32[M, 8]\n"
            "%n = input : f32[8]\n"
            "%w1 = input : f32[5, 8]\n"
            "%0 = matmul nt %a, %w0 : [M, 8]\n"
            "%x = add %b, %0 : [M, 8]\n"
            "%1 = mul %x, %x : [M, 8]\n"
            "%2 = row_sum %1 : [M]\n"
            "%3 = constant 8 : []\n"
            "%4 = div %2, %3 : [M]\n"
            "%5 = constant 1e-06 : []\n"
            "%6 = add %4, %5 : [M]\n"
            "%7 = rsqrt %6 : [M]\n"
            "%8 = mul %n, %x : [M, 8]\n"
            "%9 = matmul nt %8, %w1 : [M, 5]\n"
            "%10 = mul %7, %9 : [M, 5]\n"
            "roots %10\n");
  EXPECT_EQ(deferred.notes.size(), 1u);
  expect_same_values(g, {y}, {deferred[y]}, 5);
}

TEST(Defer, LeavesScalesThatAreAvailable) {
  Graph g;
  const Tensor w = g.weight("w", 8, 8);
  const Tensor x = g.tile("x", 8);
  const Tensor scale = rsqrt(row_sum(x * x));
  const Tensor t = matmul_nt(x, w) * scale;  // scale is known before the product is made
  const Tensor masked = matmul_nt(x, w) * g.col("mask");
  const Tensor y = matmul_nt(t, w), z = matmul_nt(masked, w);
  const Rewritten deferred = defer(g, ids_of({y, z}));
  EXPECT_EQ(deferred[y].id(), y.id());
  EXPECT_EQ(deferred[z].id(), z.id());
}

TEST(Defer, DividesAndRepeatsAndLooksIntoParts) {
  Graph g;
  const Tensor w = g.weight("w", 5, 8);
  const Tensor x = matmul_nt(g.tile("a", 4), g.weight("w0", 8, 4));
  const Tensor size = row_max(x * x), total = row_sum(x * x);
  const Tensor y = matmul_nt(-(x / size) * total, w);
  const Rewritten deferred = defer(g, ids_of({y}));
  EXPECT_EQ(deferred.notes.size(), 2u);
  EXPECT_EQ(g.node(g.node(deferred[y].id()).in[0]).op, Op::row_sum);
  expect_same_values(g, {y}, {deferred[y]}, 3);
  const Tensor parts = cat_cols({x, x * x}) * rsqrt(total);
  const Tensor z = matmul_nt(parts, g.weight("wz", 3, 16));
  const Rewritten again = defer(g, ids_of({z}));
  EXPECT_EQ(again.notes.size(), 1u);
  expect_same_values(g, {z}, {again[z]}, 8);
}

TEST(Merge, MakesOneProductOfThoseThatShareAnOperand) {
  Graph g;
  const Tensor x = g.tile("x", 4), r = g.row("r", 4);
  const Tensor a = matmul_nt(x, g.weight("wa", 2, 4));
  const Tensor b = exp(matmul_nt(x, g.weight("wb", 3, 4) * r));
  const Tensor c = matmul_nt(x, g.weight("wc", 5, 4, DType::bf16));  // another memory type
  const Tensor d = matmul_nt(x, matmul_tn(b, x) * 2.0);              // a computed weight
  const Rewritten merged = merge(g, ids_of({a, b, c, d}));
  EXPECT_EQ(to_string(g, {merged[a], merged[b]}),
            "%x = input : f32[M, 4]\n"
            "%r = input : f32[4]\n"
            "%wa = input : f32[2, 4]\n"
            "%wb = input : f32[3, 4]\n"
            "%0 = mul %r, %wb : [3, 4]\n"
            "%1 = cat_rows %wa, %0 : [5, 4]\n"
            "%2 = matmul nt %x, %1 : [M, 5]\n"
            "%3 = cols %2, 0, 2 : [M, 2]\n"
            "%4 = cols %2, 2, 5 : [M, 3]\n"
            "%5 = exp %4 : [M, 3]\n"
            "roots %3 %5\n");
  EXPECT_EQ(merged[c].id(), c.id());
  EXPECT_EQ(products_of(g, mapped(merged, {a, b, c, d})), (Products{3, 0, 1}));
  expect_same_values(g, {a, b, c, d}, mapped(merged, {a, b, c, d}), 4);
}

/// A layer taken through defer, merge, reverse mode and recover, with the checks of values.
struct Compiled {
  Graph g;
  LlamaLayer layer;
  std::vector<Tensor> plain;    // gradients of the layer as written
  std::vector<Tensor> outputs;  // deferred and merged
  std::vector<Tensor> gradients, recovered;
  std::vector<NodeId> stored, cut;
  std::vector<std::string> notes;

  explicit Compiled(std::int64_t d, std::int64_t f, std::int64_t head, std::int64_t kv)
      : layer(testing::llama_layer(g, d, f, head, kv)) {
    plain = coda::gradients(layer.seeds(), layer.wrt);
    const Rewritten deferred = defer(g, ids_of(layer.outputs));
    outputs = mapped(deferred, layer.outputs);
    const Rewritten merged = merge(g, ids_of(outputs));
    outputs = mapped(merged, outputs);
    Phases phases{ids_of(outputs), {}, ids_of(layer.cotangents), g.size()};
    LlamaLayer rewritten = layer;
    rewritten.outputs = outputs;
    gradients = coda::gradients(rewritten.seeds(), layer.wrt);
    phases.backward = ids_of(gradients);
    for (NodeId id : needed_by(g, phases.forward)) {
      const Node& node = g.node(id);
      if (node.op == Op::input) stored.push_back(id);
      if (node.op == Op::matmul) stored.insert(stored.end(), node.in.begin(), node.in.end());
    }
    for (NodeId id : phases.forward) stored.push_back(id);
    const Rewritten back = recover(g, phases, stored);
    recovered = mapped(back, gradients);
    notes = back.notes;
    phases.backward = ids_of(recovered);
    std::vector<double> bytes;
    for (NodeId id = 0; id < g.size(); ++id) {
      const Type type = g.node(id).type;
      const bool tile = type.kind == Kind::tile;
      bytes.push_back(tile                     ? 2.0 * 16384 * static_cast<double>(type.cols)
                      : type.kind == Kind::col ? 4.0 * 16384
                                               : 4.0 * static_cast<double>(type.cols));
    }
    cut = min_cut(g, phases, stored, bytes);
  }
};

TEST(LlamaLayerRewrites, CountProductsAndKeepValues) {
  Compiled c(8, 12, 4, 4);
  EXPECT_EQ(products_of(c.g, c.outputs), (Products{4, 0, 0}));
  EXPECT_EQ(products_of(c.g, c.gradients, c.outputs), (Products{0, 4, 4}));
  for (const std::int64_t tokens : {1, 5, 8, 12}) {
    expect_same_values(c.g, c.layer.outputs, c.outputs, tokens);
    expect_same_values(c.g, c.plain, c.gradients, tokens);
    expect_same_values(c.g, c.plain, c.recovered, tokens);
  }
}

/// Values that the backward phase reads, when it recomputes all but what was kept and inputs.
std::vector<NodeId> recomputed(const Compiled& c) {
  std::vector<bool> kept(static_cast<std::size_t>(c.g.size()));
  for (NodeId id : c.cut) kept[static_cast<std::size_t>(id)] = true;
  std::vector<NodeId> todo = ids_of(c.recovered), result;
  std::vector<bool> seen = kept;
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    if (seen[static_cast<std::size_t>(id)]) continue;
    seen[static_cast<std::size_t>(id)] = true;
    result.push_back(id);
    for (NodeId in : c.g.node(id).in) todo.push_back(in);
  }
  return result;
}

TEST(LlamaLayerRewrites, BackwardRunsFromWhatIsKept) {
  Compiled c(64, 172, 16, 32);
  std::string kept;
  for (NodeId id : c.cut) {
    const Node& node = c.g.node(id);
    kept += fmt::format("{} {} {}\n", node.name.empty() ? "-" : node.name, name_of(node.op),
                        to_string(node.type));
  }
  EXPECT_EQ(kept,
            "x1 add tile [M, 64]\n"
            "- row_sum col [M]\n"
            "- mul tile [M, 172]\n"
            "- mul tile [M, 172]\n"
            "x2 add tile [M, 64]\n"
            "- row_sum col [M]\n"
            "q rotate tile [M, 64]\n"
            "k rotate tile [M, 32]\n"
            "v mul tile [M, 32]\n");
  const std::vector<bool> forward = mask_of(c.g, ids_of(c.outputs));
  for (NodeId id : recomputed(c)) {
    const Op op = c.g.node(id).op;
    const bool dear = op == Op::matmul || op == Op::row_sum;
    EXPECT_FALSE(dear && forward[static_cast<std::size_t>(id)]) << id;
  }
}

/// tests/graph/llama_layer.txt; CODA_UPDATE_GOLDEN=1 writes it again.
TEST(LlamaLayerRewrites, Text) {
  Compiled c(64, 172, 16, 32);
  std::vector<Tensor> roots = c.outputs;
  roots.insert(roots.end(), c.recovered.begin(), c.recovered.end());
  std::string text = to_string(c.g, roots);
  for (const std::string& note : c.notes) text += note + "\n";
  const std::string path = std::string(CODA_SOURCE_DIR) + "/tests/graph/llama_layer.txt";
  if (std::getenv("CODA_UPDATE_GOLDEN")) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(golden.str(), text) << "Run CODA_UPDATE_GOLDEN=1 coda_graph_tests.";
}

/// Output and gradients of a block through all rewrites against the block as written.
void check_block(Graph& g, const testing::Block& block, const Products& forward,
                 const Products& backward) {
  const Type type = block.value.type();
  const Tensor d = type.kind == Kind::scalar ? g.scalar("d") : g.tile("d", type.cols);
  const std::vector<Tensor> plain = gradients({{block.value, d}}, block.wrt);
  const Rewritten deferred = defer(g, ids_of({block.value}));
  const Rewritten merged = merge(g, ids_of({deferred[block.value]}));
  const Tensor out = merged[deferred[block.value]];
  Phases phases{ids_of({out}), {}, ids_of({d}), g.size()};
  std::vector<Tensor> grads = gradients({{out, d}}, block.wrt);
  phases.backward = ids_of(grads);
  EXPECT_EQ(products_of(g, {out}), forward);
  EXPECT_EQ(products_of(g, grads, {out}), backward);
  std::vector<NodeId> stored;
  for (NodeId id : needed_by(g, phases.forward)) {
    const Node& node = g.node(id);
    if (node.op == Op::matmul) stored.insert(stored.end(), node.in.begin(), node.in.end());
  }
  const Rewritten recovered = recover(g, phases, stored);
  for (Tensor& grad : grads) grad = recovered[grad];
  for (const std::int64_t tokens : {1, 5, 12}) {
    expect_same_values(g, {block.value}, {out}, tokens);
    expect_same_values(g, plain, grads, tokens);
  }
}

TEST(BlockRewrites, Head) {
  Graph g;
  check_block(g, testing::head(g, 12, 7), {2, 0, 0}, {0, 2, 2});
}

TEST(BlockRewrites, ParallelBlock) {
  Graph g;
  check_block(g, testing::parallel_block(g, 12, 18), {4, 0, 0}, {0, 4, 4});
}

TEST(BlockRewrites, QkNorm) {
  Graph g;
  check_block(g, testing::qk_norm(g, 3, 4), {2, 0, 0}, {0, 2, 2});
}

TEST(SplitLse, TakesDifferencesOneTermAfterTheOther) {
  Graph g;
  const Tensor x = g.tile("x", 7), c = g.col("c"), t = g.tile("t", 5);
  const Tensor m = row_max(x), l = log_sum(x);
  struct Case {
    Tensor from, to;
  };
  const Case cases[] = {
      {x - lse(x), (x - m) - l},
      {lse(x) - c, (m - c) + l},
      {-(lse(x) - c), (c - m) - l},
      {lse(x) - lse(t), ((m - row_max(t)) + l) - log_sum(t)},
      {exp(x - lse(x)) * c, exp((x - m) - l) * c},
      {lse(x) * c, (m + l) * c},
      {lse(x - lse(x)), row_max((x - m) - l) + log_sum((x - m) - l)},
      {x - m, x - m},
  };
  for (const Case& each : cases) {
    const Rewritten split = split_lse(g, ids_of({each.from}));
    EXPECT_EQ(split[each.from].id(), each.to.id()) << to_string(g, {split[each.from]});
    expect_same_values(g, {each.from}, {each.to}, 4);
  }
}

TEST(SplitLse, MakesWhatIsNotDifferentiatedAgain) {
  Graph g;
  const Tensor x = g.tile("x", 7), d = g.col("d");
  EXPECT_THROW(gradients({{log_sum(x), d}}, {x}), UsageError);
}

/// What both phases read of the forward one has to be the same nodes in both.
TEST(SplitLse, OfGradientsKeepsTheForwardValues) {
  Graph g;
  const Tensor x = g.tile("x", 7), d = g.col("d");
  const Tensor y = lse(x * 2.0);
  const Rewritten forward = split_lse(g, ids_of({y}));
  const NodeId boundary = g.size();
  const Tensor dx = gradients({{y, d}}, {x})[0];
  const Rewritten backward = split_lse(g, ids_of({dx}), forward.map);
  const std::vector<bool> in_forward = mask_of(g, ids_of({forward[y]}));
  int reductions = 0;
  for (NodeId id : needed_by(g, ids_of({backward[dx]}))) {
    EXPECT_NE(g.node(id).op, Op::lse);
    if (g.node(id).op != Op::row_max && g.node(id).op != Op::log_sum) continue;
    ++reductions;
    EXPECT_TRUE(id < boundary && in_forward[static_cast<std::size_t>(id)]);
  }
  EXPECT_EQ(reductions, 2);
  expect_same_values(g, {y, dx}, {forward[y], backward[dx]}, 3);
}

TEST(Recover, DividesOnlyByWhatIsNeverZero) {
  Graph g;
  const Tensor x = g.tile("x", 4), w = g.weight("w", 3, 4), mask = g.col("mask");
  const Tensor acc = matmul_nt(x, w);
  const Tensor y = tanh(acc * mask);
  const Tensor d = g.tile("d", 3);
  Phases phases{ids_of({y}), {}, ids_of({d}), g.size()};
  const std::vector<Tensor> grads = gradients({{y, d}}, {mask});
  phases.backward = ids_of(grads);
  const std::vector<NodeId> stored = ids_of({x, w, y});
  const Rewritten recovered = recover(g, phases, stored);
  EXPECT_EQ(recovered[grads[0]].id(), grads[0].id());
  EXPECT_TRUE(recovered.notes.empty());
}

TEST(MinCut, PrefersTheValueNearestTheBackwardPhase) {
  Graph g;
  const Tensor x = g.tile("x", 4), w = g.weight("w", 4, 4);
  const Tensor z = -matmul_nt(x, w);
  const Tensor y = sigmoid(z);
  const Tensor d = g.tile("d", 4);
  Phases phases{ids_of({y}), {}, ids_of({d}), g.size()};
  const std::vector<Tensor> grads = gradients({{y, d}}, {x});
  phases.backward = ids_of(grads);
  const std::vector<double> bytes(static_cast<std::size_t>(g.size()), 64.0);
  // z, the product and y all cost one tile; y (1 - y) as well, and it is the last.
  const std::vector<NodeId> cut = min_cut(g, phases, {}, bytes);
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0], (y * (g.constant(1) - y)).id());
  const std::vector<NodeId> stored = ids_of({y});
  EXPECT_EQ(min_cut(g, phases, stored, bytes), stored);
}

/// A chain of random steps over tiles of one width; every matmul has weights of its own.
Tensor random_graph(Graph& g, std::mt19937& random, std::vector<Tensor>& wrt) {
  const std::int64_t n = 6;
  const auto pick_one = [&](std::size_t size) {
    return std::uniform_int_distribution<std::size_t>(0, size - 1)(random);
  };
  std::vector<Tensor> tiles = {g.tile("x0", n), g.tile("x1", n)};
  wrt = tiles;
  const int steps = 4 + static_cast<int>(pick_one(10));
  for (int i = 0; i < steps; ++i) {
    const auto name = [&](const char* kind) { return kind + std::to_string(i); };
    const Tensor a = tiles[tiles.size() - 1 - pick_one(std::min<std::size_t>(3, tiles.size()))];
    const Tensor b = tiles[pick_one(tiles.size())];
    const Tensor row = g.row(name("r"), n), weight = g.weight(name("w"), n, n);
    const Tensor mean = row_sum(a) / static_cast<double>(n);
    const Tensor centred = a - mean;
    const Tensor scale = rsqrt(row_sum(centred * centred) / static_cast<double>(n) + 0.1);
    Tensor made;
    switch (pick_one(9)) {
      case 0:
        made = a + b;
        break;
      case 1:
        made = tanh(a) * b;
        break;
      case 2:
        made = testing::silu(a);
        break;
      case 3:
        made = testing::rms_norm(a + 0.5, row);
        break;
      case 4:
        made = centred * scale * row;
        break;
      case 5:
        made = a + testing::rms_norm(b + 0.5, row);
        break;
      case 6:
        made = cat_cols({cols(a, 2, n), cols(b, 0, 2)});
        break;
      default:
        made = matmul_nt(a, weight);
        break;
    }
    if (g.node(made.id()).op == Op::matmul) wrt.push_back(weight);
    tiles.push_back(made);
  }
  return tiles.back();
}

TEST(RandomGraphs, RewritesKeepEveryValue) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Graph g;
    std::vector<Tensor> wrt;
    const Tensor y = random_graph(g, random, wrt);
    const Tensor d = g.tile("d", 6);
    const std::vector<Tensor> plain = gradients({{y, d}}, wrt);
    const Rewritten deferred = defer(g, ids_of({y}));
    const Rewritten merged = merge(g, ids_of({deferred[y]}));
    const Tensor out = merged[deferred[y]];
    Phases phases{ids_of({out}), {}, ids_of({d}), g.size()};
    std::vector<Tensor> grads = gradients({{out, d}}, wrt);
    phases.backward = ids_of(grads);
    std::vector<NodeId> stored;
    for (NodeId id : needed_by(g, phases.forward)) {
      const Node& node = g.node(id);
      if (node.op == Op::matmul) stored.insert(stored.end(), node.in.begin(), node.in.end());
    }
    const Rewritten recovered = recover(g, phases, stored);
    for (Tensor& grad : grads) grad = grad ? recovered[grad] : grad;
    expect_same_values(g, {y}, {out}, 6);
    expect_same_values(g, plain, grads, 6);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace coda
