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
      {"coop_128x256_2x1_at_once", 256, 1, 4, 2, 1, false, false, false},
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
  const double fill = static_cast<double>(remainder) / max_workers;
  if (!split_tail || remainder == 0 || fill > 0.75) return split;
  // Splitting saves the empty part of the last wave and costs a hand-over: worth it if that part is
  // a good share of all waves, or if it is large.
  const double waves = static_cast<double>((tiles + max_workers - 1) / max_workers);
  const double saved = (1 - fill) / waves;
  if (!(saved >= 0.05 || (fill <= 0.6 && saved >= 0.01))) return split;
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

namespace {

// The numbers of this model were fitted to the times of every candidate on 165 shapes on an H200
// (docs/performance-log.md, version 6), ping-pong's again in version 8, what lines cost in
// version 9. They rank; as times they are off by 9 % in the mean. Ping-pong was counted 3 % slower
// than it ran in turns with others, since it burns more a multiply and slows down when it runs
// alone.

/// Share of the full multiply rate that a candidate's mainloop reaches.
double mainloop_efficiency(const GemmConfig& config, std::int64_t k_blocks) {
  if (config.ping_pong) {
    if (config.cluster() > 1) return config.tile_n == 192 ? 0.80 : 0.825;
    // Without multicast, CTAs that drift apart on a long way along K fetch from further away.
    const double drift = std::clamp((k_blocks - 32) / 64.0, 0.0, 1.0);
    return (config.tile_n == 192 ? 0.88 : 0.82) * (1 - 0.055 * drift);
  }
  switch (config.tile_n) {
    case 64:
      return 0.53;
    case 128:
      return config.wg_blocks == 2 ? 0.825 : 0.80;
    case 192:
      return 0.87;
    default:
      return config.cluster() > 1 ? 0.90 : 0.83;
  }
}

/// Lines of 128 bytes that a CTA fetches for a k-block: a row of a box is one, or lies across two
/// where the operand's rows are no multiple of a line.
double lines_of(const GemmShape& shape, const GemmConfig& config) {
  const auto across = [](std::int64_t row) { return row % 64 == 0 ? 1.0 : 2.0; };
  const double a = across(shape.a == Major::k ? shape.k : shape.m);
  const double b = across(shape.b == Major::k ? shape.k : shape.n);
  return config.tile_m() * a / config.cluster_n + config.tile_n * b / config.cluster_m;
}

}  // namespace

double predict_seconds(const GemmShape& shape, const GemmConfig& config, int sm_count) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = ceil_div(shape.m, config.tile_m() * config.cluster_m) *
                             ceil_div(shape.n, config.tile_n * config.cluster_n);
  const std::int64_t k_blocks = std::max<std::int64_t>(1, ceil_div(shape.k, 64));
  const int max_workers = std::max(1, sm_count / config.cluster());
  const auto split = split_tiles(tiles, k_blocks, max_workers, config.split_tail);

  // An SM does 2048 multiply-adds of 16-bit operands a cycle.
  const double multiply =
      config.tile_m() * config.tile_n * 64 / 2048.0 / mainloop_efficiency(config, k_blocks);
  constexpr double kLinesACycle = 0.6;
  const double fetch = lines_of(shape, config) / kLinesACycle;
  const double block = std::max(multiply, fetch);
  const double area = config.tile_m() * config.tile_n / 32768.0;
  double cycles = 0;
  if (split.whole_tiles > 0) {
    // What is not hidden. Deferring pays from the second tile on.
    const double tile_end = (config.ping_pong ? 2700 : config.at_once() ? 4000 : 2400) * area;
    const double start_and_end = (config.ping_pong ? 3600 : config.at_once() ? 9100 : 11000) * area;
    const double waves = static_cast<double>(ceil_div(split.whole_tiles, split.workers));
    cycles += waves * (k_blocks * block + tile_end) + start_and_end;
  }
  if (split.split_tiles > 0) {
    // Workers stand at different places along K, so they share little on the way from L2.
    constexpr double kOutOfStep = 0.71;
    const double share = static_cast<double>(split.split_tiles) * k_blocks / split.split_workers;
    const double helpers = static_cast<double>(split.split_workers) / split.split_tiles;
    cycles += share * std::max(multiply / kOutOfStep, fetch) + 7150 * helpers * area;
  } else if (config.split_tail) {
    cycles *= 1.005;  // the same schedule without the code for it ran 0.5 to 1 % faster
  }
  constexpr double kClock = 1.65e9;
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
