#include "train/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

/// The least bound on memory of a control group and those above it, or `most`.
double least_limit(const fs::path& root, const std::string& group, const char* file, double most) {
  for (fs::path at = root / group; at.string().size() >= root.string().size();
       at = at.parent_path()) {
    std::ifstream text(at / file);
    double limit = 0;  // of version 2 it may be "max"
    if (text >> limit) most = std::min(most, limit);
  }
  return most;
}

/// Lines are "0::/path" of version 2 and "4:memory:/path" of version 1. Inside a container the path
/// may be the host's: the folder above, which is then the container's own, is there.
double least_group_limit(double most) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t path = line.find(":/") + 2;
    if (line.starts_with("0::/")) {
      most = least_limit("/sys/fs/cgroup", line.substr(path), "memory.max", most);
    } else if (line.find(":memory:/") != std::string::npos) {
      most = least_limit("/sys/fs/cgroup/memory", line.substr(path), "memory.limit_in_bytes", most);
    }
  }
  return most;
}

}  // namespace

double usable_memory() {
  double most =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    most = std::min(most, static_cast<double>(limit.rlim_cur));
  }
  return least_group_limit(most);
}

void check_memory(std::string_view what, std::int64_t weights, std::int64_t bytes_per_weight) {
  const double have = usable_memory();
  const double need = static_cast<double>(weights) * static_cast<double>(bytes_per_weight);
  if (have <= 0.0 || need <= have) return;
  throw_error<UsageError>(
      "{}: expected a model that fits into {:.1f} GB of memory, got {} weights of {} bytes each "
      "({:.1f} GB). Use a smaller model.",
      what, have * 1e-9, weights, bytes_per_weight, need * 1e-9);
}

void check_step_memory(std::int64_t batch, std::int64_t seq, double bytes, double weight_bytes) {
  const double have = usable_memory();
  if (have <= 0.0 || bytes + weight_bytes <= have) return;
  throw_error<UsageError>(
      "--batch, --seq: expected a step that fits into {:.1f} GB of memory beside {:.1f} GB of "
      "weights, got {} * {} tokens, which take {:.1f} GB or more. Lower them, and raise "
      "--accumulate for as "
      "large a step.",
      have * 1e-9, weight_bytes * 1e-9, batch, seq, bytes * 1e-9);
}

}  // namespace coda
