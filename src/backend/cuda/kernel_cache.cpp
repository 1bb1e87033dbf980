#include "backend/cuda/kernel_cache.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/check.h"

namespace coda::cuda {
namespace {

/// FNV-1a with a final mix; `seed` gives independent hashes.
std::uint64_t hash64(const std::string& text, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ull ^ seed;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3ull;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 33);
}

/// Covers key and value, so that a row that landed under another key is not believed either.
std::int64_t checksum(const std::string& key, const std::string& value) {
  return static_cast<std::int64_t>(hash64(value, hash64(key, 1)));
}

const char* name_of(KernelCache::Table table) {
  return table == KernelCache::Table::kernels ? "kernels" : "tuning";
}

/// A prepared statement, finalised on leaving.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& sql) {
    status_ = sqlite3_prepare_v2(database, sql.c_str(), -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  int status() const { return status_; }
  sqlite3_stmt* get() const { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int status_ = 0;
};

bool means_damage(int status) {
  const int primary = status & 0xff;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_SCHEMA ||
         primary == SQLITE_ERROR || primary == SQLITE_MISMATCH;
}

unsigned long long inode_of(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

struct KernelCache::Memory {
  std::map<std::string, std::string> rows[2];
};

std::string hash_text(const std::string& text) {
  return fmt::format("{:016x}{:016x}", hash64(text, 2), hash64(text, 3));
}

KernelCache::KernelCache(std::string path)
    : path_(std::move(path)), memory_(std::make_unique<Memory>()) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  open();
}

KernelCache::~KernelCache() { close(); }

std::string KernelCache::default_path() {
  const auto folder = [](const char* variable, const char* below) -> std::string {
    const char* value = std::getenv(variable);
    return value && *value ? std::string(value) + below : std::string();
  };
  std::string path = folder("CODA_CACHE_DIR", "");
  if (path.empty()) path = folder("XDG_CACHE_HOME", "/coda");
  if (path.empty()) path = folder("HOME", "/.cache/coda");
  return (path.empty() ? std::string("/tmp/coda-cache") : path) + "/kernels.sqlite";
}

std::string KernelCache::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void KernelCache::close() {
  sqlite3_close(database_);
  database_ = nullptr;
}

void KernelCache::give_up(const std::string& why) {
  close();
  problem_ = fmt::format("{}: {}; compiled kernels are kept for this process only", path_, why);
}

/// Opens the file and makes the tables. A damaged file is put aside once and a new one made.
bool KernelCache::open() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    close();
    int status = sqlite3_open_v2(path_.c_str(), &database_,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
                                 nullptr);
    if (status == SQLITE_OK) {
      constexpr int kBusyMilliseconds = 10000;
      sqlite3_busy_timeout(database_, kBusyMilliseconds);
      // The rollback journal: write-ahead logs need shared memory, which network homes lack.
      status = sqlite3_exec(database_, "PRAGMA journal_mode=DELETE", nullptr, nullptr, nullptr);
    }
    if (status == SQLITE_OK && sqlite3_db_readonly(database_, "main") != 1) {
      status = sqlite3_exec(
          database_,
          "CREATE TABLE IF NOT EXISTS kernels(key TEXT PRIMARY KEY, value BLOB, checksum INTEGER);"
          "CREATE TABLE IF NOT EXISTS tuning(key TEXT PRIMARY KEY, value BLOB, checksum INTEGER);",
          nullptr, nullptr, nullptr);
      // A folder that takes no journal: reading still works.
      if (status == SQLITE_READONLY || status == SQLITE_CANTOPEN) status = SQLITE_OK;
    }
    if (status == SQLITE_OK) {
      inode_ = inode_of(path_);
      return true;
    }
    if (!means_damage(status) || attempt == 1) {
      give_up(sqlite3_errstr(status));
      return false;
    }
    replace_damaged_file();
  }
  return false;
}

/// Puts the damaged file away, unless another process has already replaced it.
void KernelCache::replace_damaged_file() {
  const auto seen = inode_;
  close();
  if (seen != 0 && inode_of(path_) != seen) return;
  std::error_code ignored;
  std::filesystem::remove(path_ + "-journal", ignored);
  std::filesystem::remove(path_, ignored);
}

KernelCache::Outcome KernelCache::read_row(Table table, const std::string& key,
                                           std::string& value) {
  Statement query(database_,
                  fmt::format("SELECT value, checksum FROM {} WHERE key = ?", name_of(table)));
  if (query.status() != SQLITE_OK) {
    return means_damage(query.status()) ? Outcome::damaged : Outcome::failed;
  }
  sqlite3_bind_text(query.get(), 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
  const int status = sqlite3_step(query.get());
  if (status == SQLITE_DONE) return Outcome::absent;
  if (status != SQLITE_ROW) return means_damage(status) ? Outcome::damaged : Outcome::failed;
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(query.get(), 0));
  value.assign(bytes ? bytes : "", static_cast<std::size_t>(sqlite3_column_bytes(query.get(), 0)));
  return sqlite3_column_int64(query.get(), 1) == checksum(key, value) ? Outcome::done
                                                                      : Outcome::absent;
}

KernelCache::Outcome KernelCache::write_row(Table table, const std::string& key,
                                            const std::string& value) {
  Statement insert(database_,
                   fmt::format("INSERT OR REPLACE INTO {} VALUES (?, ?, ?)", name_of(table)));
  if (insert.status() != SQLITE_OK) {
    return means_damage(insert.status()) ? Outcome::damaged : Outcome::failed;
  }
  sqlite3_bind_text(insert.get(), 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
  sqlite3_bind_blob64(insert.get(), 2, value.data(), value.size(), SQLITE_STATIC);
  sqlite3_bind_int64(insert.get(), 3, checksum(key, value));
  const int status = sqlite3_step(insert.get());
  if (status == SQLITE_DONE) return Outcome::done;
  if (status == SQLITE_READONLY && inode_of(path_) != inode_) return Outcome::damaged;
  return means_damage(status) ? Outcome::damaged : Outcome::failed;
}

/// After damage: a new file with every row that this process has seen.
void KernelCache::start_over() {
  replace_damaged_file();
  if (!open()) return;
  for (const auto table : {Table::kernels, Table::tuning}) {
    for (const auto& [key, value] : memory_->rows[static_cast<int>(table)]) {
      write_row(table, key, value);
    }
  }
}

std::optional<std::string> KernelCache::find(Table table, const std::string& key) {
  const std::lock_guard lock(mutex_);
  auto& rows = memory_->rows[static_cast<int>(table)];
  if (const auto held = rows.find(key); held != rows.end()) return held->second;
  if (!database_) return std::nullopt;
  std::string value;
  const Outcome outcome = read_row(table, key, value);
  if (outcome == Outcome::damaged) start_over();
  if (outcome != Outcome::done) return std::nullopt;
  rows[key] = value;
  return value;
}

void KernelCache::store(Table table, const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  memory_->rows[static_cast<int>(table)][key] = value;
  if (!database_) return;
  if (inode_of(path_) != inode_) open();  // the file vanished or was replaced: follow it
  if (!database_) return;
  if (write_row(table, key, value) == Outcome::damaged) start_over();
}

}  // namespace coda::cuda
