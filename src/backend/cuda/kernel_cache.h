// Compiled kernels and tuning results kept between runs, in one SQLite file shared by processes.
// Losing or damaging the file costs time, never correctness: a row is used only if its checksum
// holds, and every failure of the file ends in "not cached". Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

struct sqlite3;

namespace coda::cuda {

class KernelCache {
 public:
  /// `path`: the file; made with its folder if absent. If it cannot be opened or locked, the cache
  /// keeps rows in memory only, and problem() says why.
  explicit KernelCache(std::string path);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  /// $CODA_CACHE_DIR, else $XDG_CACHE_HOME/coda, else ~/.cache/coda; the file is kernels.sqlite.
  static std::string default_path();

  /// The bytes stored under `key` in table "kernels" or "tuning".
  enum class Table { kernels, tuning };
  std::optional<std::string> find(Table table, const std::string& key);
  void store(Table table, const std::string& key, const std::string& value);

  /// Why rows do not reach the file; empty if they do.
  std::string problem() const;
  const std::string& path() const { return path_; }

 private:
  enum class Outcome { done, absent, failed, damaged };
  bool open();
  void close();
  void give_up(const std::string& why);
  void replace_damaged_file();
  void start_over();
  Outcome read_row(Table table, const std::string& key, std::string& value);
  Outcome write_row(Table table, const std::string& key, const std::string& value);

  mutable std::mutex mutex_;
  std::string path_;
  std::string problem_;
  sqlite3* database_ = nullptr;
  unsigned long long inode_ = 0;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// 128 bits of hash as 32 hexadecimal digits; for keys, not for secrets.
std::string hash_text(const std::string& text);

}  // namespace coda::cuda
