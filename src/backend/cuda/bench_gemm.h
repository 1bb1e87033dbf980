// Racing the mainloop against cuBLAS, in one process, two ways (docs/cuda.md, "Timing"):
//   interleaved  launch by launch in turns: all share one clock
//   sustained    blocks of at least 0.3 s of one candidate, alternating, first half dropped: what a
//                training step sees on a card at its power limit
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/gemm_config.h"

namespace coda::cuda {

/// The GEMMs of a training step at width d: four of a layer and the head, each NT (forward), NN
/// (data gradient) and TN (weight gradient).
std::vector<GemmShape> layer_gemms(std::int64_t tokens, std::int64_t d, std::int64_t vocab = 32768);

/// Shapes off that table: M 1000, 4095, 32768; d 1536, 3072, 5120; the layer's weights and one with
/// 1000 output features; NT, NN and TN.
std::vector<GemmShape> sweep_gemms();

/// "NT 16384 2048 2048 [bf16 [bf16 [add]]]". Throws UsageError.
GemmShape parse_gemm_shape(const std::string& text);
std::string to_text(const GemmShape& shape);

struct BenchGemmOptions {
  std::vector<GemmShape> shapes;
  /// Candidates by name; "picked" is the heuristic's choice, "all" every one. cuBLAS always races.
  std::vector<std::string> configs = {"picked"};
  bool interleaved = true;
  bool sustained = true;
  double interleaved_milliseconds = 150;  ///< a shape; at least 7 rounds
  double block_seconds = 0.3;
  int sustained_rounds = 2;
  bool check = true;  ///< compare a slice of each output with float64
};

struct BenchGemmEntry {
  std::string config;
  double interleaved_ms = 0, sustained_ms = 0;        ///< ours
  double interleaved_ratio = 0, sustained_ratio = 0;  ///< cuBLAS's time / ours
  double error = 0;                                   ///< relative, against float64
  bool picked = false;
};
struct BenchGemmRow {
  GemmShape shape;
  double cublas_interleaved_ms = 0, cublas_sustained_ms = 0;
  double cublas_error = 0;
  std::vector<BenchGemmEntry> entries;
};
struct BenchGemmReport {
  std::string device, cublas;
  std::vector<BenchGemmRow> rows;

  std::string table() const;
  std::string json() const;
};

/// Runs the race. Prints a line a shape to stderr as it goes if `verbose`.
BenchGemmReport bench_gemm(const BenchGemmOptions& options, bool verbose = false);

}  // namespace coda::cuda
