// The cases of `coda check` without a block: every op by itself, every operator, every block; on
// tiles in memory and on the product of a GEMM.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coda/compile.h"
#include "nn/models/llama_blocks.h"

namespace coda {

/// A graph that a case fills: inputs, which get gradients, and outputs.
class CaseGraph {
 public:
  /// product: x() is the result of a matrix product.
  CaseGraph(DType dtype, bool product);

  std::int64_t n() const { return product_ ? 64 : 50; }  ///< columns of most tiles
  DType dtype() const { return dtype_; }
  Graph& graph() { return graph_; }

  Tensor x() { return product_ ? product() : tile("x", n()); }
  Tensor tile(const std::string& name, std::int64_t cols);
  Tensor weight(const std::string& name, std::int64_t rows, std::int64_t cols);
  Tensor row(const std::string& name, std::int64_t cols);
  Tensor col(const std::string& name);
  Tensor targets() { return graph_.col("targets", DType::i32); }
  Tensor positions() { return graph_.col("positions", DType::i32); }
  Tensor frequencies(std::int64_t head_dim);

  void output(const std::string& name, Tensor value);
  /// Forward only.
  void fixed(const std::string& name, Tensor value);

  std::shared_ptr<const Plan> compile_plan();
  const LlamaBlockSizes& sizes() const { return sizes_; }

 private:
  Tensor product();
  Tensor differentiated(Tensor input);

  Graph graph_;
  DType dtype_;
  bool product_;
  CompileRequest request_;
  LlamaBlockSizes sizes_;  ///< what inputs of special names are made from (cli/block.h)
};

struct CheckCase {
  std::string name;  ///< "op/exp", "operator/rope", "attention"
  std::function<void(CaseGraph&)> build;
  /// Also on a product. Not where a rounding of x that one side makes changes a decision.
  bool on_product = true;
};

const std::vector<CheckCase>& check_cases();

}  // namespace coda
