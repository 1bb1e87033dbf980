#include "train/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "coda/error.h"
#include "train/file.h"
#include "train/temporary_folder.h"
#include "train/tokenizer_json.h"

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

/// A byte-level tokenizer.json of a few merges; each test changes a field.
nlohmann::ordered_json small_tokenizer() {
  nlohmann::ordered_json vocab, merges;
  int id = 0;
  for (const std::string& letter : byte_letters()) vocab[letter] = id++;
  for (const char* both : {"t h", "th e", "\u0120 the"}) {
    std::string piece = both;
    piece.erase(piece.find(' '), 1);
    vocab[piece] = id++;
    merges.push_back(both);
  }
  const nlohmann::ordered_json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return {{"added_tokens",
           {{{"id", id}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", level},
          {"post_processor", nullptr},
          {"decoder", level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

TEST(TokenizerJson, MergesWordsAndFindsAddedTokens) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", small_tokenizer().dump());
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.encode("the the<end>x"), (std::vector<std::int32_t>{257, 258, 259, 'x'}));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{257, 258, 259, 'x'}), "the thex");
  EXPECT_EQ(tokenizer.encode("\xff"), tokenizer.encode("\ufffd"));
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.bos(), -1);
  EXPECT_EQ(tokenizer.eos(), 259);
}

TEST(TokenizerJson, FilesAreKeptByteForByte) {
  const TemporaryFolder from, to;
  const std::string odd = "\n" + small_tokenizer().dump(3) + "\n\n";
  from.write("tokenizer.json", odd);
  from.write("special_tokens_map.json", "{ }");
  const Tokenizer tokenizer = Tokenizer::load(from.path());
  tokenizer.save(to.path());
  EXPECT_EQ(read_file(to.path() / "tokenizer.json"), odd);
  EXPECT_EQ(read_file(to.path() / "special_tokens_map.json"), "{ }");
  EXPECT_EQ(Tokenizer::load(to.path()).fingerprint(), tokenizer.fingerprint());
}

TEST(TokenizerJson, WhatCannotBeFollowedIsNamed) {
  const auto complaint = [](auto change) {
    const TemporaryFolder folder;
    auto json = small_tokenizer();
    change(json);
    folder.write("tokenizer.json", json.dump());
    return message_of<UsageError>([&] { Tokenizer::load(folder.path()); });
  };
  using Json = nlohmann::ordered_json;
  EXPECT_EQ(complaint([](Json&) {}), "");
  EXPECT_THAT(complaint([](Json& j) { j["model"]["type"] = "Unigram"; }),
              HasSubstr("tokenizer.json: model.type: expected BPE, got \"Unigram\""));
  EXPECT_THAT(complaint([](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(complaint([](Json& j) { j["model"]["merges"][1] = "th z z"; }),
              HasSubstr("model.merges[1]: expected two pieces"));
  EXPECT_THAT(complaint([](Json& j) { j["model"]["merges"][0] = "t q"; }),
              HasSubstr("model.merges[0]: expected pieces of model.vocab, got \"tq\""));
  EXPECT_THAT(complaint([](Json& j) { j["model"]["vocab"]["t"] = -1; }),
              HasSubstr("model.vocab.t: expected an id, got -1"));
  EXPECT_THAT(complaint([](Json& j) { j["model"]["vocab"]["t"] = 2000000000; }),
              HasSubstr("expected an id below"));
  EXPECT_THAT(complaint([](Json& j) { j["added_tokens"][0]["content"] = "the"; }),
              HasSubstr("added_tokens[0].id: expected the id in model.vocab, 257, got 259"));
  EXPECT_THAT(complaint([](Json& j) {
                j["normalizer"] = {{"type", "Lowercase"}};
              }),
              HasSubstr("normalizer.type: expected NFC"));
  EXPECT_THAT(complaint([](Json& j) {
                j["pre_tokenizer"] = {{"type", "Sequence"},
                                      {"pretokenizers", {{{"type", "BertPreTokenizer"}}}}};
              }),
              HasSubstr("pre_tokenizer.pretokenizers[0].type: expected ByteLevel"));
  EXPECT_THAT(complaint([](Json& j) { j["decoder"]["type"] = "WordPiece"; }),
              HasSubstr("decoder.type: expected ByteLevel"));
  EXPECT_THAT(complaint([](Json& j) {
                j["post_processor"] = {{"type", "Other"}};
              }),
              HasSubstr("post_processor.type"));
  EXPECT_THAT(complaint([](Json& j) { j = {{"a", 1}}; }), HasSubstr("model: expected an object"));
}

TEST(Regex, WhatTheTwoSyntaxesReadDifferentlyIsRefused) {
  const auto complaint = [](std::string_view pattern) {
    return message_of<UsageError>([&] { Regex regex(pattern, "here"); });
  };
  EXPECT_EQ(complaint(R"((?i:'s)|[^\r\n\p{L}]?+\p{N}{1,3}|\s+(?!\S)|\s+)"), "");
  EXPECT_THAT(complaint("(a"), HasSubstr("here: expected a regular expression"));
  for (const char* pattern : {"^a", "a$", "(?<=a)b", "a{1,2}+", "[a&&b]", "[[:alpha:]]", R"(\bx)",
                              R"([\S])", R"([\P{L}])", R"(\h)", "(?<n>a)", "a{", "[a"}) {
    EXPECT_THAT(complaint(pattern), HasSubstr("here: expected a pattern that coda can read"))
        << pattern;
  }
}

TEST(Regex, WhiteSpaceIsThatOfOniguruma) {
  const Regex space("\\s", "here");
  EXPECT_TRUE(space.find("a\u3000", 0).found());
  EXPECT_FALSE(space.find("a\u180e", 0).found());  // a space until Unicode 6.3
  EXPECT_EQ(Regex(escaped_pattern("a.b [x]"), "here").find("a.b [x]", 0).end, 7u);
}

TEST(Tokenizer, CutsChangeNoIds) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", small_tokenizer().dump());
  const Tokenizer tokenizers[] = {Tokenizer::bytes(), Tokenizer::train(corpus(), 400),
                                  Tokenizer::load(folder.path())};
  std::string spaces, nothing(20000, 't');
  while (spaces.size() < 20000) spaces += "the  end   ";
  for (const Tokenizer& tokenizer : tokenizers) {
    for (const std::string& text : {corpus()[0], spaces, nothing}) {
      const std::size_t cut = tokenizer.find_cut(text);
      ASSERT_GT(cut, 4096u);
      EXPECT_LE(cut, text.size() - 4096);
      auto ids = tokenizer.encode(text.substr(0, cut));
      const auto rest = tokenizer.encode(text.substr(cut), true);
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_EQ(ids, tokenizer.encode(text));
    }
    EXPECT_EQ(tokenizer.find_cut("too short"), 0u);
  }
}

TEST(Utf8, IllFormedPartsAreReplaced) {
  const auto mended = [](std::string_view text) {
    std::string out;
    const std::int64_t count = append_valid_utf8(text, out);
    return std::pair(out, count);
  };
  EXPECT_EQ(mended("a\u00e9"), std::pair(std::string("a\u00e9"), std::int64_t{0}));
  EXPECT_EQ(mended("a\xff\xfe"), std::pair(std::string("a\ufffd\ufffd"), std::int64_t{2}));
  // The longest beginning of a character counts once.
  EXPECT_EQ(mended("\xf0\x9f\x98z"), std::pair(std::string("\ufffdz"), std::int64_t{1}));
  EXPECT_EQ(mended("\xed\xa0\x80"), std::pair(std::string("\ufffd\ufffd\ufffd"), std::int64_t{3}));
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
