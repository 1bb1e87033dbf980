#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/print.h"

namespace coda {
namespace {

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

}  // namespace

Progress::Progress(std::int64_t done, std::int64_t total, bool silent)
    : first_(done),
      total_(total),
      silent_(silent),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(Clock::now()) {}

void Progress::update(std::int64_t done, const std::string& text) {
  constexpr int kWidth = 24;
  if (silent_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double left = seconds / static_cast<double>(std::max<std::int64_t>(1, done - first_)) *
                      static_cast<double>(total_ - done);
  if (terminal_) {
    const auto full = static_cast<std::size_t>(done * kWidth / std::max<std::int64_t>(1, total_));
    print_to(stderr, "\r[{:.<{}}] {}/{}  {}  {} left \x1b[K", std::string(full, '#'), kWidth, done,
             total_, text, duration(left));
    open_ = true;
  } else if (done % 10 == 0 || done == total_ || done == first_ + 1) {
    print_to(stderr, "step {}/{}  {}  {} left\n", done, total_, text, duration(left));
  }
}

void Progress::finish_line() {
  if (open_) print_to(stderr, "\n");
  open_ = false;
}

}  // namespace coda
