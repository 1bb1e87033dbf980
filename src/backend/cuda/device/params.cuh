// Kernel parameters: the one file that host code and device code both include, so that their
// layouts cannot drift apart. Plain types only; no C++ library, no CUDA header.
#pragma once

namespace coda_device {

/// The 128 opaque bytes that cuTensorMapEncodeTiled writes.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

constexpr int kMaxBlocks = 8;     ///< row blocks that one operand or output may be made of
constexpr int kMaxSms = 192;      ///< size of the table SM -> GPC
constexpr int kMaxGroups = 16;    ///< GPCs (and lone TPCs) told apart
constexpr int kTeam = 8;          ///< workers of one GPC that take a block of tiles together

/// An axis cut into blocks that live in different buffers. Tiles never cross a block's edge, so a
/// block's last tile may be ragged. With one block: first = {0, tiles}.
struct BlockAxis {
  int first[kMaxBlocks + 1];    ///< first tile (or k-block) of each block; [count] = total
  int offset[kMaxBlocks + 1];   ///< first element of each block along the whole axis
};

/// How workers (clusters) share the tiles. All counts are in cluster tiles and workers.
struct Schedule {
  int m, n, k;
  int tiles_m, tiles_n;   ///< grid of cluster tiles
  int k_blocks;           ///< ceil(k / tile_k)
  int workers;            ///< clusters launched; each claims one worker id
  int whole_tiles;        ///< places 0 .. whole_tiles-1 in the order of tiles run whole
  int split_tiles;        ///< the places after, whose k-blocks are dealt out evenly
  int split_workers;      ///< over this many workers; each gets at least one
  int team_workers;       ///< workers 0 .. team_workers-1 stand in teams of kTeam in one GPC
  int team_tiles;         ///< places that teams take; the other workers take the rest
  int group;              ///< width of a column group in tiles (see decode_tile)
  int flush_period;       ///< k-blocks between two steps of a deferred epilogue
  int claim_groups;       ///< GPC groups to claim from; 0: worker ids in order of arrival
  BlockAxis axis_m, axis_n, axis_k;
  unsigned char sm_group[kMaxSms];          ///< GPC group of an SM
  unsigned char worker_at[kMaxSms];         ///< worker id of each place of each group
  unsigned short group_first[kMaxGroups];   ///< where a group's places begin in worker_at
  unsigned short group_size[kMaxGroups];    ///< sizes add up to workers
  unsigned* claims;       ///< kMaxGroups + 2 counters, zero between launches; one set a stream
  float* partials;        ///< fp32 accumulators handed over by workers of split tiles
  unsigned* flags;        ///< one a (worker, CTA, warpgroup): "its partial is in memory"; zero between launches
};

/// Parameters of the epilogue that only stores C (epilogue_store.cuh).
struct StoreParams {
  TensorMap c[kMaxBlocks];          ///< one a block of C; unused by the direct path
  void* pointer[kMaxBlocks];        ///< first element of each block
  long long row_stride[kMaxBlocks]; ///< elements
  int rows[kMaxBlocks];
  int columns[kMaxBlocks];
};

/// Operands of the mainloop.
struct OperandParams {
  TensorMap a;
  TensorMap b[kMaxBlocks];
};

/// What a generated epilogue reads or writes: row r begins at pointer + r * stride elements.
struct EpilogueOperand {
  void* pointer;
  long long stride;
  long long rows;
};

/// A matrix of the plain kernel that runs a generated epilogue (epilogue_plain.cuh): element (i, p)
/// is at pointer[i * row + p * column]. Outside rows x columns it is zero.
struct PlainOperand {
  const void* pointer;
  long long row, column;
  int rows, columns;
};

/// Parameters of the plain kernel (plain_gemm.cuh): any strides, any types.
struct PlainParams {
  const void* a;    ///< element (i, p) at a[i * a_row + p * a_column]
  const void* b;    ///< element (j, p) at b[j * b_row + p * b_column]
  void* c;          ///< element (i, j) at c[i * c_row + j]
  long long a_row, a_column, b_row, b_column, c_row;
  int m, n, k;
};

}  // namespace coda_device
