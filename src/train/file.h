// Files: mapped for reading, replaced atomically when written. Knows nothing of formats.
// What the caller named wrongly is a UsageError; what the operating system refuses is a
// BackendError.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

/// A whole file mapped read-only; unmapped on destruction. Move-only.
class MappedFile {
 public:
  /// Throws UsageError if the path is missing, unreadable or not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An exclusive lock on a file, made if it is missing; held until destruction or until the process
/// ends, however it ends. Move-only.
class FileLock {
 public:
  /// Throws UsageError if another process holds it, or if the file cannot be made there.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  int fd_ = -1;
};

/// Makes the folder and those above it. Throws UsageError if there can be none at that path, and
/// BackendError if the system has no room for it.
void make_folder(const std::filesystem::path& folder);

/// Writes the chunks one after another to `path` and flushes them to disk. Throws BackendError.
void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> chunks);

/// rename(2), after which the folder entry is flushed to disk. Throws BackendError.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Replaces `path` as a whole or not at all: writes a neighbour, flushes it, renames it over.
void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> chunks);
void replace_file(const std::filesystem::path& path, std::string_view text);

/// Removes what a killed process that was replacing a file of this folder left there. Nobody else
/// may be writing the folder.
void remove_unfinished(const std::filesystem::path& folder);

/// The file's text. Throws UsageError as MappedFile does.
std::string read_file(const std::filesystem::path& path);

}  // namespace coda
