// Chains of ops that one kernel makes and stores have the bits of the ops one by one: each program
// is run as it is, and with one more reader of a value in between, which keeps the chain apart.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cpu/compiled.h"
#include "coda/graph.h"
#include "coda/program_builder.h"
#include "tensor/tensor.h"

namespace coda {
namespace {

using std::int64_t;

constexpr int64_t kDepth = 8;

struct Layout {
  bool interleaved = false;
  bool swapped = false;  ///< factors in another order: up * (sigmoid(gate) * gate)
};

Program gated(int64_t f, DType dtype, Layout layout, bool apart) {
  ProgramBuilder b("gated");
  b.gemm_nt("x", kDepth, {"w"}, {2 * f}, dtype);
  const ColVec scale = b.load_col("scale", DType::f32);
  Tile gate, up;
  if (layout.interleaved) {
    const Tile z = cast(b.acc() * scale, dtype);
    b.store_tile("z", z, dtype);
    std::tie(gate, up) = split(z, Pairs::interleaved());
  } else {
    gate = cast(cols(b.acc(), 0, f) * scale, dtype);
    up = cast(cols(b.acc(), f, 2 * f) * scale, dtype);
    b.store_tile("z_gate", gate, dtype);
    b.store_tile("z_up", up, dtype);
  }
  const Tile factor = sigmoid(gate);
  const Tile hidden = layout.swapped ? up * (factor * gate) : gate * factor * up;
  b.store_tile("hidden", cast(hidden, dtype), dtype);
  if (apart) b.store_tile("factor", factor, DType::f32);
  return instantiate(b.build(), 2 * f);
}

/// Every output's bytes but `factor`'s, with what stands between the rows.
std::vector<std::vector<std::byte>> outputs_of(const Program& program, int64_t tokens) {
  const auto shared_program = std::make_shared<const Program>(program);
  const cpu::CompiledProgram compiled(shared_program, tokens, CpuGemm::builtin);
  std::vector<HostTensor> tensors;
  std::vector<TensorView> views;
  for (const Operand& operand : program.operands) {
    const bool rows_are_tokens = operand.rows.symbol == Dim::Symbol::M;
    const int64_t cols = operand.kind == Kind::col ? 1 : operand.cols.num;
    HostTensor tensor(operand.dtype, rows_are_tokens ? tokens : operand.rows.num, cols + 3);
    for (int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, operand.output ? 77 : static_cast<double>(i * 37 % 101 - 50) / 25);
    if (operand.name == "scale" && tokens > 1)
      tensor.set(cols + 3, std::numeric_limits<double>::quiet_NaN());
    TensorView view = tensor.view();
    view.cols = cols;
    views.push_back(view);
    tensors.push_back(std::move(tensor));
  }
  cpu::ThreadPool pool(1);
  HostTensor shared(DType::f32, 1, compiled.shared_floats() + 1);
  HostTensor scratch(DType::f32, 1, cpu::padded(compiled.thread_floats()));
  compiled.run(views, tokens, shared.view().as<float>(), scratch.view().as<float>(), scratch.cols(),
               pool);
  std::vector<std::vector<std::byte>> outputs;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!program.operands[i].output || program.operands[i].name == "factor") continue;
    const auto bytes = static_cast<std::size_t>(tensors[i].size()) * size_of(views[i].dtype);
    outputs.emplace_back(bytes);
    std::memcpy(outputs.back().data(), views[i].data, bytes);
    const std::size_t width = size_of(views[i].dtype);
    for (std::int64_t e = 0; e < tensors[i].size(); ++e) {  // the bits of a NaN mean nothing
      if (std::isnan(tensors[i].get(e)))
        std::memset(outputs.back().data() + static_cast<std::size_t>(e) * width, 0xff, width);
    }
  }
  return outputs;
}

TEST(CpuChains, GatedProductsHaveTheBitsOfTheirOps) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Layout layout : {Layout{}, Layout{true, false}, Layout{false, true}}) {
      for (const int64_t f : {1, 7, 32, 129, 513}) {
        for (const int64_t tokens : {1, 5, 129}) {
          const auto together = outputs_of(gated(f, dtype, layout, false), tokens);
          const auto apart = outputs_of(gated(f, dtype, layout, true), tokens);
          ASSERT_EQ(together.size(), layout.interleaved ? 2u : 3u);
          EXPECT_EQ(together, apart) << name_of(dtype) << " f " << f << " tokens " << tokens
                                     << (layout.interleaved ? " interleaved" : "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace coda
