// What a GEMM computes (GemmShape), how (GemmConfig), the table of candidates and the heuristic
// that picks one without measuring. Pure arithmetic: needs no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/dtype.h"

namespace coda::cuda {

/// Which axis of an operand is contiguous. A is [M, K] (K-major) or [K, M]; B is [N, K] or [K, N].
enum class Major { k, mn };

/// C[M, N] = A[M, K] . B[N, K]^T, or C += that. Forward GEMMs are NT (both K-major), data gradients
/// NN (B is [K, N]), weight gradients TN (A is [K, M], B is [K, N]).
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  DType operand = DType::bf16;  ///< bf16, f16; f32 runs on the plain kernel
  DType output = DType::bf16;   ///< bf16, f16, f32
  bool accumulate = false;      ///< C += A B^T; f32 output only
  Major a = Major::k;
  Major b = Major::k;

  /// "NT", "NN", "TN" or "TT".
  std::string layout() const;
};

/// One way to run the mainloop.
struct GemmConfig {
  const char* name;
  int tile_n;
  int wg_blocks;  ///< 64-row blocks of C a consumer warpgroup holds: 1 or 2
  int stages;
  int cluster_m;  ///< CTAs that share B
  int cluster_n;  ///< CTAs that share A
  bool ping_pong;
  bool defer;       ///< 16-bit outputs leave during the next tile's mainloop
  bool split_tail;  ///< the last partial wave is split along k

  int tile_m() const { return 64 * wg_blocks * (ping_pong ? 1 : 2); }
  int cluster() const { return cluster_m * cluster_n; }
  /// Teams of clusters take neighbouring tiles of a column (else of a row): they share the operand
  /// that multicast does not cover; without clusters, the larger one.
  bool teams_down() const { return cluster_n > 1 || (cluster() == 1 && tile_n > tile_m()); }
  /// Only how a 16-bit C is stored differs from another candidate (nothing else is compiled
  /// otherwise).
  bool at_once() const { return !defer && !ping_pong; }
  unsigned shared_bytes() const;
};

/// All candidates, the one table that heuristic, tuner, benchmark and tests go through.
const std::vector<GemmConfig>& gemm_candidates();
/// Changes whenever the table or the kernel changes what a tuning result means.
inline constexpr int kCandidateVersion = 3;

/// The candidate of that name. Throws UsageError that lists the names.
const GemmConfig& gemm_candidate(const std::string& name);

/// Seconds that the model expects, for ranking candidates on a GPU with `sm_count` SMs.
double predict_seconds(const GemmShape& shape, const GemmConfig& config, int sm_count);

/// The candidate that the model expects to be fastest.
const GemmConfig& choose_config(const GemmShape& shape, int sm_count);

/// Split of the tiles between whole tiles and tiles cut along k (Schedule in params.cuh).
struct TileSplit {
  std::int64_t whole_tiles = 0;
  std::int64_t split_tiles = 0;
  int workers = 0;
  int split_workers = 1;  ///< of these; each gets at least one k-block of the split tiles
};
TileSplit split_tiles(std::int64_t tiles, std::int64_t k_blocks, int max_workers, bool split_tail);

}  // namespace coda::cuda
