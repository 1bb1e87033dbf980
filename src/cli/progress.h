// A line that is redrawn on a terminal, with the time left; plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace coda {

class Progress {
 public:
  /// Counts from `done` to `total`. silent: prints nothing.
  Progress(std::int64_t done, std::int64_t total, bool silent);

  /// Shows the state after step `done`; on a pipe only every tenth step and the last.
  void update(std::int64_t done, const std::string& text);
  /// Ends the redrawn line, so that other text may follow.
  void finish_line();

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t first_, total_;
  bool silent_, terminal_, open_ = false;
  Clock::time_point start_;
};

}  // namespace coda
