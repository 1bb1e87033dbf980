// Which loads of a program finish partials, and the kernel that finishes many of them beforehand.
#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/device_sources.h"
#include "backend/cuda/row_values.h"
#include "backend/cuda/rows_source.h"
#include "coda/graph.h"

namespace coda::cuda {

namespace {

constexpr std::int64_t kInsideGranules = 64;  // partials of a row that its block adds itself

}  // namespace

std::vector<PartialLoad> partial_loads(const Program& program,
                                       const std::vector<std::int64_t>& granules) {
  std::vector<PartialLoad> loads;
  for (const Value& v : program.values) {
    if (v.attrs.finish == Finish::none || v.operand < 0) continue;
    const bool known = std::any_of(loads.begin(), loads.end(), [&](const PartialLoad& load) {
      return load.operand == v.operand;
    });
    if (known) continue;
    PartialLoad load;
    load.operand = v.operand;
    load.finish = is_online(v.attrs.finish) ? Finish::lse : v.attrs.finish;
    load.granules = granules[static_cast<std::size_t>(v.operand)];
    load.inside = program.form == Form::rows && v.kind == Kind::col && load.granules != kTokens &&
                  load.granules <= kInsideGranules;
    loads.push_back(load);
  }
  return loads;
}

KernelSource finish_source(int jobs) {
  KernelSource source{"finish", "coda_finish", "", 0};
  source.text = fmt::format("namespace coda_device {{ constexpr int kJobs = {}; }}\n{}", jobs,
                            device_source("finish.cuh"));
  prepend_row_files(source);
  return source;
}

}  // namespace coda::cuda
