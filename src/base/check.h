// Throwing with a formatted message.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "coda/error.h"

namespace coda {

/// throw_error<UsageError>("linear: expected {} columns, got {}", a, b)
template <class E, class... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// An invariant of coda itself; when false, throws InternalError with the message.
template <class... Args>
void internal_check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace coda
