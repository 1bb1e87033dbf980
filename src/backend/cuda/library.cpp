#include "backend/cuda/library.h"

#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace coda::cuda {
namespace {

std::string variable_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Folders that may hold the package folder "nvidia" of PyPI wheels.
std::vector<std::string> site_packages() {
  std::vector<std::string> prefixes;
  if (const auto environment = variable_or_empty("VIRTUAL_ENV"); !environment.empty()) {
    prefixes.push_back(environment);
  }
  std::istringstream path(variable_or_empty("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    std::error_code ignored;
    if (std::filesystem::exists(folder + "/python3", ignored)) {
      prefixes.push_back(std::filesystem::path(folder).parent_path().string());
    }
  }
  if (const auto home = variable_or_empty("HOME"); !home.empty())
    prefixes.push_back(home + "/.local");
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});

  std::vector<std::string> found;
  for (const auto& prefix : prefixes) {
    for (const char* kind : {"site-packages", "dist-packages"}) {
      for (const auto& folder : files_matching(prefix + "/lib/python3*/" + kind)) {
        found.push_back(folder);
      }
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> files_matching(const std::string& pattern) {
  std::vector<std::string> found;
  glob_t result{};
  if (glob(pattern.c_str(), 0, nullptr, &result) == 0) {
    found.assign(result.gl_pathv, result.gl_pathv + result.gl_pathc);
  }
  globfree(&result);
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::vector<std::string> library_candidates(const char* variable, const std::string& stem,
                                            const std::vector<std::string>& versions) {
  std::vector<std::string> candidates;
  const auto add_folder = [&](const std::string& folder) {
    for (const auto& file : files_matching(folder + "/" + stem + ".*")) {
      if (file.find(".alt.") == std::string::npos) candidates.push_back(file);
    }
  };
  if (const auto given = variable_or_empty(variable); !given.empty()) {
    if (std::filesystem::is_directory(given)) {
      add_folder(given);
    } else {
      candidates.push_back(given);
    }
    return candidates;  // an explicit choice is not second-guessed
  }
  for (const auto& site : site_packages()) add_folder(site + "/nvidia/*/lib");
  for (const char* toolkit : {"CUDA_HOME", "CUDA_PATH"}) {
    const auto folder = variable_or_empty(toolkit);
    if (!folder.empty()) add_folder(folder + "/lib64");
  }
  add_folder("/usr/local/cuda/lib64");
  add_folder("/usr/local/cuda/targets/x86_64-linux/lib");
  for (const auto& version : versions) candidates.push_back(stem + "." + version);
  return candidates;
}

}  // namespace coda::cuda
