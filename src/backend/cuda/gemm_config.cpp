#include "backend/cuda/gemm_config.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace coda::cuda {

std::string GemmShape::layout() const {
  return std::string(a == Major::k ? "N" : "T") + (b == Major::k ? "T" : "N");
}

unsigned GemmConfig::shared_bytes() const {
  // tile_config.cuh, kSharedBytes
  const unsigned stage = (tile_m() + tile_n) * 64 * 2;
  return stages * stage + 8 * 2 * 2048 + 2 * stages * 8 + 16;
}

const std::vector<GemmConfig>& gemm_candidates() {
  static const std::vector<GemmConfig> candidates = {
      // name                  tile_n blk stg  cm cn  pp     defer  split
      {"coop_128x256_2x1", 256, 1, 4, 2, 1, false, true, false},
      {"coop_128x256_2x1_split", 256, 1, 4, 2, 1, false, true, true},
      {"coop_128x256_split", 256, 1, 4, 1, 1, false, true, true},
      {"coop_256x128_1x2", 128, 2, 4, 1, 2, false, true, false},
      {"coop_128x192_split", 192, 1, 4, 1, 1, false, true, true},
      {"coop_128x128_split", 128, 1, 6, 1, 1, false, true, true},
      {"coop_128x64_split", 64, 1, 8, 1, 1, false, true, true},
      {"pp_128x128", 128, 2, 6, 1, 1, true, false, false},
      {"pp_128x128_2x1", 128, 2, 6, 2, 1, true, false, false},
      {"pp_128x192", 192, 2, 4, 1, 1, true, false, false},
      {"pp_128x192_1x2", 192, 2, 4, 1, 2, true, false, false},
  };
  return candidates;
}

const GemmConfig& gemm_candidate(const std::string& name) {
  std::string names;
  for (const auto& candidate : gemm_candidates()) {
    if (name == candidate.name) return candidate;
    names += std::string(names.empty() ? "" : ", ") + candidate.name;
  }
  throw_error<UsageError>("gemm: expected a configuration out of {}; got {}", names, name);
}

TileSplit split_tiles(std::int64_t tiles, std::int64_t k_blocks, int max_workers, bool split_tail) {
  TileSplit split;
  split.whole_tiles = tiles;
  split.workers = static_cast<int>(std::min<std::int64_t>(tiles, max_workers));
  const std::int64_t remainder = tiles % max_workers;
  // A last wave that is nearly full is cheaper to run whole than to hand over.
  constexpr double kNearlyFull = 0.75;
  if (!split_tail || remainder == 0 || remainder > kNearlyFull * max_workers) return split;
  // Every share should be a few k-blocks, else handing over costs more than it saves.
  constexpr std::int64_t kFewest = 4;
  const std::int64_t shares = std::min<std::int64_t>(max_workers, remainder * k_blocks / kFewest);
  if (shares <= remainder) return split;
  split.split_workers = static_cast<int>(shares);
  split.split_tiles = remainder;
  split.whole_tiles = tiles - remainder;
  split.workers = split.whole_tiles == 0 ? split.split_workers : max_workers;
  return split;
}

double predict_seconds(const GemmShape& shape, const GemmConfig& config, int sm_count) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = ceil_div(shape.m, config.tile_m() * config.cluster_m) *
                             ceil_div(shape.n, config.tile_n * config.cluster_n);
  const std::int64_t k_blocks = std::max<std::int64_t>(1, ceil_div(shape.k, 64));
  const int max_workers = sm_count / config.cluster();
  const auto split = split_tiles(tiles, k_blocks, max_workers, config.split_tail);

  // Cycles of a k-block at full rate: 4096 multiply-adds a cycle and SM (dense 16-bit), a CTA tile.
  const double block = config.tile_m() * config.tile_n * 64 / 4096.0;
  // Smaller tiles read more shared memory and L2 a multiply; 1.0 is the 128x256 tile.
  const double area = config.tile_m() * static_cast<double>(config.tile_n);
  const double efficiency = area >= 32768 ? 1.0 : area >= 24576 ? 0.97 : area >= 16384 ? 0.93 : 0.7;
  const double hidden = config.ping_pong || (config.defer && shape.output != DType::f32);
  const double tile_end = (hidden ? 800 : 2800) * area / 32768;
  const double per_tile = k_blocks * block / efficiency + tile_end;

  double cycles = 3000;  // launch, first loads
  cycles += static_cast<double>(ceil_div(split.whole_tiles, split.workers)) * per_tile;
  if (split.split_tiles > 0) {
    const double share = static_cast<double>(split.split_tiles) * k_blocks / split.split_workers;
    cycles += share * block / efficiency + 5000 * area / 32768 + tile_end;
  }
  constexpr double kClock = 1.55e9;
  return cycles / kClock;
}

const GemmConfig& choose_config(const GemmShape& shape, int sm_count) {
  const GemmConfig* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& candidate : gemm_candidates()) {
    const double seconds = predict_seconds(shape, candidate, sm_count);
    if (seconds < least) {
      least = seconds;
      best = &candidate;
    }
  }
  return *best;
}

}  // namespace coda::cuda
