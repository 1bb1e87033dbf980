// Which column blocks of a merged accumulator share an epilogue.
#include "ir/sections.h"

#include <gtest/gtest.h>

#include "coda/program_builder.h"

namespace coda {
namespace {

/// Names of the stores in a section, in order.
std::vector<std::string> stores(const Program& program, const Section& section) {
  std::vector<std::string> names;
  for (const std::int32_t i : section.values) {
    const Value& value = program.values[static_cast<std::size_t>(i)];
    if (value.op == Op::store_tile || value.op == Op::store_partial) {
      names.push_back(program.operands[static_cast<std::size_t>(value.operand)].name);
    }
  }
  return names;
}

using Names = std::vector<std::string>;
using Offsets = std::vector<std::int64_t>;

TEST(Sections, UnlinkedBlocksRunOnTheirOwn) {
  ProgramBuilder b("qkv");
  b.gemm_nt("x", 8, {"w"}, {128}, DType::f32);
  ColVec r = b.load_col("r", DType::f32);
  b.store_tile("q", cols(b.acc(), 0, 64) * r, DType::f32);
  b.store_tile("v", cols(b.acc(), 64, 128) * r, DType::f32);
  const Program program = b.build();
  const std::vector<Section> sections = sections_of(program);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].acc_offsets, Offsets{0});
  EXPECT_EQ(sections[1].acc_offsets, Offsets{64});
  EXPECT_EQ(sections[0].width, 64);
  EXPECT_EQ(stores(program, sections[0]), Names{"q"});
  EXPECT_EQ(stores(program, sections[1]), Names{"v"});
  const std::vector<std::int32_t> prologue = prologue_of(program);
  ASSERT_EQ(prologue.size(), 1u) << "the shared r";
  EXPECT_EQ(program.values[static_cast<std::size_t>(prologue[0])].op, Op::load_col);
}

TEST(Sections, LinkedBlocksShareOne) {
  ProgramBuilder b("swiglu");
  b.gemm_nt("x", 8, {"g", "u"}, {48, 48}, DType::f32);
  Tile gate = cols(b.acc(), 0, 48), up = cols(b.acc(), 48, 96);
  b.store_tile("z_gate", gate, DType::f32);
  b.store_tile("z_up", up, DType::f32);
  b.store_tile("y", silu(gate) * up, DType::f32);
  const Program program = b.build();
  const std::vector<Section> sections = sections_of(program);
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].acc_offsets, (Offsets{0, 48}));
  EXPECT_EQ(sections[0].width, 48);
  EXPECT_EQ(stores(program, sections[0]), (Names{"z_gate", "z_up", "y"}));
}

TEST(Sections, TheWholeAccumulatorIsABlockAndInterleavedPairsHaveHalfItsWidth) {
  ProgramBuilder b("swiglu");
  auto [gate, up] = split(b.acc(), Pairs::interleaved());
  b.store_tile("y", gate * up, DType::f32);
  const Program program = instantiate(b.build(), 96);
  const std::vector<Section> sections = sections_of(program);
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].acc_offsets, Offsets{0});
  EXPECT_EQ(sections[0].width, 96);
}

TEST(Sections, TilesWithoutAccumulatorAreASectionWithoutBlocks) {
  ProgramBuilder b("with_row_work");
  b.gemm_nt("x", 8, {"w"}, {64}, DType::f32);
  b.store_tile("y", b.acc(), DType::f32);
  b.store_tile("s", silu(b.load_tile("z", DType::f32, Dim::number(32))), DType::f32);
  const Program program = b.build();
  const std::vector<Section> sections = sections_of(program);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_TRUE(sections[1].acc_offsets.empty());
  EXPECT_EQ(sections[1].width, 32);
}

}  // namespace
}  // namespace coda
