#include "train/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

std::string read_file(const std::filesystem::path& path) {
  return std::string(MappedFile(path).text());
}

}  // namespace coda
