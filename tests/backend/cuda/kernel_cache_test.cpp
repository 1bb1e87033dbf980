// The cache file under everything that happens to files: right rows or none, never wrong ones.
#include "backend/cuda/kernel_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace coda::cuda {
namespace {

using Table = KernelCache::Table;
namespace fs = std::filesystem;

/// What a key's kernel is: big enough to span many pages, different for every key.
std::string kernel_of(int key) {
  std::string bytes(20000 + 37 * key, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((i * 131 + key * 7) >> 3);
  }
  return bytes;
}
std::string name_of(int key) { return "kernel " + std::to_string(key); }

class CudaKernelCache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "coda-cache-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/kernels.sqlite";
  }
  void TearDown() override {
    std::error_code ignored;
    fs::permissions(folder_, fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }

  /// Uses the cache as a run does: what is not there is made and stored. Returns how many rows came
  /// from the file; every row is right or the test fails.
  static int use(const std::string& path, int keys) {
    KernelCache cache(path);
    int found = 0;
    for (int key = 0; key < keys; ++key) {
      const auto row = cache.find(Table::kernels, name_of(key));
      if (row) {
        EXPECT_EQ(*row == kernel_of(key), true) << "a wrong kernel for key " << key;
        ++found;
      } else {
        cache.store(Table::kernels, name_of(key), kernel_of(key));
      }
      const auto again = cache.find(Table::kernels, name_of(key));
      EXPECT_TRUE(again && *again == kernel_of(key)) << "unusable after a store, key " << key;
    }
    return found;
  }

  std::string folder_, path_;
};

TEST_F(CudaKernelCache, KeepsRowsBetweenRunsAndTablesApart) {
  EXPECT_EQ(use(path_, 8), 0);
  EXPECT_EQ(use(path_, 8), 8);
  KernelCache cache(path_);
  EXPECT_EQ(cache.problem(), "");
  cache.store(Table::tuning, name_of(1), "coop");
  EXPECT_EQ(cache.find(Table::tuning, name_of(1)), "coop");
  EXPECT_EQ(cache.find(Table::kernels, name_of(1)), kernel_of(1));
  EXPECT_FALSE(cache.find(Table::tuning, name_of(2)));
}

TEST_F(CudaKernelCache, EightProcessesStartColdTogether) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      use(path_, 12);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(use(path_, 12), 12);
}

TEST_F(CudaKernelCache, KilledInTheMiddle) {
  for (int round = 0; round < 6; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int key = 0;; ++key) {
        KernelCache(path_).store(Table::kernels, name_of(key % 12), kernel_of(key % 12));
      }
    }
    usleep(4000 + 9000 * round);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    use(path_, 12);
    EXPECT_EQ(use(path_, 12), 12);
  }
}

TEST_F(CudaKernelCache, Truncated) {
  use(path_, 12);
  const auto size = fs::file_size(path_);
  for (const auto left : {std::uintmax_t{0}, std::uintmax_t{1}, std::uintmax_t{100},
                          std::uintmax_t{4096}, size / 2, size - 1}) {
    fs::resize_file(path_, left);
    use(path_, 12);
    EXPECT_EQ(use(path_, 12), 12) << "left " << left;
  }
}

TEST_F(CudaKernelCache, BitsFlipped) {
  for (int seed = 0; seed < 40; ++seed) {
    use(path_, 6);
    {
      std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
      const auto size = fs::file_size(path_);
      for (int flip = 0; flip < 3; ++flip) {
        const auto at = (seed * 2654435761u + flip * 40503u * (seed + 7)) % size;
        file.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(file.get() ^ (1 << (seed + flip) % 8));
        file.seekp(static_cast<std::streamoff>(at));
        file.put(byte);
      }
    }
    use(path_, 6);
    use(path_, 6);
  }
  EXPECT_EQ(use(path_, 6), 6);
}

TEST_F(CudaKernelCache, NotADatabase) {
  std::ofstream(path_) << std::string(9000, 'x');
  EXPECT_EQ(use(path_, 6), 0);
  EXPECT_EQ(use(path_, 6), 6);
}

TEST_F(CudaKernelCache, VanishedWhileOpen) {
  KernelCache cache(path_);
  cache.store(Table::kernels, name_of(0), kernel_of(0));
  fs::remove(path_);
  cache.store(Table::kernels, name_of(1), kernel_of(1));
  EXPECT_EQ(cache.find(Table::kernels, name_of(0)), kernel_of(0));
  EXPECT_EQ(cache.find(Table::kernels, name_of(1)), kernel_of(1));
  EXPECT_EQ(KernelCache(path_).find(Table::kernels, name_of(1)), kernel_of(1));
}

TEST_F(CudaKernelCache, ReadOnlyFileAndFolder) {
  use(path_, 6);
  fs::permissions(path_, fs::perms::owner_read);
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  // The superuser writes anyway; a child without that right shows what others see.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0) {
      fs::permissions(path_,
                      fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
      fs::permissions(folder_, static_cast<fs::perms>(0555));
      if (setuid(65534) != 0) _exit(2);
    }
    EXPECT_EQ(use(path_, 6), 6);
    EXPECT_EQ(use(path_, 9), 6);  // three more, kept in memory
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(use(path_, 6), 6);
}

TEST_F(CudaKernelCache, FolderThatCannotBeMade) {
  std::ofstream(folder_ + "/file") << "in the way";
  const std::string path = folder_ + "/file/below/kernels.sqlite";
  EXPECT_EQ(use(path, 6), 0);
  EXPECT_NE(KernelCache(path).problem(), "");
}

// A full disk: this process may not grow files past 64 KiB.
TEST_F(CudaKernelCache, DiskFull) {
  use(path_, 2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 << 10, 64 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    use(path_, 12);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_GE(use(path_, 12), 2);
  EXPECT_EQ(use(path_, 12), 12);
}

// A home where file locks fail, as on some network file systems: SQLite's own files, but every lock
// is an error.
int refuse_lock(sqlite3_file*, int) { return SQLITE_IOERR_LOCK; }

sqlite3_io_methods methods_without_locks;

int open_without_locks(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags,
                       int* out_flags) {
  auto* real = static_cast<sqlite3_vfs*>(vfs->pAppData);
  const int status = real->xOpen(real, name, file, flags, out_flags);
  if (status == SQLITE_OK) {
    methods_without_locks = *file->pMethods;
    methods_without_locks.xLock = refuse_lock;
    file->pMethods = &methods_without_locks;
  }
  return status;
}

TEST_F(CudaKernelCache, LocksFail) {
  use(path_, 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sqlite3_vfs* real = sqlite3_vfs_find(nullptr);
    sqlite3_vfs shim = *real;
    shim.zName = "without-locks";
    shim.pAppData = real;
    shim.xOpen = open_without_locks;
    sqlite3_vfs_register(&shim, 1);
    EXPECT_EQ(use(path_, 6), 0);
    EXPECT_NE(KernelCache(path_).problem(), "");
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(use(path_, 3), 3);  // the file itself came to no harm
}

}  // namespace
}  // namespace coda::cuda
