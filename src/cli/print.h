// Text to a stream that may be gone (a closed pipe or terminal): losing a line is no reason to lose
// a run. main() reports at the end if standard output did not take everything.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace coda {

inline void print_text(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

template <class... Args>
void print_to(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_text(stream, fmt::format(format, std::forward<Args>(args)...));
}

/// "1 file", "2 files".
inline std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace coda
