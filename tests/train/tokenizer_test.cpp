#include "train/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coda/error.h"
#include "train/file.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::HasSubstr;

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> kTexts = [] {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "the quick brown fox jumps over the lazy dog, and then the dog sleeps\n";
      text += "  number " + std::to_string(i * 7919) + " is neither here nor there\n\n";
    }
    return std::vector<std::string>{text};
  }();
  return kTexts;
}

const char* kTexts[] = {
    "the dog",
    "",
    "\n",
    " leading, double  and trailing spaces  ",
    "tabs\tand\r\nline ends\n\n\n",
    "never seen: \u00e9\u4e16\u754c \U0001f600 <s> </s> <unk> <0x41>",
    "12345 67",
};

TEST(Tokenizer, EveryTextComesBackExactly) {
  const Tokenizer pieces = Tokenizer::train(corpus(), 512);
  const Tokenizer bytes = Tokenizer::bytes();
  for (const char* text : kTexts) {
    EXPECT_EQ(pieces.decode(pieces.encode(text)), text);
    EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
  }
}

TEST(Tokenizer, IdsAreInTheVocabularyAndNeverControls) {
  const Tokenizer tokenizer = Tokenizer::train(corpus(), 512);
  EXPECT_LE(tokenizer.vocab_size(), 512);
  EXPECT_GT(tokenizer.vocab_size(), 320);
  for (const char* text : kTexts) {
    for (const std::int32_t id : tokenizer.encode(text)) {
      EXPECT_GT(id, 2);  // unknown, begin, end
      EXPECT_LT(id, tokenizer.vocab_size());
    }
  }
  EXPECT_LT(tokenizer.encode(corpus()[0]).size(), corpus()[0].size() / 2);
}

TEST(Tokenizer, TrainingTwiceGivesTheSame) {
  const TemporaryFolder a, b;
  Tokenizer::train(corpus(), 400).save(a.path());
  Tokenizer::train(corpus(), 400).save(b.path());
  for (const char* name : {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_file(a.path() / name), read_file(b.path() / name)) << name;
  }
}

TEST(Tokenizer, SavedOnesLoadAgain) {
  const TemporaryFolder a, b;
  const Tokenizer pieces = Tokenizer::train(corpus(), 512);
  pieces.save(a.path());
  Tokenizer::bytes().save(b.path());
  const Tokenizer again = Tokenizer::load(a.path());
  EXPECT_EQ(again.encode(kTexts[5]), pieces.encode(kTexts[5]));
  EXPECT_EQ(again.vocab_size(), pieces.vocab_size());
  EXPECT_EQ(again.bos(), 1);
  EXPECT_EQ(again.eos(), 2);
  EXPECT_TRUE(Tokenizer::load(b.path()).is_bytes());
  EXPECT_EQ(Tokenizer::load(b.path()).vocab_size(), 258);
}

TEST(Tokenizer, ManyRareCharactersFallBackToBytes) {
  std::string text = corpus()[0];
  for (int code = 0x4e00; code < 0x4e00 + 2000; ++code) {  // more characters than pieces
    text += static_cast<char>(0xe0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
  const std::vector<std::string> texts{text};
  const Tokenizer tokenizer = Tokenizer::train(texts, 400);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(Tokenizer, WrongInputIsNamed) {
  EXPECT_THAT(message_of<UsageError>([] { Tokenizer::train(corpus(), 100); }),
              HasSubstr("--vocab: expected 320"));
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<UsageError>([&] { Tokenizer::load(folder.path()); }),
              HasSubstr("tokenizer.model"));
  folder.write("tokenizer.model", "not a model");
  EXPECT_THAT(message_of<UsageError>([&] { Tokenizer::load(folder.path()); }),
              HasSubstr("expected a SentencePiece model"));
  folder.write("tokenizer.model", "");
  EXPECT_THAT(message_of<UsageError>([&] { Tokenizer::load(folder.path()); }),
              HasSubstr("expected a SentencePiece model"));
}

TEST(Utf8, InvalidBytesAreFound) {
  EXPECT_EQ(find_invalid_utf8("abc\u00e9\U0001f600"),
            std::string_view("abc\u00e9\U0001f600").size());
  EXPECT_EQ(find_invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(find_invalid_utf8("a\xc3"), 1u);             // cut short
  EXPECT_EQ(find_invalid_utf8("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
}

TEST(Utf8, AnIncompleteCharacterIsHeldBack) {
  EXPECT_EQ(complete_utf8("ab"), 2u);
  EXPECT_EQ(complete_utf8("ab\xf0\x9f\x98"), 2u);
  EXPECT_EQ(complete_utf8("ab\xf0\x9f\x98\x80"), 6u);
  EXPECT_EQ(complete_utf8("\xc3"), 0u);
  EXPECT_EQ(complete_utf8("\x80\x80\x80\x80"), 4u);  // never completes: let it through
}

}  // namespace
}  // namespace coda
