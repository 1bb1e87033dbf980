#include "train/data_texts.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "train/random.h"
#include "train/utf8.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = std::size_t{256} << 10;
constexpr std::size_t kHead = std::size_t{64} << 10;

/// A regular file read from its beginning.
class Reader {
 public:
  explicit Reader(const fs::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail("open");
    if (::fstat(fd_, &status_) != 0) fail("stat");
    if (!S_ISREG(status_.st_mode)) {
      ::close(fd_);
      throw_error<UsageError>("--data: {}: expected a file or a folder, got a device or a pipe.",
                              path_.string());
    }
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { ::close(fd_); }

  const struct stat& status() const { return status_; }

  /// Appends at most `most` bytes; false at the end.
  bool append(std::string& out, std::size_t most) {
    const std::size_t before = out.size();
    out.resize(before + most);
    ssize_t count = 0;
    do {
      count = ::read(fd_, out.data() + before, most);
    } while (count < 0 && errno == EINTR);
    out.resize(before + static_cast<std::size_t>(std::max<ssize_t>(0, count)));
    if (count < 0) {
      throw_error<UsageError>("--data: {}: cannot read: {}.", path_.string(), std::strerror(errno));
    }
    return count > 0;
  }

 private:
  [[noreturn]] void fail(const char* what) {
    const std::string reason = std::strerror(errno);
    if (fd_ >= 0) ::close(fd_);
    throw_error<UsageError>("--data: {}: cannot {}: {}.", path_.string(), what, reason);
  }

  const fs::path& path_;
  int fd_;
  struct stat status_ {};
};

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// `coda train` has written this folder: nothing in it is text to train on.
bool is_run(const fs::path& folder) {
  std::error_code unused;
  return fs::exists(folder / "options.json", unused) && fs::exists(folder / "config.json", unused);
}

/// What lies below a folder, sorted, without what is in runs. Links to folders are not followed:
/// they may form a ring.
std::vector<fs::path> entries_below(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code unused;
    if (is_hidden(it->path()) || is_run(it->path())) {
      if (it->is_directory(unused)) it.disable_recursion_pending();
    } else if (it->is_symlink(unused) || !it->is_directory(unused)) {
      entries.push_back(it->path());
    }
  }
  if (error) {
    throw_error<UsageError>("--data: {}: cannot read the folder: {}.", folder.string(),
                            error.message());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// Why the beginning of a file is no text; "" if it is. Texts have no zero bytes, and hardly
/// anything but UTF-8: another encoding would come out as a row of replacements.
std::string trouble_with(std::string_view head) {
  const std::size_t zero = head.find('\0');
  if (zero != std::string_view::npos) return fmt::format("byte 0x00 at offset {}", zero);
  head = head.substr(0, complete_utf8(head));
  std::string valid;
  const auto replaced = static_cast<std::size_t>(append_valid_utf8(head, valid));
  if (replaced * 10 <= head.size()) return "";
  const std::size_t first = find_invalid_utf8(head);
  return fmt::format("{} ill-formed parts in {} bytes, the first, byte 0x{:02x}, at offset {}",
                     replaced, head.size(), static_cast<unsigned char>(head[first]), first);
}

/// The documents of one file.
class FileText {
 public:
  FileText(const Texts::File& file, const std::string& text_field, const Texts::Visit& visit,
           TextReport& report)
      : file_(file), text_field_(text_field), visit_(visit), report_(report), reader_(file.path) {}

  /// Reads on; false at the end of the file.
  bool step(std::uint64_t& bytes) {
    const std::size_t before = pending_.size();
    const bool more = reader_.append(pending_, kBlock);
    bytes += pending_.size() - before;
    file_.lines ? take_lines(!more) : take_text(!more);
    return more;
  }

  std::int64_t replaced = 0;

 private:
  void take_text(bool last) {
    const std::size_t ready = last ? pending_.size() : complete_utf8(pending_);
    valid_.clear();
    replaced += append_valid_utf8(std::string_view(pending_).substr(0, ready), valid_);
    pending_.erase(0, ready);
    any_ = any_ || !valid_.empty();
    if (!any_ || (valid_.empty() && !last)) return;
    if (last) ++report_.documents;
    visit_(valid_, last);
  }

  void take_lines(bool last) {
    std::size_t at = 0;
    for (std::size_t end; (end = pending_.find('\n', std::max(at, searched_))) != std::string::npos;
         at = end + 1) {
      searched_ = 0;
      take_line(std::string_view(pending_).substr(at, end - at));
    }
    pending_.erase(0, at);
    searched_ = pending_.size();
    if (last && !pending_.empty()) take_line(pending_);
  }

  void take_line(std::string_view line) {
    ++line_;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    valid_.clear();
    replaced += append_valid_utf8(line, valid_);
    const auto json = nlohmann::json::parse(valid_, nullptr, false);
    const auto field = json.is_object() ? json.find(text_field_) : json.end();
    if (!json.is_object() || field == json.end() || !field->is_string()) {
      throw_error<UsageError>(
          "--data: {}:{}: expected a JSON object with a text in \"{}\", got {}. {}",
          file_.path.string(), line_, text_field_, got(json),
          json.is_object() ? "Name the field with --text-field, or mend the line."
                           : "Mend the line; a file that is no JSON lines needs another ending.");
    }
    const auto& text = field->get_ref<const std::string&>();
    if (text.empty()) return;
    ++report_.documents;
    visit_(text, true);
  }

  std::string got(const nlohmann::json& json) const {
    if (json.is_discarded()) return "no JSON";
    if (!json.is_object()) return json.type_name();
    const auto field = json.find(text_field_);
    return field == json.end() ? "an object without it"
                               : fmt::format("a {} there", field->type_name());
  }

  const Texts::File& file_;
  const std::string& text_field_;
  const Texts::Visit& visit_;
  TextReport& report_;
  Reader reader_;
  std::string pending_, valid_;
  std::size_t searched_ = 0;  ///< of pending_, for the end of a line
  std::int64_t line_ = 0;
  bool any_ = false;
};

}  // namespace

Texts::Texts(std::span<const std::string> paths, std::string text_field)
    : text_field_(std::move(text_field)) {
  const auto add = [&](const fs::path& path, bool named) {
    Reader reader(path);
    std::string head;
    while (head.size() < kHead && reader.append(head, kHead - head.size())) {
    }
    const std::string trouble = trouble_with(head);
    if (!trouble.empty() && named) {
      throw_error<UsageError>(
          "--data: {}: expected UTF-8 text, got binary data: {}. Leave the file out, or convert it "
          "to UTF-8.",
          path.string(), trouble);
    }
    if (!trouble.empty()) return skipped_.push_back(path);
    const struct stat& status = reader.status();
    files_.push_back({path, static_cast<std::uint64_t>(status.st_size),
                      std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
                      path.extension() == ".jsonl"});
    bytes_ += files_.back().size;
  };
  for (const std::string& path : paths) {
    std::error_code unused;
    if (path.empty()) throw_error<UsageError>("--data: expected a path, got an empty one.");
    if (!fs::exists(path, unused)) {
      throw_error<UsageError>("--data: {}: expected a file or a folder, got nothing there.", path);
    }
    if (is_run(path)) {
      throw_error<UsageError>(
          "--data: {}: expected text, got the folder of a run. Name the folder that holds its "
          "text.",
          path);
    }
    if (fs::is_directory(path, unused)) {
      for (const fs::path& entry : entries_below(path)) {
        if (fs::is_regular_file(entry, unused)) {
          add(entry, false);
        } else {
          skipped_.push_back(entry);
        }
      }
    } else {
      add(path, true);
    }
  }
  if (bytes_ == 0) {
    throw_error<UsageError>(
        "--data: {}: expected some text, got {} empty and {} other files (binary, or no regular "
        "ones).",
        fmt::join(paths, " "), files_.size(), skipped_.size());
  }
}

TextReport Texts::read(const Visit& visit, const Progress& progress) const {
  TextReport report;
  std::uint64_t bytes = 0;
  for (const File& file : files_) {
    FileText text(file, text_field_, visit, report);
    while (text.step(bytes)) {
      if (progress) progress(bytes);
    }
    ++report.files;
    report.replaced += text.replaced;
    if (text.replaced > 0 && report.replaced_files++ == 0) {
      report.first_replaced = file.path.string();
    }
  }
  report.bytes = static_cast<std::int64_t>(bytes);
  return report;
}

std::vector<std::string> Texts::sample(std::uint64_t most) const {
  constexpr std::uint64_t kStretch = 4096;
  const std::uint64_t every = bytes_ / most + 1;
  std::vector<std::string> texts;
  bool begins = true;
  std::uint64_t seen = 0;
  read([&](std::string_view part, bool ends) {
    if (begins) texts.emplace_back();
    begins = ends;
    if (every == 1) {
      texts.back() += part;
      return;
    }
    for (std::size_t at = 0; at < part.size(); ++seen) {
      const std::size_t length = utf8_length(static_cast<unsigned char>(part[at]));
      if (seen / kStretch % every == 0) texts.back() += part.substr(at, length);
      at += length;
    }
    if (ends && texts.back().empty()) texts.pop_back();
  });
  return texts;
}

std::uint64_t Texts::key() const {
  std::string all = text_field_;
  for (const File& file : files_) {
    const fs::path path = fs::absolute(file.path).lexically_normal();
    all += fmt::format("\n{} {} {}", path.string(), file.size, file.modified);
  }
  return stream_of(all);
}

}  // namespace coda
