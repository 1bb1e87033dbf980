// Rows of a table picked by ids, and the gradient of the table: rows of d_x with one id are added in
// ascending order by one block, found by sorting the rows by id. No floating-point atomics, so bits
// repeat. The prelude defines Table and X (elements.cuh) and kColumns, the columns of a chunk.
#pragma once

namespace coda_device {

CODA_DEVICE long long id_of(const EmbeddingParams& p, long long row) {
  return load_integer(p.ids, row, p.ids_are_i64 != 0);
}

/// Block b: row b of x.
extern "C" __global__ void __launch_bounds__(128) coda_embedding(const EmbeddingParams p) {
  const long long row = blockIdx.x;
  const long long id = id_of(p, row);
  const bool bad = id < 0 || id >= p.vocab;
  if (bad && threadIdx.x == 0) *p.error_flag = 1;
  for (long long c = threadIdx.x * kColumns; c < p.columns; c += 128 * kColumns) {
    float values[kColumns];
    if (bad) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] = nan_value();
    } else {
      load_chunk<Table>(p.table, id * p.table_stride + c, values);
    }
    store_chunk<X>(p.x, row * p.x_stride + c, values);
  }
}

/// place[r] += how many rows of slice blockIdx.y stand before row r when sorted by (id, row). A
/// thread a row; sums of integers, so the order of the atomics does not matter.
extern "C" __global__ void __launch_bounds__(128) coda_embedding_place(const EmbeddingParams p) {
  __shared__ long long ids[128];
  const long long row = blockIdx.x * 128ll + threadIdx.x;
  const long long own = row < p.rows ? id_of(p, row) : 0;
  const long long first = blockIdx.y * static_cast<long long>(kEmbeddingSlice);
  const long long last = first + kEmbeddingSlice < p.rows ? first + kEmbeddingSlice : p.rows;
  unsigned before = 0;
  for (long long base = first; base < last; base += 128) {
    __syncthreads();
    if (base + threadIdx.x < last) ids[threadIdx.x] = id_of(p, base + threadIdx.x);
    __syncthreads();
    const int count = last - base < 128 ? static_cast<int>(last - base) : 128;
    for (int i = 0; i < count; ++i) {
      before += ids[i] < own || (ids[i] == own && base + i < row) ? 1u : 0u;
    }
  }
  if (row < p.rows) atomicAdd(&p.place[row], before);
}

extern "C" __global__ void __launch_bounds__(128) coda_embedding_order(const EmbeddingParams p) {
  const long long row = blockIdx.x * 128ll + threadIdx.x;
  if (row < p.rows) p.order[p.place[row]] = static_cast<unsigned>(row);
}

/// Block (b, y): if the sorted row b is the first of its id, the columns of part y of the sum.
extern "C" __global__ void __launch_bounds__(128) coda_embedding_sums(const EmbeddingParams p) {
  const long long first = blockIdx.x;
  const long long id = id_of(p, p.order[first]);
  if (id < 0 || id >= p.vocab) {
    if (threadIdx.x == 0) *p.error_flag = 1;
    return;
  }
  if (first > 0 && id_of(p, p.order[first - 1]) == id) return;
  long long last = first;  // behind the rows of this id; 128 at once
  for (int found = 128; found == 128; last += found) {
    const long long i = last + threadIdx.x;
    found = __syncthreads_count(i < p.rows && id_of(p, p.order[i]) == id);
  }
  const long long c = (blockIdx.y * 128ll + threadIdx.x) * kColumns;
  if (c >= p.columns) return;
  float sum[kColumns] = {};
  const long long at = id * p.table_stride + c;
#pragma unroll 4
  for (long long i = first; i < last; ++i) {
    float values[kColumns];
    load_chunk<X>(p.x, p.order[i] * p.x_stride + c, values);
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sum[k] = op::add(sum[k], values[k]);
  }
  if (p.accumulates) {
    float before[kColumns];
    load_chunk<F32>(p.table, at, before);
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sum[k] = op::add(before[k], sum[k]);
  }
  store_chunk<F32>(p.table, at, sum);
}

}  // namespace coda_device
