// The candidate table, the split of tiles and the heuristic: arithmetic, no GPU.
#include <gtest/gtest.h>

#include <set>

#include "backend/cuda/bench_gemm.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/gemm_config.h"
#include "backend/cuda/gpc_map.h"
#include "backend/cuda/info.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

TEST(CudaConfig, CandidatesHaveDistinctNamesAndFitSharedMemory) {
  std::set<std::string> names;
  for (const auto& config : gemm_candidates()) {
    EXPECT_TRUE(names.insert(config.name).second) << config.name;
    EXPECT_LE(config.shared_bytes(), 232448u) << config.name;
    EXPECT_EQ(&gemm_candidate(config.name), &config);
  }
  EXPECT_THROW(gemm_candidate("nonsense"), UsageError);
}

TEST(CudaConfig, EveryTileIsComputedOnce) {
  for (const std::int64_t tiles : {1, 2, 5, 64, 65, 66, 67, 131, 132, 133, 200, 704, 5000}) {
    for (const std::int64_t k_blocks : {1, 2, 3, 17, 256}) {
      for (const int workers : {1, 66, 132}) {
        for (const bool split_tail : {false, true}) {
          const auto split = split_tiles(tiles, k_blocks, workers, split_tail);
          EXPECT_EQ(split.whole_tiles + split.split_tiles, tiles);
          EXPECT_GE(split.workers, 1);
          EXPECT_LE(split.workers, workers);
          if (split.split_tiles == 0) continue;
          // device/schedule.cuh: ticket t takes k-blocks [begin(t), begin(t + 1)) of the split
          // ones.
          const auto begin = [&](std::int64_t ticket) {
            return ticket * split.split_tiles * k_blocks / split.split_workers;
          };
          EXPECT_EQ(begin(split.split_workers), split.split_tiles * k_blocks);
          EXPECT_LE(split.split_workers, split.workers);
          EXPECT_LT(split.split_tiles, split.split_workers);
          for (int ticket = 0; ticket < split.split_workers; ++ticket) {
            // Less than a tile, so that at most one piece is owned; and never nothing: an owner
            // waits for everyone up to the end of its tile.
            EXPECT_LE(begin(ticket + 1) - begin(ticket), k_blocks);
            EXPECT_GE(begin(ticket + 1) - begin(ticket), 1);
          }
        }
      }
    }
  }
}

TEST(CudaConfig, TheHeuristicPicksForAnyShape) {
  for (const std::int64_t m : {1, 7, 129, 4095, 50257}) {
    for (const std::int64_t n : {1, 8, 1000, 50257}) {
      for (const std::int64_t k : {0, 1, 64, 16384}) {
        GemmShape shape;
        shape.m = m;
        shape.n = n;
        shape.k = k;
        EXPECT_GT(predict_seconds(shape, choose_config(shape, 132), 132), 0);
      }
    }
  }
}

TEST(CudaConfig, GpcGroupsFollowMeetings) {
  const auto map = join_sms(6, {{0, 1}, {2, 3}, {3, 4}}, 16);
  ASSERT_EQ(map.group_sms, (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(map.group_of_sm, (std::vector<int>{1, 1, 0, 0, 0, 2}));
  // More groups than the kernel has counters for share the last one.
  const auto folded = join_sms(6, {}, 4);
  EXPECT_EQ(folded.group_sms, (std::vector<int>{1, 1, 1, 3}));
}

TEST(CudaConfig, ShapesParseAndPrint) {
  for (const char* text :
       {"NT 16384 2048 2048", "TN 1 7 50257 bf16 f32 add", "NN 8 8 8 f16 f16", "TT 3 4 5"}) {
    EXPECT_EQ(to_text(parse_gemm_shape(text)), text);
  }
  for (const char* text : {"", "XX 1 1 1", "NT 1 1", "NT 0 1 1", "NT 1 1 1 f13"}) {
    EXPECT_THROW(parse_gemm_shape(text), UsageError) << text;
  }
}

TEST(CudaConfig, InfoSaysWhatIsThereOrWhyNot) {
  const std::string text = info();
  EXPECT_EQ(text.rfind("cuda: ", 0), 0u) << text;
  EXPECT_NE(text.find("\ncuda compiler: "), std::string::npos) << text;
  if (!why_no_gpu().empty()) {
    EXPECT_NE(text.find("not usable: " + why_no_gpu()), std::string::npos);
    EXPECT_THROW(driver(), BackendError);
  }
}

}  // namespace
}  // namespace coda::cuda
