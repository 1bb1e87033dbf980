// Epilogue: store C, converted to kOutput, or add to it (kAccumulate, fp32 only).
// It is also the model for generated epilogues: same members, same rules (docs/cuda.md, "What an
// epilogue may assume"). Three ways, fixed by the prelude:
//   deferred  16-bit outputs: finish() only packs the accumulators into half as many registers;
//             the tile leaves, 64 columns a step, while the next tile's mainloop runs.
//   staged    32-bit outputs, and tiles too wide to defer: finish() sends the tile off at once.
//   direct    C that TMA cannot address: plain guarded stores.
#pragma once

namespace coda_device {

template <bool kFirst, class First, class Second>
struct SelectType {
  using Type = First;
};
template <class First, class Second>
struct SelectType<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, class First, class Second>
using Select = typename SelectType<kFirst, First, Second>::Type;

class Epilogue {
 public:
  using Params = StoreParams;

  /// Ring stages that the producer fills for each tile after its k-blocks (tile operands).
  static constexpr int kRingLoads = 0;
  /// Producer: starts load number `load` into the stage at `destination`, signalling `full`.
  static CODA_DEVICE void load(const Params&, const Tile&, int /*load*/, u32 /*full*/,
                               u32 /*destination*/) {}

  CODA_DEVICE Epilogue(const Params& params, const Schedule& schedule, u32 staging, int warp_row,
                       int lane)
      : p_(params), s_(schedule), staging_(staging), warp_row_(warp_row), lane_(lane) {
    // Where this lane's 16-byte unit 0 lies in a [16 rows, 128 bytes] box with 128-byte swizzle:
    // unit u of row r is stored at unit u ^ (r % 8).
    row_ = kWide ? lane / 4 : lane % 16;
    row_address_ = row_ * 128;
    swizzle_ = row_ & 7;
  }

  /// Called while the tile's last k-block is multiplied: starts what finish() would wait for.
  CODA_DEVICE void prepare(const Tile&) {}

  /// Takes the finished accumulators; on return they may be overwritten. Nothing is held from the
  /// tile before (flush). A generated epilogue with
  /// kRingLoads > 0 finds its tile operands at `ring`, releases each stage and advances.
  CODA_DEVICE void finish(Accumulators& acc, const Tile& tile, const Shared&, RingPosition&) {
    if constexpr (kDeferred) {
#pragma unroll
      for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kTileN / 4; ++j) {
          packed_[i * (kTileN / 4) + j] = pack(acc[i][2 * j], acc[i][2 * j + 1]);
        }
      }
      tile_row_ = tile.c_row;
      tile_column_ = tile.c_column;
      block_ = tile.c_block;
      next_step_ = 0;
      countdown_ = s_.flush_period;
    } else if constexpr (kDirect) {
      store_direct(acc, tile);
    } else {
      store_staged(acc, tile);
    }
  }

  /// Called once a k-block, between the issue of its wgmmas and the wait for those before.
  CODA_DEVICE void overlap() {
    if constexpr (kDeferred) {
      if (--countdown_ == 0) {
        countdown_ = s_.flush_period;
        if (next_step_ < kSteps) step();
      }
    }
  }

  /// Sends what is still held, and so frees registers.
  CODA_DEVICE void flush() {
    if constexpr (kDeferred) {
      while (next_step_ < kSteps) step();
    }
  }

  /// After the last tile: everything has left registers, and shared memory has been read.
  CODA_DEVICE void drain() {
    flush();
    if constexpr (!kDirect) {
      bulk_wait_group_read<0>();
    }
  }

 private:
  static constexpr bool kWide = kOutput == Type::f32;
  using Element = Select<kWide, float, u16>;
  static constexpr int kChunk = kWide ? 32 : 64;   // columns of a staging buffer: 128 bytes
  static constexpr int kChunksAcross = kTileN / kChunk;
  static constexpr int kSteps = kDeferred ? kWgBlocks * kChunksAcross : 0;
  static_assert(!(kDeferred && (kWide || kDirect)), "deferring holds 16-bit values for TMA");

  static CODA_DEVICE u32 pack(float low, float high) {
    return kOutput == Type::bf16 ? pack_bf16(low, high) : pack_f16(low, high);
  }

  /// Step kStep sends 64 columns of 16 rows. Register indices must be constants, hence the switch.
  CODA_DEVICE void step() {
    switch (next_step_++) {
      case 0: send_packed<0>(); break;
      case 1: send_packed<1>(); break;
      case 2: send_packed<2>(); break;
      case 3: send_packed<3>(); break;
    }
    static_assert(kSteps <= 4, "add a case a step");
  }

  template <int kStep>
  CODA_DEVICE void send_packed() {
    if constexpr (kStep < kSteps) {
      constexpr int kBlock = kStep / kChunksAcross;
      constexpr int kAcross = kStep % kChunksAcross;
      const u32 buffer = acquire_buffer(kStep);
#pragma unroll
      for (int i = 0; i < 4; ++i) {   // 16 columns at a time: n8-blocks 2 i and 2 i + 1
        const int base = kBlock * (kTileN / 4) + kAcross * 16 + i * 4;
        store_matrix_x4(unit_address(buffer, 2 * i + lane_ / 16), packed_[base], packed_[base + 1],
                        packed_[base + 2], packed_[base + 3]);
      }
      send(buffer, block_, tile_row_ + kBlock * 64, tile_column_ + kAcross * kChunk);
    }
  }

  CODA_DEVICE void store_staged(Accumulators& acc, const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
      for (int across = 0; across < kChunksAcross; ++across) {
        const u32 buffer = acquire_buffer(across);
        const float* values = &acc[i][across * (kChunk / 2)];
        if constexpr (kWide) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {   // n8-block j: two floats of row r, two of row r + 8
            const u32 address = unit_address(buffer, 2 * j + (lane_ & 3) / 2) + (lane_ & 1) * 8;
            store_shared_v2(address, values[4 * j], values[4 * j + 1]);
            store_shared_v2(address + 8 * 128, values[4 * j + 2], values[4 * j + 3]);
          }
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            store_matrix_x4(unit_address(buffer, 2 * j + lane_ / 16),
                            pack(values[8 * j], values[8 * j + 1]),
                            pack(values[8 * j + 2], values[8 * j + 3]),
                            pack(values[8 * j + 4], values[8 * j + 5]),
                            pack(values[8 * j + 6], values[8 * j + 7]));
          }
        }
        send(buffer, tile.c_block, tile.c_row + i * 64, tile.c_column + across * kChunk);
      }
    }
  }

  CODA_DEVICE void store_direct(Accumulators& acc, const Tile& tile) {
    const int rows = p_.rows[tile.c_block];
    const int first = tile.c_column + (lane_ & 3) * 2;      // this thread's first column
    const int width = p_.columns[tile.c_block] - first;     // columns from there to the edge
#pragma unroll
    for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.c_row + warp_row_ + i * 64 + lane_ / 4 + half * 8;
        if (row >= rows) continue;
        Element* c = static_cast<Element*>(p_.pointer[tile.c_block]) +
                     row * p_.row_stride[tile.c_block] + first;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (8 * j + e < width) store_element(c + 8 * j + e, acc[i][4 * j + 2 * half + e]);
          }
        }
      }
    }
  }

  static CODA_DEVICE void store_element(float* c, float value) {
    if constexpr (kAccumulate) {
      reduce_add(c, value);
    } else {
      *c = value;
    }
  }
  static CODA_DEVICE void store_element(u16* c, float value) {
    *c = static_cast<u16>(pack(value, 0.0f));
  }

  CODA_DEVICE u32 unit_address(u32 buffer, int unit) const {
    return buffer + row_address_ + ((unit ^ swizzle_) << 4);
  }

  /// Two buffers a warp, used in turn; a tile has an even number of chunks or starts over at buffer
  /// 0 with nothing pending but the other one. All lanes wait; the one that sends has what to wait for.
  CODA_DEVICE u32 acquire_buffer(int index) {
    bulk_wait_group_read<kChunksAcross % 2 == 0 ? 1 : 0>();
    __syncwarp();
    return staging_ + (index & 1) * kStagingBytes;
  }

  CODA_DEVICE void send(u32 buffer, int block, int row, int column) {
    fence_proxy_async();
    __syncwarp();
    const TensorMap* map = &p_.c[block];
    if constexpr (kAccumulate) {
      warp_tma_reduce_add_2d(map, buffer, column, row + warp_row_);
    } else {
      warp_tma_store_2d(map, buffer, column, row + warp_row_);
    }
  }

  const Params& p_;
  const Schedule& s_;
  u32 staging_;
  int warp_row_;
  int lane_;
  int row_;
  u32 row_address_;
  int swizzle_;

  u32 packed_[kDeferred ? kWgBlocks * kTileN / 4 : 1];
  int tile_row_ = 0;
  int tile_column_ = 0;
  int block_ = 0;
  int next_step_ = kSteps;   // kSteps: nothing held
  int countdown_ = 1 << 30;
};

using EpilogueParams = Epilogue::Params;

}  // namespace coda_device
