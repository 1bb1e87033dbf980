#include "cli/tokens.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace coda {
namespace {

namespace fs = std::filesystem;

/// A line on a terminal, redrawn a few times a second.
class ByteProgress {
 public:
  ByteProgress(std::uint64_t total, bool silent)
      : total_(total), shown_(!silent && isatty(STDERR_FILENO) != 0) {}
  ~ByteProgress() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  double seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(Clock::now() - start_).count());
  }

  void update(std::uint64_t done) {
    const double now = seconds();
    if (!shown_ || now < next_) return;
    next_ = now + 0.2;
    const double speed = static_cast<double>(done) / now;
    const double left = static_cast<double>(total_ - std::min(total_, done)) / std::max(1.0, speed);
    fmt::print(stderr, "\rtokenising  {:.1f}/{:.1f} MB  {:.1f} MB/s  {:.0f} s left \x1b[K",
               static_cast<double>(done) * 1e-6, static_cast<double>(total_) * 1e-6, speed * 1e-6,
               left);
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::uint64_t total_;
  bool shown_, drawn_ = false;
  double next_ = 0.2;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

Texts open_texts(const std::vector<std::string>& paths, const std::string& text_field,
                 const Printer& output) {
  Texts texts(paths, text_field);
  if (!texts.skipped().empty()) {
    const auto count = static_cast<std::int64_t>(texts.skipped().size());
    output.note("{} skipped (binary, or no regular file), the first: {}\n", counted(count, "file"),
                texts.skipped().front().string());
  }
  return texts;
}

LoadedTokens load_tokens(const Texts& texts, const Tokenizer& tokenizer, const fs::path& kept,
                         const fs::path& folder, const Printer& output) {
  if (!kept.empty()) {
    std::string trouble;
    if (auto file = TokenFile::open(kept, TokenFile::key(texts, tokenizer), trouble)) {
      return {std::move(*file), false};
    }
    if (!trouble.empty()) {
      output.note("{}: {}; reading the texts again\n", kept.string(), trouble);
    }
  }
  TextReport report;
  double seconds = 0.0;
  TokenFile file = [&] {
    ByteProgress progress(texts.bytes(), output.json());
    TokenFile written = TokenFile::write(texts, tokenizer, folder, report,
                                         [&](std::uint64_t bytes) { progress.update(bytes); });
    seconds = progress.seconds();
    return written;
  }();
  const double megabytes = static_cast<double>(report.bytes) * 1e-6;
  output.note("{} in {}, {:.1f} MB: {} tokens in {:.1f} s ({:.1f} MB/s)\n",
              counted(report.documents, "document"), counted(report.files, "file"), megabytes,
              file.tokens().size(), seconds, megabytes / seconds);
  if (report.replaced > 0) {
    output.note("{} of UTF-8 replaced with U+FFFD in {}, the first: {}\n",
                counted(report.replaced, "ill-formed part"), counted(report.replaced_files, "file"),
                report.first_replaced);
  }
  return {std::move(file), true};
}

fs::path existing_folder(const fs::path& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  std::error_code unused;
  while (!fs::is_directory(path, unused) && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace coda
