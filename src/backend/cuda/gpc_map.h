// Which SMs sit in one GPC. CUDA does not say; clusters never span GPCs, so a few launches with
// different cluster sizes tell. Probed once a process, since it differs from card to card.
#pragma once

#include <utility>
#include <vector>

namespace coda::cuda {

class KernelStore;

struct GpcMap {
  std::vector<int> group_of_sm;  ///< group 0, 1, ... of each SM id; empty if unknown
  std::vector<int> group_sms;    ///< SMs of each group
};

/// Groups SMs that met in a cluster. `meetings`: pairs of SM ids.
GpcMap join_sms(int sm_count, const std::vector<std::pair<int, int>>& meetings, int max_groups);

/// The map of the process's GPU.
const GpcMap& gpc_map();

}  // namespace coda::cuda
