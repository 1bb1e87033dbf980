#include "train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "coda/error.h"
#include "train/file.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Texts open(const TemporaryFolder& folder, std::vector<std::string> names,
           const std::string& text_field = "text") {
  for (std::string& name : names) name = (folder.path() / name).string();
  return Texts(names, text_field);
}

/// The documents as wholes.
std::vector<std::string> documents(const Texts& texts, TextReport* report = nullptr) {
  std::vector<std::string> out;
  bool begins = true;
  const TextReport got = texts.read([&](std::string_view part, bool ends) {
    if (begins) out.emplace_back();
    begins = ends;
    out.back() += part;
  });
  if (report != nullptr) *report = got;
  return out;
}

std::string complaint(const TemporaryFolder& folder, const std::vector<std::string>& names) {
  return message_of<UsageError>([&] { documents(open(folder, names)); });
}

TokenFile tokens_of(const Texts& texts, const Tokenizer& tokenizer, const TemporaryFolder& folder) {
  TextReport report;
  return TokenFile::write(texts, tokenizer, folder.path(), report);
}

std::vector<std::int32_t> counting(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(Texts, FoldersAreReadInOrderOfPaths) {
  const TemporaryFolder folder;
  folder.write("d/b.txt", "second");
  folder.write("d/a/z.txt", "first");
  folder.write("d/.hidden/x.txt", "\xff");
  folder.write("d/.git", std::string("\0", 1));
  folder.write("d/empty", "");
  folder.write("f.txt", "file");
  EXPECT_EQ(documents(open(folder, {"f.txt", "d"})),
            (std::vector<std::string>{"file", "first", "second"}));
}

TEST(Texts, PathsThatGiveNoTextAreNamed) {
  const TemporaryFolder folder;
  folder.write("zero.bin", std::string("ab\0cd", 5));
  folder.write("koi8.txt", "\xd0\xd2\xc9\xd7\xc5\xd4 \xcd\xc9\xd2");
  folder.write("empty.txt", "");
  folder.write("e/.keep", "");
  EXPECT_THAT(complaint(folder, {"none.txt"}), AllOf(HasSubstr("none.txt"), HasSubstr("--data")));
  EXPECT_THAT(complaint(folder, {"zero.bin"}),
              AllOf(HasSubstr("zero.bin"), HasSubstr("byte 0x00 at offset 2")));
  EXPECT_THAT(complaint(folder, {"koi8.txt"}), HasSubstr("byte 0xd0, at offset 0"));
  EXPECT_THAT(complaint(folder, {"empty.txt"}), HasSubstr("expected some text"));
  EXPECT_THAT(complaint(folder, {"e"}), HasSubstr("expected some text"));
  EXPECT_THAT(message_of<UsageError>([] { Texts(std::vector<std::string>{"/dev/zero"}); }),
              HasSubstr("got a device"));
}

TEST(Texts, BinaryFilesInFoldersAreSkippedAndCounted) {
  const TemporaryFolder folder;
  folder.write("d/a.bin", std::string("ab\0cd", 5));
  folder.write("d/b.txt", "text");
  const Texts texts = open(folder, {"d"});
  EXPECT_EQ(documents(texts), std::vector<std::string>{"text"});
  ASSERT_EQ(texts.skipped().size(), 1u);
  EXPECT_EQ(texts.skipped()[0].filename(), "a.bin");
}

TEST(Texts, IllFormedUtf8IsReplacedAndCounted) {
  const TemporaryFolder folder;
  folder.write("latin.txt", "caf\xe9 au lait et un caf\xe9\xe9");
  // A character across two blocks of reading, and one that the end of the file cuts.
  folder.write("long.txt", std::string((256 << 10) - 1, 'x') + "\u00e9 and \xe2\x82");
  TextReport report;
  const auto got = documents(open(folder, {"latin.txt", "long.txt"}), &report);
  EXPECT_EQ(got[0], "caf\ufffd au lait et un caf\ufffd\ufffd");
  EXPECT_EQ(got[1], std::string((256 << 10) - 1, 'x') + "\u00e9 and \ufffd");
  EXPECT_EQ(report.replaced, 4);
  EXPECT_EQ(report.replaced_files, 2);
  EXPECT_THAT(report.first_replaced, HasSubstr("latin.txt"));
  EXPECT_EQ(report.documents, 2);
}

TEST(Texts, LinesOfJsonAreDocuments) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", R"({"text": "one\n", "id": 1})"
                          "\n\n  \r\n"
                          R"({"id": 2, "text": ""})"
                          "\n"
                          R"({"text": "tw\u00f6"})");
  EXPECT_EQ(documents(open(folder, {"a.jsonl"})), (std::vector<std::string>{"one\n", "tw\u00f6"}));
  folder.write("b.jsonl", R"({"body": "x"})");
  EXPECT_EQ(documents(open(folder, {"b.jsonl"}, "body")), std::vector<std::string>{"x"});
  EXPECT_THAT(complaint(folder, {"b.jsonl"}),
              AllOf(HasSubstr("b.jsonl:1: expected a JSON object with a text in \"text\""),
                    HasSubstr("--text-field")));
  folder.write("c.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
  EXPECT_THAT(complaint(folder, {"c.jsonl"}), HasSubstr("c.jsonl:2: "));
  folder.write("c.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\n");
  EXPECT_THAT(complaint(folder, {"c.jsonl"}),
              AllOf(HasSubstr("c.jsonl:3: "), HasSubstr("no JSON")));
}

TEST(Texts, SamplesAreBounded) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 300000; ++i) text += std::to_string(i) + " \u00e9 ";
  folder.write("a.txt", text);
  EXPECT_EQ(open(folder, {"a.txt"}).sample(), std::vector<std::string>{text});
  const auto sample = open(folder, {"a.txt"}).sample(100000);
  ASSERT_EQ(sample.size(), 1u);
  EXPECT_LE(sample[0].size(), 110000u);  // stretches are of characters
  EXPECT_GE(sample[0].size(), 60000u);
  EXPECT_EQ(find_invalid_utf8(sample[0]), sample[0].size());
}

/// Words, long lines and white space, so that a cut has something to spoil.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 700000; ++i) {
    text += "the quick fox " + std::to_string(i * 7919);
    text += i % 7 == 0 ? "\n\n  " : i % 1000 == 0 ? std::string(5000, ' ') : std::string(" ");
  }
  return text;
}

TEST(TokenFile, LongTextsHaveTheIdsOfTheWhole) {
  const TemporaryFolder folder;
  const std::vector<std::string> texts{long_text()};
  folder.write("a.txt", texts[0]);
  for (const Tokenizer& tokenizer : {Tokenizer::bytes(), Tokenizer::train(texts, 400)}) {
    const TokenFile file = tokens_of(open(folder, {"a.txt"}), tokenizer, folder);
    std::vector<std::int32_t> expected{tokenizer.bos() | kDocumentBit};
    for (const std::int32_t id : tokenizer.encode(texts[0])) expected.push_back(id);
    expected.push_back(tokenizer.eos());
    EXPECT_TRUE(std::ranges::equal(file.tokens(), expected));
  }
}

TEST(TokenFile, DocumentsAreMarked) {
  const TemporaryFolder folder;
  folder.write("a", "ab");
  folder.write("b", "c");
  const TokenFile file = tokens_of(open(folder, {"a", "b"}), Tokenizer::bytes(), folder);
  const std::vector<std::int32_t> expected{256 | kDocumentBit, 'a', 'b', 257,
                                           256 | kDocumentBit, 'c', 257};
  EXPECT_TRUE(std::ranges::equal(file.tokens(), expected));
}

TEST(TokenFile, KeptOnesAreReadAgain) {
  const TemporaryFolder folder;
  folder.write("a", "some text");
  const Texts texts = open(folder, {"a"});
  const Tokenizer tokenizer = Tokenizer::bytes();
  const auto path = folder.path() / "tokens.bin";
  const std::uint64_t key = TokenFile::key(texts, tokenizer);
  std::string trouble;
  EXPECT_FALSE(TokenFile::open(path, key, trouble));
  EXPECT_EQ(trouble, "");
  TokenFile file = tokens_of(texts, tokenizer, folder);
  file.keep(path);
  const auto again = TokenFile::open(path, key, trouble);
  ASSERT_TRUE(again);
  EXPECT_TRUE(std::ranges::equal(again->tokens(), file.tokens()));
  EXPECT_EQ(again->hash(), file.hash());
  EXPECT_FALSE(TokenFile::open(path, key + 1, trouble));  // of other data
  EXPECT_EQ(trouble, "");
  // Nothing is left beside it.
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"a", "tokens.bin"}));
}

TEST(TokenFile, AnyDamageIsFound) {
  const TemporaryFolder folder;
  folder.write("a", "some text");
  const Texts texts = open(folder, {"a"});
  const Tokenizer tokenizer = Tokenizer::bytes();
  const std::uint64_t key = TokenFile::key(texts, tokenizer);
  tokens_of(texts, tokenizer, folder).keep(folder.path() / "tokens.bin");
  const std::string good = read_file(folder.path() / "tokens.bin");
  const auto is_read = [&](const std::string& bytes) {
    folder.write("other.bin", bytes);
    std::string trouble;
    const bool read = TokenFile::open(folder.path() / "other.bin", key, trouble).has_value();
    EXPECT_EQ(trouble.empty(), read);
    return read;
  };
  EXPECT_TRUE(is_read(good));
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    EXPECT_FALSE(is_read(bad)) << at;
  }
  EXPECT_FALSE(is_read(good.substr(0, good.size() - 4)));
  EXPECT_FALSE(is_read(good.substr(0, 10)));
  EXPECT_FALSE(is_read(good + "more"));
}

TEST(TokenFile, OtherFilesHaveAnotherKey) {
  const TemporaryFolder folder;
  folder.write("a", "some text");
  const std::uint64_t before = open(folder, {"a"}).key();
  EXPECT_EQ(open(folder, {"a"}).key(), before);
  EXPECT_NE(open(folder, {"a"}, "body").key(), before);
  folder.write("a", "some text!");
  EXPECT_NE(open(folder, {"a"}).key(), before);
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

std::vector<Batch> consecutive(std::span<const std::int32_t> tokens, std::int64_t seq,
                               std::int64_t count) {
  std::vector<Batch> batches;
  for_each_consecutive(tokens, seq, count, [&](const Batch& b) { batches.push_back(b); });
  return batches;
}

TEST(Data, ConsecutiveBatchesLabelEveryTokenOnce) {
  const auto tokens = counting(47);
  const std::vector<Batch> batches = consecutive(tokens, 10, 3);
  ASSERT_EQ(batches.size(), 3u);  // 3 windows, 1 window, 6 tokens
  std::vector<std::int32_t> labels;
  for (const Batch& b : batches) {
    EXPECT_EQ(b.tokens.size() % static_cast<std::size_t>(b.seq), 0u);
    labels.insert(labels.end(), b.labels.begin(), b.labels.end());
  }
  EXPECT_EQ(batches[2].seq, 6);
  EXPECT_TRUE(std::equal(labels.begin(), labels.end(), tokens.begin() + 1));
  EXPECT_EQ(labels.size(), 46u);
  EXPECT_TRUE(consecutive(std::span(tokens).first(1), 10, 3).empty());
}

TEST(Data, DocumentsAreCutApart) {
  auto tokens = counting(20);
  for (const std::size_t at : {0, 7, 8, 10}) tokens[at] |= kDocumentBit;
  const std::vector<Batch> batches = consecutive(tokens, 5, 3);
  ASSERT_EQ(batches.size(), 2u);
  const std::vector<std::int32_t> plain = counting(20);
  EXPECT_TRUE(std::equal(batches[0].tokens.begin(), batches[0].tokens.end(), plain.begin()));
  EXPECT_EQ(batches[0].documents, (std::vector<std::int32_t>{7, 8}));  // 10 begins a sequence
  EXPECT_EQ(batches[0].valid_labels(), 15 - 3);
  EXPECT_EQ(batches[0].labels[6], kIgnoredLabel);
  EXPECT_EQ(batches[0].labels[9], kIgnoredLabel);
  EXPECT_EQ(batches[0].labels[10], 11);
  const Batch drawn = draw_batch(tokens, 19, 0, 1, 1, 0, 1);
  EXPECT_EQ(drawn.documents, (std::vector<std::int32_t>{7, 8, 10}));
}

TEST(Data, UnigramLossIsThatOfSmoothedCounts) {
  const std::vector<std::int32_t> training{0, 0, 0, 1};  // 4, 2, 1 of 7 with one added
  const std::vector<std::int32_t> held_out{2, 0, 1, 2};  // the first has nothing before it
  EXPECT_NEAR(unigram_loss(training, held_out, 3),
              -(std::log(4.0 / 7) + std::log(2.0 / 7) + std::log(1.0 / 7)) / 3, 1e-15);
}

TEST(Data, UnigramLossOfFewTokensTellsNothing) {
  const std::vector<std::int32_t> training(30, 1), held_out{1, 1};
  EXPECT_TRUE(telling_unigram_loss(training, held_out, 3));
  EXPECT_FALSE(telling_unigram_loss(training, held_out, 4));
}

TEST(Data, UnigramLossLeavesOutWhatIsNoLabel) {
  const std::vector<std::int32_t> training{0 | kDocumentBit, 0, 0, 0, 1};
  const std::vector<std::int32_t> held_out{2, 0, 2 | kDocumentBit, 1};
  EXPECT_NEAR(unigram_loss(training, held_out, 3), -(std::log(4.0 / 7) + std::log(2.0 / 7)) / 2,
              1e-15);
}

}  // namespace
}  // namespace coda
