// Parameters of the embedding kernels (embedding.cuh): included by host and device.
#pragma once

namespace coda_device {

struct EmbeddingParams {
  const void* ids;
  int ids_are_i64;
  void* table;             ///< [vocab, columns]; backward: its gradient, fp32
  long long table_stride;  ///< elements from a row to the next
  void* x;                 ///< [rows, columns]; backward: its gradient
  long long x_stride;
  long long rows;
  long long vocab;
  long long columns;
  unsigned* place;         ///< backward: [rows], where each row stands when sorted by id
  unsigned* order;         ///< backward: [rows], the rows sorted by id
  unsigned* error_flag;
  int accumulates;         ///< backward: sums are added to what the table holds
};

constexpr int kEmbeddingSlice = 2048;  ///< ids that a block compares its own rows with

}  // namespace coda_device
