// A value that backward computes again is bit for bit the one that forward used: every use of a
// tile that is in memory reads the rounded value, wherever it is made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "backend/arena.h"
#include "backend/backend.h"
#include "coda/graph.h"
#include "plan/compile.h"

namespace coda {
namespace {

constexpr std::int64_t kTokenCount = 37, kModel = 24, kHidden = 40;

/// out = silu(x wg^T) * (x wu^T) wd^T, in bf16. d_wd reads the hidden tile in backward: saved, or
/// made again from the stored gate and up.
std::shared_ptr<const Plan> compile_mlp(double held_price) {
  Graph g;
  Tensor x = g.tile("x", kModel, DType::bf16);
  Tensor gate = matmul_nt(x, g.weight("wg", kHidden, kModel, DType::bf16));
  Tensor up = matmul_nt(x, g.weight("wu", kHidden, kModel, DType::bf16));
  Tensor hidden = gate * sigmoid(gate) * up;
  Tensor out = matmul_nt(hidden, g.weight("wd", kModel, kHidden, DType::bf16));
  CompileRequest request;
  request.outputs.push_back({"out", out, g.tile("d_out", kModel, DType::bf16)});
  for (const char* name : {"x", "wg", "wu", "wd"}) {
    request.wrt.push_back(g.at(g.find_input(name)));
  }
  CompileOptions options;
  options.dtype = options.output_dtype = DType::bf16;
  options.held_price = held_price;
  return compile(g, request, options);
}

std::map<std::string, HostTensor> run(const std::shared_ptr<const Plan>& plan, Backend& backend) {
  const auto session = backend.prepare(plan, kTokenCount);
  std::map<std::string, HostTensor> tensors;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const Extents extents = extents_of(buffer, kTokenCount);
    HostTensor tensor(buffer.dtype, extents.rows, extents.cols);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const double phase = static_cast<double>(i) * 0.37 + static_cast<double>(buffer.name[0]);
      tensor.set(i, buffer.role == Role::input ? std::sin(phase) : std::nan(""));
    }
    session->bind(buffer.name, tensor.view());
    tensors[buffer.name] = std::move(tensor);
  }
  session->run(Phase::forward, kTokenCount);
  session->run(Phase::backward, kTokenCount);
  return tensors;
}

void expect_same_bits(Backend& backend) {
  const auto saving = compile_mlp(0), remaking = compile_mlp(1.5);
  ASSERT_LT(saved_bytes(*remaking, kTokenCount), saved_bytes(*saving, kTokenCount))
      << "both plans keep the hidden tile: the test compares nothing";
  const auto saved = run(saving, backend), made_again = run(remaking, backend);
  for (const char* name : {"out", "d_x", "d_wg", "d_wu", "d_wd"}) {
    const HostTensor& a = saved.at(name);
    const HostTensor& b = made_again.at(name);
    for (std::int64_t i = 0; i < a.size(); ++i) ASSERT_TRUE(std::isfinite(a.get(i))) << name;
    EXPECT_EQ(std::memcmp(a.view().data, b.view().data, a.view().bytes()), 0) << name;
  }
}

TEST(Reemission, IsBitForBitTheSameOnTheReference) {
  expect_same_bits(*make_reference_backend(DType::f32));
}

TEST(Reemission, IsBitForBitTheSameOnTheCpu) { expect_same_bits(*make_cpu_backend(2)); }

}  // namespace
}  // namespace coda
