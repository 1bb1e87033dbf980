// Epilogue operands through the ring (docs/cuda.md, section 4): C = A B^T + D, with D loaded by the
// producer into ring stages after a tile's k-blocks. Integers, so that every sum is exact.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/device_check.h"
#include "backend/cuda/device_sources.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/gpu_test.h"
#include "backend/cuda/kernel_store.h"
#include "backend/cuda/nvrtc.h"
#include "base/check.h"
#include "coda/error.h"

namespace coda::cuda {
namespace {

constexpr const char* kAddEpilogue = R"(
namespace coda_device {

struct AddParams {
  TensorMap d;   // bf16 [M, N], boxes of 64 columns by kTileM rows
  float* c;
  long long stride;
  int rows, columns;
};

class Epilogue {
 public:
  using Params = AddParams;
  static constexpr int kBoxes = kTileN / 64;
  static constexpr u32 kBoxBytes = kTileM * 128;
  static constexpr int kPerLoad = kStageBytes / kBoxBytes;
  static constexpr int kRingLoads = (kBoxes + kPerLoad - 1) / kPerLoad;

  static CODA_DEVICE int boxes_of(int load) { return min(kPerLoad, kBoxes - load * kPerLoad); }

  static CODA_DEVICE void load(const Params& p, const Tile& tile, int load, u32 full,
                               u32 destination) {
    mbarrier_arrive_expect(full, boxes_of(load) * kBoxBytes);
    for (int box = 0; box < boxes_of(load); ++box) {
      tma_load_2d(&p.d, full, destination + box * kBoxBytes,
                  tile.c_column + (load * kPerLoad + box) * 64, tile.c_row);
    }
  }

  CODA_DEVICE Epilogue(const Params& params, const Schedule&, u32, int warp_row, int lane)
      : p_(params), row_(warp_row + lane / 4), lane_(lane) {}

  CODA_DEVICE void finish(Accumulators& acc, const Tile& tile, const Shared& shared,
                          RingPosition& ring) {
#pragma unroll
    for (int load = 0; load < kRingLoads; ++load) {
      mbarrier_wait(shared.full(ring.stage), ring.parity);
#pragma unroll
      for (int box = 0; box < kPerLoad; ++box) {
        if (load * kPerLoad + box < kBoxes) {
          add_box(acc, load * kPerLoad + box, shared.a(ring.stage) + box * kBoxBytes);
        }
      }
      // These were ordinary reads, and the copy engine writes here next.
      fence_proxy_async();
      __syncwarp();
      release_stage(shared, ring.stage, lane_);
      ring.advance();
    }
    const int first = tile.c_column + 2 * (lane_ & 3);
    const int width = p_.columns - first;   // even, as are all columns here
#pragma unroll
    for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.c_row + row_ + 64 * i + 8 * half;
        if (row >= p_.rows) continue;
        float* c = p_.c + row * p_.stride + first;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) {
          if (8 * j < width) {
            *reinterpret_cast<float2*>(c + 8 * j) =
                make_float2(acc[i][4 * j + 2 * half], acc[i][4 * j + 2 * half + 1]);
          }
        }
      }
    }
  }
  CODA_DEVICE void prepare(const Tile&) {}
  CODA_DEVICE void overlap() {}
  CODA_DEVICE void flush() {}
  CODA_DEVICE void drain() {}

 private:
  CODA_DEVICE void add_box(Accumulators& acc, int box, u32 address) const {
#pragma unroll
    for (int i = 0; i < kWgBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = row_ + 64 * i + 8 * half;
          const u32 unit = j ^ (row & 7);   // 128-byte swizzle
          const u32 pair = load_shared_u32(address + row * 128 + unit * 16 + (lane_ & 3) * 4);
          float* to = &acc[i][4 * (box * 8 + j) + 2 * half];
          to[0] += unpack_bf16(static_cast<u16>(pair));
          to[1] += unpack_bf16(static_cast<u16>(pair >> 16));
        }
      }
    }
  }

  const Params& p_;
  int row_;    // of this thread's first accumulator, inside the tile
  int lane_;
};

using EpilogueParams = Epilogue::Params;

}  // namespace coda_device
)";

/// AddParams above.
struct AddParams {
  coda_device::TensorMap d;
  float* c;
  long long stride;
  int rows, columns;
};

KernelSource add_source(const GemmConfig& config) {
  GemmVariant variant;
  variant.output = DType::f32;
  KernelSource source = gemm_source(config, variant);
  const std::string stored = device_source("epilogue_store.cuh");
  const auto at = source.text.find(stored);
  internal_check(at != std::string::npos, "ring_load_test: no epilogue in the text");
  source.text.replace(at, stored.size(), kAddEpilogue);
  source.name = std::string("add_") + config.name;
  return source;
}

/// All but those with 192 accumulators a thread, which leave no registers to add with.
std::vector<const GemmConfig*> configs() {
  std::vector<const GemmConfig*> chosen;
  for (const auto& config : gemm_candidates()) {
    if (config.wg_blocks * config.tile_n / 2 < 192) chosen.push_back(&config);
  }
  return chosen;
}

TEST(CudaRingLoads, CompileForEveryConfiguration) {
  if (!Nvrtc::why_not().empty()) GTEST_SKIP() << Nvrtc::why_not();
  for (const GemmConfig* config : configs()) {
    try {
      compile_checked(add_source(*config));
    } catch (const BackendError& error) {
      ADD_FAILURE() << config->name << ": " << error.what();
    }
  }
}

class CudaRingLoadsOnGpu : public GpuTest {};

TEST_F(CudaRingLoadsOnGpu, AddAMatrixExactly) {
  const Stream stream;
  const GemmWorkspace workspace(stream);
  const DeviceCheck check(stream);
  std::vector<KernelSource> sources;
  for (const GemmConfig* config : configs()) sources.push_back(add_source(*config));
  KernelStore::get().prepare(sources);

  struct Size {
    std::int64_t m, n, k;
  };
  // Whole tiles and split ones; a single ragged tile; fewer k-blocks than ring stages.
  for (const Size& size : {Size{2300, 2440, 520}, Size{100, 72, 200}, Size{4100, 4104, 64}}) {
    GemmShape shape;
    shape.m = size.m;
    shape.n = size.n;
    shape.k = size.k;
    shape.output = DType::f32;
    const DeviceBuffer a(shape.m * shape.k * 2), b(shape.n * shape.k * 2), d(shape.m * shape.n * 2);
    const std::int64_t bytes = shape.m * shape.n * 4;
    DeviceBuffer product(bytes), sum(bytes);
    check.fill(a.pointer(), DType::bf16, shape.m * shape.k, 1, true);
    check.fill(b.pointer(), DType::bf16, shape.n * shape.k, 2, true);
    check.fill(d.pointer(), DType::bf16, shape.m * shape.n, 3, true);
    GemmOperands operands;
    operands.a = {a.pointer(), shape.m, shape.k, shape.k};
    operands.b = {{b.pointer(), shape.n, shape.k, shape.k}};
    operands.c = {{product.pointer(), shape.m, shape.n, shape.n}};

    product.fill(0xff, stream);
    Gemm(shape, operands, workspace).launch(stream);
    std::vector<float> expected(shape.m * shape.n), got(shape.m * shape.n);
    std::vector<std::uint16_t> added(shape.m * shape.n);
    product.download(expected.data(), bytes, stream);
    d.download(added.data(), bytes / 2, stream);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(added[i]) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      expected[i] += value;
    }

    for (const GemmConfig* chosen : configs()) {
      const GemmConfig& config = *chosen;
      const Kernel kernel = KernelStore::get().load(add_source(config));
      coda_device::OperandParams maps{};
      maps.a = encode_operand(operands.a, DType::bf16,
                              config.tile_m() / (config.cluster_n > 1 ? config.cluster() : 1));
      maps.b[0] = encode_operand(operands.b[0], DType::bf16,
                                 config.tile_n / (config.cluster_m > 1 ? config.cluster() : 1));
      AddParams params{};
      params.d =
          encode_operand({d.pointer(), shape.m, shape.n, shape.n}, DType::bf16, config.tile_m());
      params.c = reinterpret_cast<float*>(sum.pointer());
      params.stride = shape.n;
      params.rows = static_cast<int>(shape.m);
      params.columns = static_cast<int>(shape.n);
      coda_device::Schedule schedule{};
      const auto tiles = [](std::int64_t extent, int tile) {
        return static_cast<int>((extent + tile - 1) / tile);
      };
      schedule.m = params.rows;
      schedule.n = params.columns;
      schedule.k = static_cast<int>(shape.k);
      schedule.tiles_m = tiles(shape.m, config.tile_m() * config.cluster_m);
      schedule.tiles_n = tiles(shape.n, config.tile_n * config.cluster_n);
      schedule.k_blocks = tiles(shape.k, 64);
      schedule.axis_m.first[1] = schedule.tiles_m;
      schedule.axis_n.first[1] = schedule.tiles_n;
      schedule.axis_k.first[1] = schedule.k_blocks;
      deal_tiles(schedule, config, kernel.max_active_clusters(384, config.cluster()), workspace);
      for (int run = 0; run < 3; ++run) {
        sum.fill(0xff, stream);
        kernel.launch(stream, schedule.workers * config.cluster(), 384, config.cluster(),
                      {&maps, &params, &schedule});
        sum.download(got.data(), bytes, stream);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i) wrong += !(got[i] == expected[i]);
        EXPECT_EQ(wrong, 0u) << config.name << " " << shape.m << " x " << shape.n << " x "
                             << shape.k << ", run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace coda::cuda
