// The README's example prints what the README says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "coda/coda.h"

namespace coda {
namespace {

TEST(Readme, TheExamplePrintsItsPrograms) {
  Graph g;
  Tensor x = g.tile("x", 512), y = g.tile("y", 512), d_out = g.tile("d_out", 512);
  Tensor w_out = g.weight("w_out", 512, 512), norm = g.row("norm", 512);
  Tensor gate = g.weight("gate", 1408, 512), up = g.weight("up", 1408, 512),
         down = g.weight("down", 512, 1408);
  Tensor r = x + linear(y, w_out);
  Tensor h = rms_norm(r, norm, 1e-6);
  Tensor out = r + linear(swiglu(linear(h, gate), linear(h, up)), down);
  CompileRequest request;
  request.outputs = {{"out", out, d_out}};
  request.wrt = {x, y, w_out, norm, gate, up, down};
  const auto plan = compile(g, request, {.dtype = DType::bf16});

  EXPECT_EQ(plan->forward.size(), 3);
  EXPECT_EQ(plan->backward.size(), 7);  // the last adds up the norm weight's gradient
  std::ifstream file(std::string(CODA_SOURCE_DIR) + "/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  EXPECT_THAT(readme.str(), testing::HasSubstr(to_string(*plan->forward[1].program)));
}

}  // namespace
}  // namespace coda
