#include "train/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace coda {
namespace {

/// Closes on scope exit; an explicit close() reports what a delayed write ran into.
struct Descriptor {
  int fd;
  explicit Descriptor(int fd) : fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string reason() { return std::strerror(errno); }

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_error<BackendError>("{}: cannot write: {}.", path.string(), reason());
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void flush_folder(const std::filesystem::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const Descriptor d(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (d.fd < 0) throw_error<BackendError>("{}: cannot open the folder: {}.", name, reason());
  // Some file systems cannot flush a folder; they order the rename themselves.
  if (::fsync(d.fd) != 0 && errno != EINVAL && errno != EROFS) {
    throw_error<BackendError>("{}: cannot flush the folder: {}.", name, reason());
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe that nobody writes must not hang.
  const Descriptor d(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (d.fd < 0) throw_error<UsageError>("{}: cannot open: {}.", path.string(), reason());
  struct stat status {};
  if (::fstat(d.fd, &status) != 0) {
    throw_error<BackendError>("{}: cannot stat: {}.", path.string(), reason());
  }
  if (!S_ISREG(status.st_mode)) {
    throw_error<UsageError>("{}: expected a regular file, got {}.", path.string(),
                            S_ISDIR(status.st_mode) ? "a folder" : "a device or a pipe");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty range cannot be mapped
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, d.fd, 0);
  if (address == MAP_FAILED) {
    throw_error<BackendError>("{}: cannot map {} bytes: {}.", path.string(), size_, reason());
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileLock::FileLock(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (fd_ < 0) {
    throw_error<UsageError>(
        "{}: expected a folder that this user may write into, got: {}. Choose another folder, or "
        "change its permissions.",
        path.parent_path().string(), reason());
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const std::string text = fmt::format("{}\n", ::getpid());
    // The number only helps whoever is refused.
    if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) < 0) return;
    return;
  }
  const bool held = errno == EWOULDBLOCK;
  const std::string why = reason();
  std::array<char, 32> holder{};
  const ssize_t size = ::pread(fd_, holder.data(), holder.size(), 0);
  ::close(std::exchange(fd_, -1));
  if (!held) throw_error<BackendError>("{}: cannot lock: {}.", path.string(), why);
  std::string number(holder.data(), static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  number = number.substr(0, number.find('\n'));
  throw_error<UsageError>(
      "{}: expected a run that no other process is writing, got one that process {} holds. Wait "
      "for it or stop it.",
      path.parent_path().string(), number.empty() ? "elsewhere" : number);
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && std::filesystem::is_directory(folder, error)) return;
  if (error == std::errc::no_space_on_device || error == std::errc::io_error) {
    throw_error<BackendError>("{}: cannot make the folder: {}.", folder.string(), error.message());
  }
  throw_error<UsageError>(
      "{}: expected a path at which a folder can be made, got: {}. Choose a folder that this user "
      "may write into.",
      folder.string(), error ? error.message() : "a file");
}

void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> chunks) {
  Descriptor d(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (d.fd < 0) {
    throw_error<BackendError>("{}: cannot open for writing: {}.", path.string(), reason());
  }
  for (const std::span<const std::byte> chunk : chunks) write_all(d.fd, chunk, path);
  if (::fsync(d.fd) != 0) {
    throw_error<BackendError>("{}: cannot flush to disk: {}.", path.string(), reason());
  }
  if (::close(std::exchange(d.fd, -1)) != 0) {
    throw_error<BackendError>("{}: cannot close: {}.", path.string(), reason());
  }
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_error<BackendError>("{}: cannot rename to {}: {}.", from.string(), to.string(), reason());
  }
  flush_folder(to.parent_path());
}

void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> chunks) {
  // The process id keeps two writers of one path apart; the last rename wins as a whole.
  std::filesystem::path fresh = path;
  fresh += fmt::format(".{}.tmp", ::getpid());
  try {
    write_file(fresh, chunks);
    rename_file(fresh, path);
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

void replace_file(const std::filesystem::path& path, std::string_view text) {
  const std::array chunks{std::as_bytes(std::span(text))};
  replace_file(path, chunks);
}

void remove_unfinished(const std::filesystem::path& folder) {
  std::error_code unused;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unused)) {
    const std::filesystem::path stem = entry.path().stem();  // name.PID of name.PID.tmp
    const std::string number = stem.extension().string();
    const bool ours = entry.path().extension() == ".tmp" && number.size() > 1 &&
                      number.find_first_not_of("0123456789", 1) == std::string::npos;
    if (ours) std::filesystem::remove(entry.path(), unused);
  }
}

std::string read_file(const std::filesystem::path& path) {
  return std::string(MappedFile(path).text());
}

}  // namespace coda
