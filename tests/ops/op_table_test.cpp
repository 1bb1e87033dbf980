#include "ops/op_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "ops/opaque.h"

namespace coda {
namespace {

TEST(OpTable, RowsAreInTheOrderOfTheEnumWithDistinctNames) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < op_table().size(); ++i) {
    const OpRow& row = op_table()[i];
    EXPECT_EQ(static_cast<std::size_t>(row.op), i) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.equation.empty()) << row.name;
    EXPECT_EQ(row.inverse.empty(), row.inverse_class.empty()) << row.name;
  }
}

TEST(OpTable, OpaqueRowsNameTheirOperands) {
  const OpaqueRow& forward = row_of(Opaque::attention);
  const OpaqueRow& backward = row_of(forward.backward);
  EXPECT_EQ(forward.backward_inputs.size(), backward.inputs.size());
  EXPECT_EQ(forward.gradient_of.size(), backward.outputs.size());
  EXPECT_EQ(row_of(Opaque::embedding).name, "embedding");
  EXPECT_EQ(row_of(Opaque::embedding_backward).backward, Opaque::none);
}

/// docs/ops.md is generated: CODA_UPDATE_DOCS=1 writes it again.
TEST(OpTable, DocumentationIsUpToDate) {
  const std::string path = std::string(CODA_SOURCE_DIR) + "/docs/ops.md";
  if (std::getenv("CODA_UPDATE_DOCS")) std::ofstream(path) << ops_markdown();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), ops_markdown()) << "Run CODA_UPDATE_DOCS=1 coda_ops_tests.";
}

}  // namespace
}  // namespace coda
