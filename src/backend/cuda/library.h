// Finding and opening NVIDIA's run-time libraries (NVRTC, cuBLAS) without linking them.
#pragma once

#include <string>
#include <vector>

namespace coda::cuda {

/// Where a library may be, best first: the file or folder in environment variable `variable`; PyPI
/// wheels (of the active virtual environment, of python3 on PATH, of the user, of the system); the
/// CUDA toolkit; names for the loader's own search, with each of `versions`. `stem` is such as
/// "libnvrtc.so".
std::vector<std::string> library_candidates(const char* variable, const std::string& stem,
                                            const std::vector<std::string>& versions = {"13",
                                                                                        "12"});

/// Files that match a shell pattern, sorted in reverse, so that newer versions come first.
std::vector<std::string> files_matching(const std::string& pattern);

}  // namespace coda::cuda
