#include "backend/reference/graph_evaluator.h"

#include "backend/reference/opaque_kernels.h"
#include "base/check.h"
#include "ops/opaque.h"

namespace coda::reference {

namespace {

class GraphEvaluator {
 public:
  GraphEvaluator(const Graph& graph, const GraphBindings& bindings, std::int64_t tokens)
      : graph_(graph),
        bindings_(bindings),
        tokens_(tokens),
        values_(static_cast<std::size_t>(graph.size())),
        opaque_(static_cast<std::size_t>(graph.size())),
        needed_(static_cast<std::size_t>(graph.size()), 0) {}

  void run(const std::vector<Tensor>& roots) {
    for (const Tensor& root : roots) {
      if (root) needed_[static_cast<std::size_t>(root.id())] = 1;
    }
    for (NodeId id = graph_.size(); id-- > 0;) {
      if (!needed_[static_cast<std::size_t>(id)]) continue;
      for (const NodeId in : graph_.node(id).in) needed_[static_cast<std::size_t>(in)] = 1;
    }
    for (NodeId id = 0; id < graph_.size(); ++id) {
      if (needed_[static_cast<std::size_t>(id)]) step(id);
    }
  }

  const Matrix& value(NodeId id) const { return values_[static_cast<std::size_t>(id)]; }

 private:
  std::int64_t count(std::int64_t extent) const { return extent == kTokens ? tokens_ : extent; }

  void step(NodeId id) {
    const Node& node = graph_.node(id);
    Matrix& value = values_[static_cast<std::size_t>(id)];
    const std::int64_t rows = count(node.type.rows), cols = count(node.type.cols);
    if (node.op == Op::input) {
      value = input(node, rows, cols);
      return;
    }
    if (node.op == Op::opaque) {
      run_node(id);
      return;
    }
    if (node.op == Op::proj) {
      value =
          opaque_[static_cast<std::size_t>(node.in[0])][static_cast<std::size_t>(node.attrs.index)];
      return;
    }
    std::vector<const Matrix*> args;
    for (const NodeId in : node.in) args.push_back(&values_[static_cast<std::size_t>(in)]);
    value = evaluate(node.op, node.attrs, args, rows, cols, false, {});
  }

  Matrix input(const Node& node, std::int64_t rows, std::int64_t cols) const {
    const auto found = bindings_.find(node.name);
    if (found == bindings_.end()) {
      throw_error<UsageError>(
          "evaluate: input {}: expected a value, got none. Add it to the "
          "bindings.",
          node.name);
    }
    const Matrix& matrix = found->second;
    if (node.type.kind != Kind::list && (matrix.rows != rows || matrix.cols != cols)) {
      throw_error<UsageError>(
          "evaluate: input {}: expected [{}, {}], got [{}, {}]. Bind a matrix "
          "of the input's extents.",
          node.name, rows, cols, matrix.rows, matrix.cols);
    }
    return matrix;
  }

  /// Runs the kernel on copies; its results wait for their proj nodes.
  void run_node(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<HostTensor> memory;
    std::vector<TensorView> inputs, outputs;
    for (const NodeId in : node.in) {
      const Matrix& source = values_[static_cast<std::size_t>(in)];
      const bool integers = !is_float(graph_.node(in).type.dtype);
      memory.emplace_back(integers ? DType::i64 : DType::f64, source.rows, source.cols);
      write_matrix(memory.back().view(), source);
    }
    for (const HostTensor& tensor : memory) inputs.push_back(tensor.view());
    std::vector<HostTensor> results;
    for (const Extents& extents : result_extents(node)) {
      results.emplace_back(DType::f64, extents.rows, extents.cols);
    }
    for (const HostTensor& tensor : results) outputs.push_back(tensor.view());
    run_opaque(node.attrs.opaque, node.attrs, inputs, outputs);
    for (const HostTensor& tensor : results) {
      opaque_[static_cast<std::size_t>(id)].push_back(read_matrix(tensor.view()));
    }
  }

  struct Extents {
    std::int64_t rows, cols;
  };

  std::vector<Extents> result_extents(const Node& node) const {
    const auto like = [&](std::size_t i) {
      const Matrix& source = values_[static_cast<std::size_t>(node.in[i])];
      return Extents{source.rows, source.cols};
    };
    const Attrs& attrs = node.attrs;
    switch (attrs.opaque) {
      case Opaque::attention:
        return {like(0), {tokens_, attrs.index}};
      case Opaque::attention_backward:
        return {like(0), like(1), like(2)};
      case Opaque::cached_attention:
        return {like(0)};
      case Opaque::embedding:
        return {{tokens_, like(0).cols}};
      case Opaque::embedding_backward:
        return {{attrs.index2, like(1).cols}};
      case Opaque::none:
        break;
    }
    throw InternalError("reference: an opaque node without a registry row");
  }

  const Graph& graph_;
  const GraphBindings& bindings_;
  std::int64_t tokens_;
  std::vector<Matrix> values_;
  std::vector<std::vector<Matrix>> opaque_;  ///< results of each opaque node
  std::vector<char> needed_;
};

}  // namespace

std::vector<Matrix> evaluate(const Graph& graph, const std::vector<Tensor>& roots,
                             const GraphBindings& bindings, std::int64_t tokens) {
  GraphEvaluator evaluator(graph, bindings, tokens);
  evaluator.run(roots);
  std::vector<Matrix> values;
  for (const Tensor& root : roots) {
    values.push_back(root ? evaluator.value(root.id()) : Matrix());
  }
  return values;
}

}  // namespace coda::reference
