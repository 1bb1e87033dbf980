#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coda/error.h"
#include "train/file.h"
#include "train/temporary_folder.h"

namespace coda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TrainOptions some_options() {
  TrainOptions o;
  o.data = {"book.txt"};
  o.tokenizer = "bytes";
  return o;
}

std::string complaint(void (*change)(TrainOptions&)) {
  TrainOptions options = some_options();
  change(options);
  return message_of<UsageError>([&] { new_config(options, Tokenizer::bytes()); });
}

TEST(RunFolder, NewModelsHaveTheSizesAsked) {
  TrainOptions options = some_options();
  options.kv_heads = 2;
  const LlamaConfig c = new_config(options, Tokenizer::bytes());
  EXPECT_EQ(c.vocab_size, 258);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.intermediate_size, 704);  // 682, rounded up
  EXPECT_EQ(c.max_position_embeddings, options.seq);
  EXPECT_EQ(c.bos_token_id, 256);
  EXPECT_EQ(complaint([](TrainOptions&) {}), "");
  EXPECT_THAT(complaint([](TrainOptions& o) { o.heads = 5; }),
              AllOf(HasSubstr("--heads"), HasSubstr("--d-model = 256"), HasSubstr("got 5")));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.heads = 256; }), HasSubstr("even quotient"));
  EXPECT_THAT(complaint([](TrainOptions& o) { o.kv_heads = 3; }), HasSubstr("--kv-heads"));
}

TEST(RunFolder, WhatIsCreatedIsRead) {
  const TemporaryFolder folder;
  const auto run = folder.path() / "deep" / "run";
  const TrainOptions options = some_options();
  const LlamaConfig config = new_config(options, Tokenizer::bytes());
  check_new_run(run);
  create_run(run, config, Tokenizer::bytes(), options);
  EXPECT_EQ(load_config(run), config);
  EXPECT_EQ(to_json(load_options(run)), to_json(options));
  EXPECT_FALSE(has_checkpoint(run));
  EXPECT_THAT(message_of<UsageError>([&] { check_new_run(run); }), HasSubstr("--resume"));
}

TEST(RunFolder, PlotsAreRefusedBeforeAnythingIsDone) {
  const TemporaryFolder folder;
  folder.write("file", "");
  std::filesystem::create_directory(folder.path() / "folder.svg");
  const auto complaint = [&](const char* plot, const char* run = "new") {
    return message_of<UsageError>([&] { check_plot(folder.path() / plot, folder.path() / run); });
  };
  EXPECT_EQ(complaint("loss.svg"), "");
  EXPECT_EQ(complaint("new/loss.svg"), "");
  EXPECT_EQ(complaint("new/loss.svg", "new/"), "");
  EXPECT_THAT(complaint("loss.txt"), HasSubstr("a file whose name ends in .svg"));
  EXPECT_THAT(complaint("folder.svg"), HasSubstr("expected a file, got a folder"));
  EXPECT_THAT(complaint("none/loss.svg"), HasSubstr("got no such folder"));
  EXPECT_THAT(complaint("file/loss.svg"), HasSubstr("got no such folder"));
  EXPECT_THAT(message_of<UsageError>([] { check_plot("/proc/loss.svg", ""); }),
              HasSubstr("got one that is not"));
}

TEST(RunFolder, ALinkToNowhereIsNoNewRun) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("nowhere", folder.path() / "run");
  EXPECT_THAT(message_of<UsageError>([&] { check_new_run(folder.path() / "run"); }),
              AllOf(HasSubstr("--out"), HasSubstr("got a link to nowhere")));
}

TEST(RunFolder, FoldersThatAreNotMeantAreRefused) {
  const TemporaryFolder folder;
  folder.write("other/file", "x");
  check_new_run(folder.path() / "new");
  EXPECT_THAT(message_of<UsageError>([&] { check_new_run(folder.path() / "other"); }),
              HasSubstr("other files"));
  EXPECT_THAT(message_of<UsageError>([&] { check_new_run(folder.path() / "other" / "file"); }),
              HasSubstr("got a file"));
  EXPECT_THAT(message_of<UsageError>([&] { lock_run(folder.path()); }), HasSubstr("--resume"));
  EXPECT_THAT(message_of<UsageError>([&] { load_config(folder.path() / "none"); }),
              HasSubstr("got nothing there"));
  EXPECT_THAT(message_of<UsageError>([&] { load_config(folder.path()); }),
              AllOf(HasSubstr("config.json"), HasSubstr("cannot open")));
}

TEST(RunFolder, WhatAKilledProcessLeftIsRemovedOnceTheRunIsLocked) {
  const TemporaryFolder run;
  for (const char* name : {"options.json", "options.json.2497.tmp", "notes.tmp", "notes.x1.tmp"}) {
    run.write(name, "{}");
  }
  const FileLock lock = lock_run(run.path());
  EXPECT_FALSE(std::filesystem::exists(run.path() / "options.json.2497.tmp"));
  for (const char* name : {"options.json", "notes.tmp", "notes.x1.tmp"}) {
    EXPECT_TRUE(std::filesystem::exists(run.path() / name)) << name;
  }
  EXPECT_THROW(lock_run(run.path()), UsageError);  // held, even within one process
}

}  // namespace
}  // namespace coda
