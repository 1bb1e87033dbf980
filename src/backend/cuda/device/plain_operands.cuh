// What the kernels share that run a generated epilogue without the mainloop. The prelude defines
// InputA, InputB and kMatricesB = blocks of columns * kPartsN * kPlainLists.
#pragma once

namespace coda_device {

struct PlainFragmentParams {
  PlainOperand a;                ///< rows of the product by k
  PlainOperand b[kMatricesB];    ///< columns of the product by k: [block][part][list along k]
  int k_first[kPlainLists + 1];  ///< where each matrix of the list begins along k
};

/// The epilogue of a CTA's one tile.
CODA_DEVICE void run_epilogue(const EpilogueParams& params, const Schedule& schedule,
                              const Shared& shared, const Tile& tile, Accumulators& acc) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Epilogue epilogue(params, schedule, shared.staging(warp), warp / 4 * kWgRows + warp % 4 * 16,
                    lane);
  RingPosition ring;
  epilogue.prepare(tile);
  epilogue.finish(acc, tile, shared, ring);
  epilogue.drain();
}

}  // namespace coda_device
