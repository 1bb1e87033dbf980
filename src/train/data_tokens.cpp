#include "train/data_tokens.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "train/file.h"
#include "train/random.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWindow = std::size_t{256} << 10;  ///< bytes of text encoded at once
constexpr std::size_t kMostWindow = std::size_t{1} << 20;
constexpr std::uint64_t kBuffer = std::uint64_t{1} << 18;  ///< tokens

/// At the beginning of the file; the tokens follow.
struct Header {
  std::array<char, 8> magic{'c', 'o', 'd', 'a', 't', 'o', 'k', '1'};
  std::uint64_t key = 0, count = 0, hash = 0;
  std::uint64_t check = 0;  ///< of the fields before

  std::uint64_t computed_check() const {
    return stream_of(fmt::format("{} {} {}", key, count, hash));
  }
};

/// Multiplying by an odd number and exclusive or lose nothing: any one changed token shows.
class TokenHash {
 public:
  void add(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      state_ = (state_ ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15;
      state_ ^= state_ >> 32;
    }
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

[[noreturn]] void fail(const std::string& what) {
  throw_error<BackendError>("tokens: cannot {}: {}.", what, std::strerror(errno));
}

void write_all(int fd, const void* data, std::size_t size, std::uint64_t offset) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd, bytes, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw_error<BackendError>(
          "tokens: cannot write the token file: {}. It takes 4 bytes a token beside --out: free "
          "some "
          "room, or choose an --out on another disk.",
          std::strerror(errno));
    }
    bytes += written;
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
  }
}

/// How much could be read.
std::size_t read_all(int fd, void* data, std::size_t size, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(fd, static_cast<char*>(data) + done, size - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

/// A file without a name in the folder or, failing that, where temporary files go.
int nameless_file(const fs::path& folder) {
  std::error_code error;
  for (const fs::path& place : {folder, fs::temp_directory_path(error)}) {
    if (place.empty()) continue;
    const int fd = ::open(place.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    if (fd >= 0) return fd;
    std::string name = (place / ".coda-tokens-XXXXXX").string();  // no O_TMPFILE on this one
    const int named = ::mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) {
      ::unlink(name.c_str());
      ::fchmod(named, 0644);
      return named;
    }
  }
  const std::string reason = std::strerror(errno);
  const char* temporary = std::getenv("TMPDIR");
  throw_error<UsageError>(
      "tokens: expected a folder for a temporary file, got none that takes one: {}TMPDIR {} ({}). "
      "Set TMPDIR to a folder that this user may write into.",
      folder.empty() ? "" : folder.string() + ", ",
      temporary == nullptr ? "unset, so /tmp" : fmt::format("\"{}\"", temporary), reason);
}

/// Encodes documents as their parts come, and writes the ids.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, int fd) : tokenizer_(tokenizer), fd_(fd) {}

  void add(std::string_view part, bool ends) {
    if (begins_document_ && tokenizer_.bos() >= 0) put(tokenizer_.bos());
    window_ += part;
    while (window_.size() >= target_) {
      std::size_t cut = tokenizer_.find_cut(window_);
      if (cut == 0 && window_.size() < kMostWindow) {
        target_ = std::min(2 * target_, kMostWindow);
        break;
      }
      if (cut == 0) cut = complete_utf8(window_);  // no place is safe in a megabyte: cut here
      encode(cut);
      target_ = kWindow;
    }
    if (!ends) return;
    encode(window_.size());
    if (tokenizer_.eos() >= 0) put(tokenizer_.eos());
    begins_document_ = true;
    continues_ = false;
    target_ = kWindow;
  }

  void finish(std::uint64_t key, Header& header) {
    flush();
    header.key = key;
    header.count = written_;
    header.hash = hash_.value();
    header.check = header.computed_check();
    write_all(fd_, &header, sizeof header, 0);
  }

 private:
  void encode(std::size_t size) {
    if (size == 0) return;
    for (const std::int32_t id :
         tokenizer_.encode(std::string_view(window_).substr(0, size), continues_)) {
      put(id);
    }
    window_.erase(0, size);
    continues_ = true;
  }

  void put(std::int32_t id) {
    buffer_.push_back(begins_document_ ? id | kDocumentBit : id);
    begins_document_ = false;
    if (buffer_.size() >= kBuffer) flush();
  }

  void flush() {
    hash_.add(buffer_);
    write_all(fd_, buffer_.data(), buffer_.size() * sizeof buffer_[0],
              sizeof(Header) + written_ * sizeof buffer_[0]);
    written_ += buffer_.size();
    buffer_.clear();
  }

  const Tokenizer& tokenizer_;
  int fd_;
  std::string window_;
  std::size_t target_ = kWindow;
  bool begins_document_ = true, continues_ = false;
  std::vector<std::int32_t> buffer_;
  std::uint64_t written_ = 0;
  TokenHash hash_;
};

}  // namespace

TokenFile TokenFile::write(const Texts& texts, const Tokenizer& tokenizer, const fs::path& folder,
                           TextReport& report, const Texts::Progress& progress) {
  TokenFile file;
  file.fd_ = nameless_file(folder);
  Writer writer(tokenizer, file.fd_);
  report = texts.read([&](std::string_view part, bool ends) { writer.add(part, ends); }, progress);
  Header header;
  writer.finish(key(texts, tokenizer), header);
  file.count_ = header.count;
  file.hash_ = header.hash;
  file.map();
  return file;
}

std::optional<TokenFile> TokenFile::open(const fs::path& path, std::uint64_t key,
                                         std::string& trouble) {
  trouble.clear();
  TokenFile file;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return std::nullopt;
  Header header;
  const Header good;
  struct stat status {};
  const bool whole = read_all(file.fd_, &header, sizeof header, 0) == sizeof header &&
                     header.magic == good.magic && header.check == header.computed_check() &&
                     ::fstat(file.fd_, &status) == 0 &&
                     static_cast<std::uint64_t>(status.st_size) - sizeof header == header.count * 4;
  if (!whole) {
    trouble = "it is no whole token file";
    return std::nullopt;
  }
  if (header.key != key) return std::nullopt;
  TokenHash hash;
  std::vector<std::int32_t> block(kBuffer);
  for (std::uint64_t at = 0; at < header.count; at += kBuffer) {
    block.resize(std::min<std::uint64_t>(kBuffer, header.count - at));
    if (read_all(file.fd_, block.data(), block.size() * 4, sizeof header + at * 4) !=
        block.size() * 4) {
      fail(fmt::format("read {}", path.string()));
    }
    hash.add(block);
  }
  if (hash.value() != header.hash) {
    trouble = "its tokens are not those that were written";
    return std::nullopt;
  }
  file.count_ = header.count;
  file.hash_ = header.hash;
  file.map();
  return file;
}

std::uint64_t TokenFile::key(const Texts& texts, const Tokenizer& tokenizer) {
  return stream_of(fmt::format("{:016x} {:016x}", texts.key(), tokenizer.fingerprint()));
}

void TokenFile::map() {
  mapped_ = sizeof(Header) + count_ * sizeof(std::int32_t);
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ, MAP_SHARED, fd_, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    fail(fmt::format("map {} bytes of tokens", mapped_));
  }
  // Batches are drawn from anywhere: reading ahead would only fill memory.
  ::madvise(mapping_, mapped_, MADV_RANDOM);
  tokens_ =
      reinterpret_cast<const std::int32_t*>(static_cast<const char*>(mapping_) + sizeof(Header));
}

void TokenFile::keep(const fs::path& path) {
  if (::fdatasync(fd_) != 0) fail(fmt::format("flush {}", path.string()));
  fs::path fresh = path;
  fresh += fmt::format(".{}.tmp", ::getpid());
  ::unlink(fresh.c_str());
  const std::string self = fmt::format("/proc/self/fd/{}", fd_);
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, fresh.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    try {
      return rename_file(fresh, path);
    } catch (...) {
      ::unlink(fresh.c_str());
      throw;
    }
  }
  // Another file system, or one without nameless files: a copy.
  const std::span whole(static_cast<const std::byte*>(mapping_), mapped_);
  const std::array chunks{whole};
  replace_file(path, chunks);
  release();
}

void TokenFile::release() const { ::madvise(mapping_, mapped_, MADV_DONTNEED); }

TokenFile::TokenFile(TokenFile&& other) noexcept { *this = std::move(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(tokens_, other.tokens_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(count_, other.count_);
  std::swap(hash_, other.hash_);
  return *this;
}

TokenFile::~TokenFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace coda
