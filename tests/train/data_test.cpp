#include "train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "coda/error.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> read(const TemporaryFolder& folder, std::vector<std::string> names) {
  for (std::string& name : names) name = (folder.path() / name).string();
  return read_texts(names);
}

std::string complaint(const TemporaryFolder& folder, const std::vector<std::string>& names) {
  return message_of<UsageError>([&] { read(folder, names); });
}

std::vector<std::int32_t> counting(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(Data, FoldersAreReadInOrderOfPaths) {
  const TemporaryFolder folder;
  folder.write("d/b.txt", "second");
  folder.write("d/a/z.txt", "first");
  folder.write("d/.hidden/x.txt", "\xff");
  folder.write("d/.git", std::string("\0", 1));
  folder.write("d/empty", "");
  folder.write("f.txt", "file");
  EXPECT_EQ(read(folder, {"f.txt", "d"}), (std::vector<std::string>{"file", "first", "second"}));
}

TEST(Data, PathsThatGiveNoTextAreNamed) {
  const TemporaryFolder folder;
  folder.write("latin.txt", "caf\xe9 au lait");
  folder.write("d/zero.bin", std::string("ab\0cd", 5));
  folder.write("empty.txt", "");
  folder.write("e/.keep", "");
  EXPECT_THAT(complaint(folder, {"none.txt"}), AllOf(HasSubstr("none.txt"), HasSubstr("--data")));
  EXPECT_THAT(complaint(folder, {"latin.txt"}),
              AllOf(HasSubstr("latin.txt"), HasSubstr("byte 0xe9 at offset 3")));
  EXPECT_THAT(complaint(folder, {"d"}), AllOf(HasSubstr("zero.bin"), HasSubstr("offset 2")));
  EXPECT_THAT(complaint(folder, {"empty.txt"}), HasSubstr("expected some text"));
  EXPECT_THAT(complaint(folder, {"e"}), HasSubstr("expected some text"));
  EXPECT_THAT(message_of<UsageError>([] { read_texts(std::vector<std::string>{"/dev/zero"}); }),
              HasSubstr("got a device"));
}

TEST(Data, TheEndOfTheStreamIsHeldOut) {
  const auto tokens = counting(1000);
  const TokenSplit split = split_tokens(tokens, 10);
  EXPECT_EQ(split.held_out.size(), 50u);
  EXPECT_EQ(split.held_out.front(), 950);
  EXPECT_EQ(split.training.size(), 950u);
  EXPECT_EQ(split_tokens(tokens, 100).held_out.size(), 101u);  // at least one sequence
  EXPECT_EQ(split_tokens(tokens, 499).training.size(), 500u);
  EXPECT_THAT(
      message_of<UsageError>([&] { split_tokens(tokens, 500); }),
      AllOf(HasSubstr("at least 1002 tokens"), HasSubstr("--seq 500"), HasSubstr("got 1000")));
}

TEST(Data, BatchesDependOnSeedAndStepOnly) {
  const auto tokens = counting(1000);
  const Batch whole = draw_batch(tokens, 16, 3, 7, 8, 0, 8);
  ASSERT_EQ(whole.tokens.size(), 8u * 16u);
  for (std::size_t i = 0; i < whole.tokens.size(); ++i) {
    EXPECT_EQ(whole.labels[i], whole.tokens[i] + 1);  // the next token
  }
  const Batch half = draw_batch(tokens, 16, 3, 7, 8, 4, 4);
  EXPECT_TRUE(std::equal(half.tokens.begin(), half.tokens.end(), whole.tokens.begin() + 64));
  EXPECT_EQ(draw_batch(tokens, 16, 3, 7, 8, 0, 8).tokens, whole.tokens);
  EXPECT_NE(draw_batch(tokens, 16, 3, 8, 8, 0, 8).tokens, whole.tokens);
  EXPECT_NE(draw_batch(tokens, 16, 4, 7, 8, 0, 8).tokens, whole.tokens);
}

TEST(Data, EveryWindowIsDrawnSometime) {
  const auto tokens = counting(20);
  std::set<std::int32_t> starts;
  for (std::int64_t step = 1; step < 200; ++step) {
    starts.insert(draw_batch(tokens, 16, 0, step, 1, 0, 1).tokens[0]);
  }
  EXPECT_EQ(starts, (std::set<std::int32_t>{0, 1, 2, 3}));  // the last label is token 19
}

TEST(Data, ConsecutiveBatchesLabelEveryTokenOnce) {
  const auto tokens = counting(47);
  const std::vector<Batch> batches = consecutive_batches(tokens, 10, 3);
  ASSERT_EQ(batches.size(), 3u);  // 3 windows, 1 window, 6 tokens
  std::vector<std::int32_t> labels;
  for (const Batch& b : batches) {
    EXPECT_EQ(b.tokens.size() % static_cast<std::size_t>(b.seq), 0u);
    labels.insert(labels.end(), b.labels.begin(), b.labels.end());
  }
  EXPECT_EQ(batches[2].seq, 6);
  EXPECT_TRUE(std::equal(labels.begin(), labels.end(), tokens.begin() + 1));
  EXPECT_EQ(labels.size(), 46u);
  EXPECT_TRUE(consecutive_batches(std::span(tokens).first(1), 10, 3).empty());
}

TEST(Data, UnigramLossIsThatOfSmoothedCounts) {
  const std::vector<std::int32_t> training{0, 0, 0, 1};  // 4, 2, 1 of 7 with one added
  const std::vector<std::int32_t> held_out{2, 0, 1, 2};  // the first has nothing before it
  EXPECT_NEAR(unigram_loss(training, held_out, 3),
              -(std::log(4.0 / 7) + std::log(2.0 / 7) + std::log(1.0 / 7)) / 3, 1e-15);
}

TEST(Data, DocumentsAreMarked) {
  const std::vector<std::string> texts{"ab", "c"};
  EXPECT_EQ(tokenize(texts, Tokenizer::bytes()),
            (std::vector<std::int32_t>{256, 'a', 'b', 257, 256, 'c', 257}));
  EXPECT_NE(fingerprint(counting(10)), fingerprint(counting(11)));
}

}  // namespace
}  // namespace coda
