#include "train/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "coda/error.h"
#include "train/random.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A file of this header (its length in front) and this many bytes of data.
std::string image(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data, '\x3f');
}

std::string complaint(const TemporaryFolder& folder, const std::string& bytes) {
  const auto path = folder.write("broken.safetensors", bytes);
  return message_of<UsageError>([&] { SafetensorsFile file(path); });
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::vector<float> a{1.0f, -2.5f, 3.0f, 0.0f, 5.0f, 6.0f};
  const std::vector<std::uint16_t> b{0x3f80, 0xc000};
  const std::vector<StoredTensor> tensors{
      {"a.weight", "F32", {2, 3}, std::as_bytes(std::span(a))},
      {"b", "BF16", {2}, std::as_bytes(std::span(b))},
      {"empty", "F32", {0, 4}, {}},
  };
  const auto path = folder.path() / "t.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}, {"step", "7"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.at("a.weight").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(read_f32(file.at("a.weight"), "f"), a);
  EXPECT_EQ(read_f32(file.at("b"), "f"), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(file.at("empty").bytes.size(), 0u);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THAT(message_of<UsageError>([&] { file.at("c"); }),
              AllOf(HasSubstr("t.safetensors"), HasSubstr("\"c\"")));
  EXPECT_THAT(message_of<UsageError>([&] { read_i64(file.at("b"), "f"); }),
              AllOf(HasSubstr("\"b\""), HasSubstr("I64"), HasSubstr("BF16[2]")));
  // nothing but the file itself is left in the folder
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, ReferenceModelOpens) {
  const ModelFolder model(std::string(CODA_SOURCE_DIR) + "/tests/golden/llama-gqa");
  const auto entry = model.find("model.embed_tokens.weight");
  ASSERT_NE(entry.tensor, nullptr);
  EXPECT_EQ(entry.tensor->shape, (std::vector<std::int64_t>{260, 64}));
  const SafetensorsFile expected(std::string(CODA_SOURCE_DIR) +
                                 "/tests/golden/llama-gqa/case.safetensors");
  EXPECT_EQ(read_i64(expected.at("input_ids"), "f").size(),
            static_cast<std::size_t>(expected.at("labels").size()));
  EXPECT_EQ(read_f64(expected.at("loss"), "f").size(), 1u);
}

TEST(Safetensors, BrokenFilesAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(complaint(folder, ""), HasSubstr("got 0 bytes"));
  EXPECT_THAT(complaint(folder, std::string(20, '\xff')),
              AllOf(HasSubstr("broken.safetensors: header"), HasSubstr("at most 12 bytes")));
  EXPECT_THAT(complaint(folder, image("{\"a\":", 0)), HasSubstr("syntax error at byte"));
  EXPECT_THAT(complaint(folder, image("[1]", 0)), HasSubstr("expected a JSON object, got [1]"));
  EXPECT_THAT(complaint(folder, image("{\"a\":{\"x\":1e999}}", 0)), HasSubstr("out of range"));
  EXPECT_THAT(complaint(folder, image("{\"a\":3}", 0)),
              AllOf(HasSubstr("tensor \"a\""), HasSubstr("data_offsets, got 3")));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(complaint(folder, image("{" + a + "}", 8)), "");  // the others differ in one thing
  EXPECT_THAT(complaint(folder, image("{" + a + "," + a + "}", 8)), HasSubstr("\"a\" twice"));
  EXPECT_THAT(complaint(folder, image("{" + a + "}", 7)),
              AllOf(HasSubstr("within the file's 7 bytes"), HasSubstr("got [0,8]")));
  EXPECT_THAT(complaint(folder, image("{" + a + "}", 9)),
              HasSubstr("cover 9 bytes of data, got 8"));
  EXPECT_THAT(
      complaint(folder, image(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", 8)),
      AllOf(HasSubstr("tensor \"a\": dtype"), HasSubstr("got \"F99\"")));
  EXPECT_THAT(
      complaint(folder, image(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)),
      AllOf(HasSubstr("expected 12 bytes for F32[3], got 8")));
  EXPECT_THAT(
      complaint(folder, image(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
      HasSubstr("shape: expected a list of sizes, got [-2]"));
  EXPECT_THAT(
      complaint(
          folder,
          image(R"({"a":{"dtype":"U8","shape":[2305843009213693952,4,0],"data_offsets":[0,0]}})",
                0)),
      HasSubstr("expected less than 2^63 bytes"));
  EXPECT_THAT(
      complaint(folder,
                image("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
      AllOf(HasSubstr("tensor \"b\""), HasSubstr("overlaps \"a\"")));
  EXPECT_THAT(
      complaint(folder,
                image("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16)),
      AllOf(HasSubstr("tensor \"b\""), HasSubstr("gap")));
  const std::string deep(100000, '[');
  EXPECT_THAT(complaint(folder, image("{\"a\":" + deep, 0)), HasSubstr("levels of nesting"));
}

TEST(Safetensors, PathsThatAreNoFilesAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<UsageError>([&] { SafetensorsFile f(folder.path() / "none"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(message_of<UsageError>([&] { SafetensorsFile f(folder.path()); }),
              HasSubstr("expected a regular file, got a folder"));
  EXPECT_THAT(message_of<UsageError>([&] { SafetensorsFile f("/dev/zero"); }),
              HasSubstr("got a device"));
  EXPECT_THAT(message_of<UsageError>([&] { ModelFolder m(folder.path()); }),
              HasSubstr("model.safetensors.index.json, got neither"));
}

/// Reads every byte that an opened file offers, so that a sanitizer sees a wrong span.
std::uint64_t touch(const std::filesystem::path& path) {
  std::uint64_t sum = 0;
  const SafetensorsFile file(path);
  for (const StoredTensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.bytes) sum += static_cast<std::uint64_t>(b);
    if (tensor.dtype == "F32") read_f32(tensor, "f");
  }
  return sum;
}

TEST(Safetensors, MutatedFilesNeverCrash) {
  const TemporaryFolder folder;
  const std::vector<float> values(24, 1.0f);
  const std::vector<StoredTensor> tensors{
      {"x", "F32", {4, 3}, std::as_bytes(std::span(values)).first(48)},
      {"y", "F32", {12}, std::as_bytes(std::span(values)).subspan(48)},
  };
  write_safetensors(folder.path() / "good", tensors, {{"format", "pt"}});
  const std::string good = read_file(folder.path() / "good");
  int refused = 0;
  for (std::uint64_t round = 0; round < 600; ++round) {
    const CounterRandom random(round, stream_of("mutation"));
    std::string bytes = good;
    std::uint64_t draw = 0;
    for (std::uint64_t n = random.below(draw++, 4) + 1; n > 0; --n) {
      const std::uint64_t kind = random.below(draw++, 4);
      const std::uint64_t at = random.below(draw++, bytes.size());
      if (kind == 0) bytes[at] = static_cast<char>(random.bits(draw++));
      if (kind == 1) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(draw++, 8)));
      if (kind == 2) bytes.insert(at, 1, "0123456789[]{},:\""[random.below(draw++, 17)]);
      if (kind == 3 && bytes.size() > 1) bytes.resize(at + 1);
    }
    const auto path = folder.write("mutant", bytes);
    refused += message_of<UsageError>([&] { touch(path); }).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 300);  // most mutants hit the header; data bytes may be anything
  EXPECT_LT(refused, 600);
}

TEST(ModelFolder, ShardsAreFoundThroughTheIndex) {
  const TemporaryFolder folder;
  const std::vector<float> values{1.0f, 2.0f};
  const StoredTensor a{"a", "F32", {2}, std::as_bytes(std::span(values))};
  StoredTensor b = a;
  b.name = "b";
  write_safetensors(folder.path() / "m-1.safetensors", std::span(&a, 1), {});
  write_safetensors(folder.path() / "m-2.safetensors", std::span(&b, 1), {});
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return message_of<UsageError>([&] { ModelFolder model(folder.path()); });
  };
  EXPECT_EQ(index(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})"), "");
  const ModelFolder model(folder.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read_f32(*model.find("b").tensor, "f"), values);
  EXPECT_THAT(index(R"({"a":"m-2.safetensors"})"),
              AllOf(HasSubstr("m-2.safetensors"), HasSubstr("\"a\"")));
  EXPECT_THAT(index(R"({"a":"m-3.safetensors"})"),
              AllOf(HasSubstr("index.json"), HasSubstr("m-3.safetensors"), HasSubstr("\"a\"")));
  EXPECT_THAT(index(R"({"a":"../m-1.safetensors"})"), HasSubstr("file name in this folder"));
  EXPECT_THAT(index("[]"), HasSubstr("weight_map"));
}

}  // namespace
}  // namespace coda
