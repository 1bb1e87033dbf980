#include "backend/cuda/gpc_map.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "backend/cuda/device/params.cuh"
#include "backend/cuda/gemm_source.h"
#include "backend/cuda/kernel_store.h"
#include "backend/cuda/runtime.h"

namespace coda::cuda {
namespace {

int root_of(std::vector<int>& parent, int sm) {
  while (parent[sm] != sm) sm = parent[sm] = parent[parent[sm]];
  return sm;
}

GpcMap probe() {
  const Device& device = Device::get();
  const Kernel kernel = KernelStore::get().load(probe_source());
  kernel.allow_large_clusters();
  const Stream stream;
  std::vector<std::pair<int, int>> meetings;
  for (const int cluster : {16, 8, 4, 2, 16, 8}) {
    const int clusters = kernel.max_active_clusters(32, cluster);
    const int ctas = clusters * cluster;
    if (ctas == 0) continue;
    const DeviceBuffer buffer(ctas * sizeof(unsigned));
    DevicePointer pointer = buffer.pointer();
    kernel.launch(stream, ctas, 32, cluster, {&pointer});
    std::vector<unsigned> sms(ctas);
    buffer.download(sms.data(), ctas * sizeof(unsigned), stream);
    for (int i = 0; i < ctas; ++i) {
      if (i % cluster != 0) meetings.emplace_back(sms[i - i % cluster], sms[i]);
    }
  }
  return join_sms(device.sm_count(), meetings, coda_device::kMaxGroups);
}

}  // namespace

GpcMap join_sms(int sm_count, const std::vector<std::pair<int, int>>& meetings, int max_groups) {
  std::vector<int> parent(sm_count);
  std::iota(parent.begin(), parent.end(), 0);
  for (const auto& [a, b] : meetings) {
    if (a < 0 || b < 0 || a >= sm_count || b >= sm_count) return {};
    parent[root_of(parent, a)] = root_of(parent, b);
  }
  std::map<int, std::vector<int>> members;
  for (int sm = 0; sm < sm_count; ++sm) members[root_of(parent, sm)].push_back(sm);
  std::vector<std::vector<int>> groups;
  for (auto& [root, sms] : members) groups.push_back(std::move(sms));
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });

  GpcMap map;
  map.group_of_sm.resize(sm_count);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const int group = std::min(static_cast<int>(i), max_groups - 1);
    if (group == static_cast<int>(map.group_sms.size())) map.group_sms.push_back(0);
    map.group_sms[group] += static_cast<int>(groups[i].size());
    for (const int sm : groups[i]) map.group_of_sm[sm] = group;
  }
  return map;
}

const GpcMap& gpc_map() {
  static const GpcMap map = probe();
  return map;
}

}  // namespace coda::cuda
