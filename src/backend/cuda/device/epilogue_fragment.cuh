// What generated epilogues are made of (epilogue_source.cpp). They work on chunks: a few columns of
// the 16 rows that a warp holds. A lane's values of a chunk lie in an array, and the layout L says
// where: values run over groups of 4 L columns; of each group a lane holds L neighbouring columns, at
// L (lane % 4), of row lane / 4, then the same of row lane / 4 + 8.
//   L = 2  the accumulator's own fragment (ring.cuh)
//   L = 1  one of each interleaved pair; L = 4 pairs put together
//   L = 0  every column in every lane: sums of segments
#pragma once

namespace coda_device {

/// Value x: which of the lane's two rows, and which column of the chunk.
template <int L>
CODA_DEVICE int row_of(int x) {
  return L == 0 ? x % 2 : x / L % 2;
}
template <int L>
CODA_DEVICE int column_of(int x, int lane) {
  return L == 0 ? x / 2 : x / (2 * L) * (4 * L) + (lane & 3) * L + x % L;
}

/// The lane's two rows of a chunk: where they are and whether they exist.
struct Rows {
  int first;      ///< row of the window; the other is 8 below
  bool in[2];
  CODA_DEVICE int at(int half) const { return first + 8 * half; }
};

/// A complete vector, one value a row of the lane's two.
template <class Element>
CODA_DEVICE void load_rows(float (&values)[2], const EpilogueOperand& from, const Rows& rows,
                           int row_offset) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    values[h] = rows.in[h] ? Element::load(from.pointer, (rows.at(h) + row_offset) * from.stride)
                           : 0.0f;
  }
}
/// Targets as columns counted from `first`, -1 or below: none there.
template <bool kI64>
CODA_DEVICE void load_targets(int (&targets)[2], const EpilogueOperand& from, const Rows& rows,
                              int row_offset, long long ignore_index, int first) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    targets[h] = -1;
    if (rows.in[h]) {
      const long long target =
          load_integer(from.pointer, (rows.at(h) + row_offset) * from.stride, kI64);
      const bool is_column = target != ignore_index && target >= first && target < 0x7fffffff;
      targets[h] = is_column ? static_cast<int>(target) - first : -1;
    }
  }
}
/// Of what there is one a column that the lane holds: value x of the tile goes with y_of<L>(x), which
/// is so many columns beside the lane's first.
template <int L>
CODA_DEVICE int y_of(int x) {
  return L == 0 ? x / 2 : x / (2 * L) * L + x % L;
}
template <int L>
CODA_DEVICE int columns_ahead(int y) {
  constexpr int kTogether = L == 0 ? 1 : L;
  return L == 0 ? y : y / kTogether * (4 * kTogether) + y % kTogether;
}
// Two neighbouring elements at an even index, from memory aligned to both.
CODA_DEVICE void load_two(Bf16, const void* pointer, long long index, float& low, float& high) {
  const u32 both = *reinterpret_cast<const u32*>(static_cast<const u16*>(pointer) + index);
  low = unpack_bf16(static_cast<u16>(both & 0xffff));
  high = unpack_bf16(static_cast<u16>(both >> 16));
}
CODA_DEVICE void load_two(F16, const void* pointer, long long index, float& low, float& high) {
  const u32 both = *reinterpret_cast<const u32*>(static_cast<const u16*>(pointer) + index);
  low = unpack_f16(static_cast<u16>(both & 0xffff));
  high = unpack_f16(static_cast<u16>(both >> 16));
}
struct alignas(8) TwoFloats {
  float low, high;
};
CODA_DEVICE void load_two(F32, const void* pointer, long long index, float& low, float& high) {
  const TwoFloats both =
      *reinterpret_cast<const TwoFloats*>(static_cast<const float*>(pointer) + index);
  low = both.low;
  high = both.high;
}
CODA_DEVICE void store_two(Bf16, void* pointer, long long index, float low, float high) {
  *reinterpret_cast<u32*>(static_cast<u16*>(pointer) + index) = pack_bf16(low, high);
}
CODA_DEVICE void store_two(F16, void* pointer, long long index, float low, float high) {
  *reinterpret_cast<u32*>(static_cast<u16*>(pointer) + index) = pack_f16(low, high);
}
CODA_DEVICE void store_two(F32, void* pointer, long long index, float low, float high) {
  *reinterpret_cast<TwoFloats*>(static_cast<float*>(pointer) + index) = {low, high};
}

/// A row vector: kCount columns of the chunk that begins at `column`.
template <class Element, int L, int kCount, bool kRagged>
CODA_DEVICE void load_columns(float* values, const EpilogueOperand& from, int column, int width,
                              int column_offset, int lane) {
  // One address; what follows are constants beside it.
  const void* start = Element::at(from.pointer, column_offset + column + column_of<L>(0, lane));
  constexpr int kStep = kPaired && L >= 2 ? 2 : 1;
#pragma unroll
  for (int y = 0; y < kCount; y += kStep) {
    const int ahead = columns_ahead<L>(y);
    const bool in = !kRagged || column + column_of<L>(0, lane) + ahead < width;
    values[y] = 0.0f;
    if constexpr (kStep == 2) {
      values[y + 1] = 0.0f;
      if (in) load_two(Element{}, start, ahead, values[y], values[y + 1]);
    } else {
      if (in) values[y] = Element::load(start, ahead);
    }
  }
}
/// Cosines and sines of both rows for the frequencies of a chunk's first half head, from a table of
/// rows of 2 kHalf floats: cosines, then sines. kCount a row.
template <int L, int kCount, int kHalf>
CODA_DEVICE void load_angles(float (&cosine)[2][kCount], float (&sine)[2][kCount],
                             const EpilogueOperand& table, const Rows& rows, int row_offset, int lane) {
  constexpr int kStep = L >= 2 && kHalf % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const void* start =
        F32::at(table.pointer, (rows.at(h) + row_offset) * table.stride + column_of<L>(0, lane));
#pragma unroll
    for (int k = 0; k < kCount; k += kStep) {
      const int ahead = columns_ahead<L>(k);
#pragma unroll
      for (int e = 0; e < kStep; ++e) {
        cosine[h][k + e] = 1.0f;
        sine[h][k + e] = 0.0f;
      }
      if (!rows.in[h]) continue;
      if constexpr (kStep == 2) {
        load_two(F32{}, start, ahead, cosine[h][k], cosine[h][k + 1]);
        load_two(F32{}, start, ahead + kHalf, sine[h][k], sine[h][k + 1]);
      } else {
        cosine[h][k] = F32::load(start, ahead);
        sine[h][k] = F32::load(start, ahead + kHalf);
      }
    }
  }
}

/// One tile operand, direct and guarded. kRagged: columns may end inside the chunk. kPaired (of the
/// generated text): every pair of columns is aligned; otherwise any stride and alignment.
template <class Element, int L, int kCount, bool kRagged>
CODA_DEVICE void load_chunk(float* values, const EpilogueOperand& from, const Rows& rows,
                            int row_offset, int column, int width, int column_offset, int lane) {
  constexpr int kStep = kPaired && L >= 2 ? 2 : 1;
#pragma unroll
  for (int x = 0; x < kCount; x += kStep) {
    const int h = row_of<L>(x);
    const int c = column + column_of<L>(x, lane);
    const bool in = rows.in[h] && (!kRagged || c < width);
    const long long at = (rows.at(h) + row_offset) * from.stride + column_offset + c;
    values[x] = 0.0f;
    if constexpr (kStep == 2) {
      values[x + 1] = 0.0f;
      if (in) load_two(Element{}, from.pointer, at, values[x], values[x + 1]);
    } else {
      if (in) values[x] = Element::load(from.pointer, at);
    }
  }
}

/// A chunk of a 16-bit tile operand in the accumulator's layout, two columns a register. Rows and
/// columns beyond the edge repeat the last ones, so that no load needs a branch; whoever stores or
/// reduces leaves them out.
template <class Element, int kCount>
CODA_DEVICE void load_batch(u32* packed, const EpilogueOperand& from, const Rows& rows, int row_count,
                            int row_offset, int column, int width, int column_offset, int lane) {
  const u16* base = static_cast<const u16*>(from.pointer) + column_offset;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = min(rows.at(h), row_count - 1) + row_offset;
    const u16* start = base + row * from.stride;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) {
      const int c = column + 8 * j + 2 * (lane & 3);
      if constexpr (kPaired) {
        packed[2 * j + h] = load_global_once(start + min(c, width - 2));
      } else {
        const u32 low = start[min(c, width - 1)];
        const u32 high = start[min(c + 1, width - 1)];
        packed[2 * j + h] = low | high << 16;
      }
    }
  }
}
template <class Element, int kCount>
CODA_DEVICE void unpack_batch(float* values, const u32* packed) {
#pragma unroll
  for (int x = 0; x < kCount; x += 2) {
    values[x] = unpack_half<Element>(static_cast<u16>(packed[x / 2] & 0xffff));
    values[x + 1] = unpack_half<Element>(static_cast<u16>(packed[x / 2] >> 16));
  }
}
template <class Element, int kCount>
CODA_DEVICE void pack_batch(u32* packed, const float* values) {
#pragma unroll
  for (int x = 0; x < kCount; x += 2) {
    packed[x / 2] = pack_pair<Element>(values[x], values[x + 1]);
  }
}
/// Rounded to 16 bits, two at a time: what packs the same pair needs no second rounding.
template <class Element, int kCount>
CODA_DEVICE void round_batch(float* rounded, const float* values) {
#pragma unroll
  for (int x = 0; x < kCount; x += 2) {
    const u32 both = pack_pair<Element>(values[x], values[x + 1]);
    rounded[x] = unpack_half<Element>(static_cast<u16>(both & 0xffff));
    rounded[x + 1] = unpack_half<Element>(static_cast<u16>(both >> 16));
  }
}
/// Columns [16 unit, 16 unit + 16) of 16 rows into a staging buffer, as TMA's 128-byte swizzle has
/// them; and out of a box.
CODA_DEVICE u32 box_address(u32 box, int unit, int lane) {
  const int row = lane % 16;
  return box + row * 128 + (((2 * unit + lane / 16) ^ (row & 7)) << 4);
}
CODA_DEVICE void stage_columns(u32 buffer, const u32* packed, int unit, int lane) {
  store_matrix_x4(box_address(buffer, unit, lane), packed[0], packed[1], packed[2], packed[3]);
}
CODA_DEVICE void read_columns(u32* packed, u32 box, int unit, int lane) {
  load_matrix_x4(box_address(box, unit, lane), packed[0], packed[1], packed[2], packed[3]);
}
/// All 64 columns.
CODA_DEVICE void stage_box(u32 buffer, const u32* packed, int lane) {
#pragma unroll
  for (int unit = 0; unit < 4; ++unit) stage_columns(buffer, packed + 4 * unit, unit, lane);
}

// ---- Tile operands through the ring of cooperative kernels: boxes of 64 columns by 64 rows, one a
// warpgroup (a slot), in the order in which the sections' loops take them.

constexpr int kBoxBytes = 4 * kStagingBytes;   // of four warps' 16 rows
constexpr int kSlotBytes = kConsumers * kBoxBytes;
constexpr int kSlots = kStageBytes / kSlotBytes;   // of a stage

/// Where the warp's 16 rows of the box `ahead` slots from here lie, once they are there.
CODA_DEVICE u32 open_slot(const Shared& shared, RingPosition ring, int slot, int ahead, int warp) {
  int place = slot + ahead;
  if (place >= kSlots) {
    place -= kSlots;
    ring.advance();
  }
  mbarrier_wait(shared.full(ring.stage), ring.parity);
  return shared.a(ring.stage) + place * kSlotBytes + warp * kStagingBytes;
}
CODA_DEVICE void release_read_stage(const Shared& shared, RingPosition& ring, int lane) {
  // These were ordinary reads, and the copy engine writes here next.
  fence_proxy_async();
  __syncwarp();
  release_stage(shared, ring.stage, lane);
  ring.advance();
}
/// The warp is done with `count` slots.
CODA_DEVICE void close_slots(const Shared& shared, RingPosition& ring, int& slot, int count, int lane) {
  slot += count;
  if (slot >= kSlots) {
    release_read_stage(shared, ring, lane);
    slot -= kSlots;
  }
}

/// Block i of what there is for each, in registers: those have no index at run time.
template <class T>
CODA_DEVICE T of_block(const T (&rows)[kWgBlocks][2], int i, int half) {
  T value = rows[0][half];
#pragma unroll
  for (int block = 1; block < kWgBlocks; ++block) {
    if (i == block) value = rows[block][half];
  }
  return value;
}
template <int kCount>
CODA_DEVICE void clear_held(u32 (&held)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) held[j] = 0;
}
template <int kA, int kB>
constexpr int kLarger = kA > kB ? kA : kB;
/// Registers of a tile that waits: the next chunk comes first.
template <int kChunk, int kCount>
CODA_DEVICE void next_held(u32 (&held)[kCount]) {
  keep_branch();   // these moves as selections would cost every step
#pragma unroll
  for (int j = 0; j < kCount - kChunk; ++j) held[j] = held[j + kChunk];
}

/// A section runs as a loop over chunks that always works on the first accumulators: here the rest
/// moves up, in each part. A loop costs these moves, and saves most of the code.
template <int kColumns>
CODA_DEVICE void next_columns(float (&acc)[kTileN / 2]) {
  constexpr int kPart = kTileN / kPartsN / 2;
  constexpr int kDone = kColumns / 2;
#pragma unroll
  for (int part = 0; part < kPartsN; ++part) {
#pragma unroll
    for (int j = 0; j < kPart - kDone; ++j) acc[part * kPart + j] = acc[part * kPart + j + kDone];
  }
}
CODA_DEVICE void next_block(Accumulators& acc) {
#pragma unroll
  for (int i = 1; i < kWgBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) acc[i - 1][j] = acc[i][j];
  }
}

/// kAccumulate: added to what is there, fp32.
template <class Element, int L, int kCount, bool kRagged, bool kAccumulate>
CODA_DEVICE void store_chunk(const float* values, const EpilogueOperand& to, const Rows& rows,
                             int column, int width, int column_offset, int lane) {
  constexpr int kStep = kPaired && L >= 2 ? 2 : 1;
#pragma unroll
  for (int x = 0; x < kCount; x += kStep) {
    const int h = row_of<L>(x);
    const int c = column + column_of<L>(x, lane);
    const bool in = rows.in[h] && (!kRagged || c < width) && (L > 0 || (lane & 3) == 0);
    const long long at = rows.at(h) * to.stride + column_offset + c;
    if (!in) continue;
    if constexpr (kAccumulate) {  // in L2: a load here would wait for the store before it
      float* sum = static_cast<float*>(to.pointer) + at;
      if constexpr (kStep == 2) {
        reduce_add_two(sum, values[x], values[x + 1]);
      } else {
        reduce_add(sum, values[x]);
      }
    } else if constexpr (kStep == 2) {
      store_two(Element{}, to.pointer, at, values[x], values[x + 1]);
    } else {
      Element::store(to.pointer, at, values[x]);
    }
  }
}

}  // namespace coda_device
