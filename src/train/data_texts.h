// The texts that a run reads: which files, and their documents in pieces of bounded size. A file is
// one document; of .jsonl files each line is one. Knows nothing of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

/// What reading ran into.
struct TextReport {
  std::int64_t files = 0, documents = 0;
  std::int64_t bytes = 0;           ///< of the files
  std::int64_t replaced = 0;        ///< ill-formed parts of UTF-8, now U+FFFD
  std::int64_t replaced_files = 0;  ///< that had any
  std::string first_replaced;       ///< path of the first
};

class Texts {
 public:
  struct File {
    std::filesystem::path path;
    std::uint64_t size = 0;
    std::int64_t modified = 0;  ///< nanoseconds
    bool lines = false;         ///< .jsonl
  };

  /// Files, and all files below folders, in the order given and then by path. Names below folders
  /// that begin with a dot are left out; binary files there, and what is no regular file (pipes,
  /// links to folders or to nothing), are skipped. Throws UsageError
  /// naming the path if one is missing, unreadable or, though named itself, binary; or if all files
  /// together are empty.
  explicit Texts(std::span<const std::string> paths, std::string text_field = "text");

  const std::vector<File>& files() const { return files_; }
  /// In the order of paths.
  const std::vector<std::filesystem::path>& skipped() const { return skipped_; }
  std::uint64_t bytes() const { return bytes_; }

  /// visit(part, ends): the documents in order, each in parts of valid UTF-8 that end at
  /// characters; `ends` with a document's last part. Documents without text are left out.
  /// Throws UsageError naming file and line of a line that is no JSON object with the text field.
  using Visit = std::function<void(std::string_view part, bool ends)>;
  /// Called now and then with the bytes read so far.
  using Progress = std::function<void(std::uint64_t bytes)>;
  TextReport read(const Visit& visit, const Progress& progress = {}) const;

  /// The documents if they are smaller than `most` bytes, else an evenly spread sample of stretches
  /// of 4096 characters.
  std::vector<std::string> sample(std::uint64_t most = std::uint64_t{64} << 20) const;

  /// Tells apart what would be read (paths, sizes, times of change, the text field).
  std::uint64_t key() const;

 private:
  std::string text_field_;
  std::vector<File> files_;
  std::vector<std::filesystem::path> skipped_;
  std::uint64_t bytes_ = 0;
};

}  // namespace coda
