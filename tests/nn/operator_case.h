// One operator under test: a graph with random inputs. Its value, the gradients that are derived
// from it, and the programs that it compiles to are compared with one another, all in double.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/element.h"
#include "backend/reference/graph_evaluator.h"
#include "coda/error.h"
#include "coda/nn.h"
#include "plan/compile.h"

namespace coda::test {

using reference::GraphBindings;
using reference::Matrix;

/// Largest difference relative to the largest value expected (or 1); infinite where one is NaN and
/// the other is not, or extents differ.
inline double difference(const Matrix& got, const Matrix& want) {
  if (got.rows != want.rows || got.cols != want.cols) return HUGE_VAL;
  double largest = 1, worst = 0;
  for (std::size_t i = 0; i < want.v.size(); ++i) {
    if (std::isnan(got.v[i]) != std::isnan(want.v[i])) return HUGE_VAL;
    if (std::isnan(want.v[i])) continue;
    largest = std::max(largest, std::abs(want.v[i]));
    worst = std::max(worst, std::abs(got.v[i] - want.v[i]));
  }
  return worst / largest;
}

class OperatorCase {
 public:
  OperatorCase(std::int64_t tokens, unsigned seed = 1) : tokens_(tokens), random_(seed) {}

  Graph& graph() { return graph_; }
  std::int64_t tokens() const { return tokens_; }

  // Inputs with normally distributed values.
  Tensor tile(const std::string& name, std::int64_t cols, double spread = 1, double offset = 0) {
    bind(name, tokens_, cols, spread, offset);
    return wanted(graph_.tile(name, cols));
  }
  Tensor weight(const std::string& name, std::int64_t rows, std::int64_t cols) {
    bind(name, rows, cols, 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(cols, 1))), 0);
    return wanted(graph_.weight(name, rows, cols));
  }
  Tensor row(const std::string& name, std::int64_t cols) {
    bind(name, 1, cols, 0.3, 1);
    return wanted(graph_.row(name, cols));
  }
  // Inputs that are given.
  Tensor integers(const std::string& name, const std::vector<std::int64_t>& values, DType dtype) {
    bindings_[name] = matrix_of(values);
    return graph_.col(name, dtype);
  }
  Tensor frequencies(const std::string& name, const std::vector<float>& values) {
    Matrix m(1, static_cast<std::int64_t>(values.size()));
    m.v.assign(values.begin(), values.end());
    bindings_[name] = m;
    return graph_.row(name, m.cols);
  }
  Matrix& value(const std::string& name) { return bindings_.at(name); }

  /// Rounds all inputs so far to fp32, so that a backend in fp32 sees what the oracle sees.
  void round_inputs() {
    for (auto& [name, m] : bindings_) {
      for (double& x : m.v) x = static_cast<double>(static_cast<float>(x));
    }
  }

  /// The result, with a random cotangent (of its type) arriving for it.
  void result(Tensor y) {
    y_ = y;
    const Type type = y.type();
    switch (type.kind) {
      case Kind::tile:
        d_y_ = graph_.tile("d_y", type.cols);
        break;
      case Kind::col:
        d_y_ = graph_.col("d_y");
        break;
      default:
        d_y_ = graph_.scalar("d_y");
    }
    bind("d_y", type.rows == kTokens ? tokens_ : type.rows, type.cols, 1, 0);
  }

  Matrix evaluate() { return reference::evaluate(graph_, {y_}, bindings_, tokens_)[0]; }

  /// The gradients that reverse mode derives, in the order in which inputs were made.
  std::vector<Matrix> gradients() {
    if (d_x_.empty()) d_x_ = coda::gradients({{y_, d_y_}}, wrt_);
    return reference::evaluate(graph_, d_x_, bindings_, tokens_);
  }

  /// Compares them with central differences of sum(y * d_y), at up to `most` elements an input.
  /// The error of a difference is h^2 f''' / 6 + 2^-53 |f| / h, below 1e-8 for f''' and |f| / 100
  /// of the order of 1, as here.
  void check_differences(std::size_t most = 60) {
    const std::vector<Matrix> derived = gradients();
    const double h = 1e-4;
    for (std::size_t i = 0; i < wrt_.size(); ++i) {
      const std::string& name = graph_.node(wrt_[i].id()).name;
      Matrix& x = bindings_.at(name);
      for (std::size_t n = 0; n < std::min(most, x.v.size()); ++n) {
        const std::size_t at = x.v.size() <= most ? n : random_() % x.v.size();
        const double kept = x.v[at];
        x.v[at] = kept + h;
        const double above = objective();
        x.v[at] = kept - h;
        const double below = objective();
        x.v[at] = kept;
        EXPECT_NEAR(derived[i].v[at], (above - below) / (2 * h),
                    1e-6 * (1 + std::abs(derived[i].v[at])))
            << "d_" << name << ", element " << at;
      }
    }
  }

  /// Compiles with these options and runs forward and backward on a backend. Returns the value,
  /// then the gradients. With the reference backend in f64, tensors are bound in f64.
  std::vector<Matrix> run(Backend& backend, const CompileOptions& options, DType bound_as) {
    CompileRequest request;
    request.outputs.push_back({"y", y_, d_y_, true});
    request.wrt = wrt_;
    const auto plan = compile(graph_, request, options);
    const auto session = backend.prepare(plan, tokens_);
    std::vector<HostTensor> memory;
    memory.reserve(bindings_.size() + wrt_.size() + 1);
    const auto bind_one = [&](const std::string& name, const Matrix& m, DType dtype) {
      memory.emplace_back(dtype, m.rows, m.cols);
      for (std::size_t i = 0; i < m.v.size(); ++i) {
        memory.back().set(static_cast<std::int64_t>(i), m.v[i]);
      }
      session->bind(name, memory.back().view());
      return memory.size() - 1;
    };
    for (const auto& [name, m] : bindings_) {
      const std::int32_t buffer = plan->find_buffer(name);
      if (buffer < 0) continue;
      const DType dtype = plan->buffers[static_cast<std::size_t>(buffer)].dtype;
      bind_one(name, m, is_float(dtype) ? bound_as : dtype);
    }
    const double poison = std::numeric_limits<double>::quiet_NaN();
    std::vector<std::size_t> outputs;
    const auto extent = [&](std::int64_t rows) { return rows == kTokens ? tokens_ : rows; };
    outputs.push_back(
        bind_one("y", Matrix(extent(y_.type().rows), y_.type().cols, poison), bound_as));
    for (const Tensor& x : wrt_) {
      outputs.push_back(bind_one("d_" + graph_.node(x.id()).name,
                                 Matrix(extent(x.type().rows), x.type().cols, poison), bound_as));
    }
    session->run(Phase::forward, tokens_);
    session->run(Phase::backward, tokens_);
    std::vector<Matrix> results;
    for (const std::size_t i : outputs) results.push_back(reference::read_matrix(memory[i].view()));
    return results;
  }

  /// Fused and unfused programs give what the math says, to 1e-9 (sums are regrouped, no more).
  void check_programs() {
    std::vector<Matrix> want = gradients();
    want.insert(want.begin(), evaluate());
    const auto backend = make_reference_backend(DType::f64);
    for (const bool fuse : {true, false}) {
      for (const double held_price : {0.0, 1.5}) {
        CompileOptions options;
        options.fuse = fuse;
        options.held_price = held_price;
        SCOPED_TRACE(fuse ? "fused" : "unfused");
        const std::vector<Matrix> got = run(*backend, options, DType::f64);
        EXPECT_LE(difference(got[0], want[0]), 1e-9) << "value";
        for (std::size_t i = 0; i < wrt_.size(); ++i) {
          EXPECT_LE(difference(got[i + 1], want[i + 1]), 1e-9)
              << "d_" << graph_.node(wrt_[i].id()).name;
        }
      }
    }
  }

 private:
  static Matrix matrix_of(const std::vector<std::int64_t>& values) {
    Matrix m(static_cast<std::int64_t>(values.size()), 1);
    for (std::size_t i = 0; i < values.size(); ++i) m.v[i] = static_cast<double>(values[i]);
    return m;
  }

  void bind(const std::string& name, std::int64_t rows, std::int64_t cols, double spread,
            double offset) {
    std::normal_distribution<double> normal(offset, spread);
    Matrix m(rows, cols);
    for (double& x : m.v) x = normal(random_);
    bindings_[name] = m;
  }

  Tensor wanted(Tensor x) {
    wrt_.push_back(x);
    return x;
  }

  double objective() {
    const Matrix y = evaluate();
    const Matrix& d_y = bindings_.at("d_y");
    double total = 0;
    for (std::size_t i = 0; i < y.v.size(); ++i) total += y.v[i] * d_y.v[i];
    return total;
  }

  Graph graph_;
  std::int64_t tokens_;
  std::mt19937 random_;
  GraphBindings bindings_;
  std::vector<Tensor> wrt_;
  Tensor y_, d_y_;
  std::vector<Tensor> d_x_;
};

}  // namespace coda::test
