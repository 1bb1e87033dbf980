// Attention of new rows to a cache of keys and values (cached_attention in coda/graph.h), on the
// CPU: fp32 math on f32, bf16 or f16 memory. Made for one new row, where the time is that of
// reading the cache once: keys of a head lie one behind the other, and all query heads that share
// them go over them together.
//
// Keys are taken in chunks of fixed size, counted from the first row of the sequence. A chunk gives
// (max, sum of exponentials, weighted sum of values), and chunks are merged in ascending order. So
// the bits of a row depend neither on threads nor on how many rows a run has: a prompt run whole,
// in parts or row by row gives the same.
#pragma once

#include "backend/cpu/opaque_kernels.h"

namespace coda::cpu {

/// Shared out over sequences, key-value heads and blocks of queries; if these are few, over chunks
/// of keys too.
extern const OpaqueKernel kCachedAttention;

}  // namespace coda::cpu
