// The version of the library that is linked.
#pragma once

#include <string_view>

namespace coda {

/// "0.1.0": major.minor.patch, as in CMake's find_package(coda 0.1).
std::string_view version();

}  // namespace coda
