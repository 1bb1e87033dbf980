// Attention of a run's queries to keys and values of earlier runs, which lie in a cache, and to
// its own, which go behind them. Two kernels: parts, whose CTAs take a block of queries and a part
// of their keys; and the sums of the parts, in ascending order. The prelude defines Element,
// kHeadDim, kPiece, the elements a lane loads at once, kWindow and kSoftcap.
//
// Queries of a sequence that share a key-value head are its rows: token t, query head h of the
// group is row t * group + h. A block is kCacheQueries of them. Eight lanes share a key; each has
// every eighth piece of its columns.
#pragma once

namespace coda_device {

constexpr int kCacheThreads = 128;
constexpr int kKeyLanes = 8;
constexpr int kKeysAtOnce = 4;  // of eight lanes
constexpr int kSlice = kKeyLanes * kPiece;  // columns that eight lanes hold at once
constexpr int kHeadSlices = (kHeadDim + kSlice - 1) / kSlice;
constexpr int kMostSlices = kCacheColumns / kSlice;
constexpr int kSlices = kHeadSlices < kMostSlices ? kHeadSlices : kMostSlices;  // of a CTA
constexpr int kCtaColumns = kSlices * kSlice;
constexpr int kColumnParts = (kHeadSlices + kSlices - 1) / kSlices;
constexpr int kCacheWarps = kCacheThreads / 32;
constexpr int kPartLanes = kMostParts / 32;  // parts of the keys that a lane of the sums has
static_assert(kCacheStep == kCacheThreads / kKeyLanes * kKeysAtOnce, "a step is one turn of all");

/// Rows [begin, end) of a sequence in this run, and what the cache has of it.
struct CachedSequence {
  int index, begin, end;
  long long past;
  bool good;  ///< all of it fits the cache
};

/// An offset, kept inside the tokens whatever the list holds.
CODA_DEVICE int cached_offset(const CachedAttentionParams& p, int i) {
  const long long value = load_integer(p.cu_seqlens, i, p.wide_offsets != 0);
  return static_cast<int>(value < 0 ? 0 : value > p.tokens ? p.tokens : value);
}
CODA_DEVICE CachedSequence cached_sequence(const CachedAttentionParams& p, int index) {
  CachedSequence s;
  s.index = index;
  s.begin = cached_offset(p, index);
  s.end = cached_offset(p, index + 1);
  s.past = load_integer(p.past, index, p.wide_past != 0);
  s.good = s.past >= 0 && s.past <= p.capacity - (s.end - s.begin);
  return s;
}

/// A sequence owns the slots from here on: at least as many as it has blocks.
CODA_DEVICE int first_slot(const CachedAttentionParams& p, int sequence) {
  return cached_offset(p, sequence) * p.group / kCacheQueries + sequence;
}

/// The last sequence for which `begins(sequence)`, of a list that never decreases; else the first.
template <class Begins>
CODA_DEVICE int last_sequence(const CachedAttentionParams& p, const Begins& begins) {
  int low = 0, high = p.sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begins(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Keys of a part, for a block that sees `seen`: no function of time, so that bits repeat.
CODA_DEVICE long long keys_of_part(const CachedAttentionParams& p, long long seen) {
  const long long steps = (seen + kCacheStep - 1) / kCacheStep;
  return (steps + p.splits - 1) / p.splits * kCacheStep;
}

/// Keys before and at row `row` of a sequence. It sees the last `window` of them.
CODA_DEVICE long long seen_by(const CachedAttentionParams& p, const CachedSequence& s, int row) {
  return s.past + row / p.group + 1;
}
/// Does a row see a key, with so many before and at it?
CODA_DEVICE bool sees(const CachedAttentionParams& p, long long seen, long long key) {
  return key < seen && (!kWindow || key >= seen - p.window);
}
/// Whole steps of keys that neither row `row` nor any after it sees.
CODA_DEVICE long long hidden_by(const CachedAttentionParams& p, const CachedSequence& s, int row) {
  const long long before = kWindow ? seen_by(p, s, row) - p.window : 0;
  return before > 0 ? before / kCacheStep * kCacheStep : 0;
}

/// Where a key or value of a sequence's head lies: in the cache, or behind it in this run.
struct CachedRows {
  CacheRows cache, own;
  long long cache_first, past;
  int own_first, column;

  CODA_DEVICE CachedRows(const CachedAttentionParams& p, const CacheRows& in_cache,
                         const CacheRows& of_run, const CachedSequence& s, int kv_head)
      : cache(in_cache),
        own(of_run),
        cache_first((static_cast<long long>(s.index) * p.kv_heads + kv_head) * p.capacity),
        past(s.past),
        own_first(s.begin),
        column(kv_head * kHeadDim) {}

  /// kPiece elements of row t from column c on; zeros unless `inside`.
  CODA_DEVICE void load(long long t, int c, bool inside, float (&x)[kPiece]) const {
#pragma unroll
    for (int e = 0; e < kPiece; ++e) x[e] = 0;
    if (!inside || c >= kHeadDim) return;
    if (t < past) {
      load_chunk<Element>(cache.pointer, (cache_first + t) * cache.stride + c, x);
    } else {
      load_chunk<Element>(own.pointer, (own_first + t - past) * own.stride + column + c, x);
    }
  }
  CODA_DEVICE void load_keys(long long key, long long end, int c,
                             float (&x)[kKeysAtOnce][kPiece]) const {
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) load(key + u, c, key + u < end, x[u]);
  }
};

struct __align__(16) CacheShared {
  float q[kCacheQueries][kHeadSlices * kSlice];  ///< zeros behind the head's columns
  float largest[kCacheWarps][kCacheQueries], total[kCacheWarps][kCacheQueries];
  float o[kCacheWarps][kCacheQueries][kCtaColumns];
};

/// Running sums of eight lanes over their keys: of each query the largest score, the sum of
/// exponentials, and this lane's columns of the weighted values.
struct RunningQueries {
  float largest[kCacheQueries], total[kCacheQueries];
  float o[kCacheQueries][kSlices][kPiece];

  CODA_DEVICE RunningQueries() {
#pragma unroll
    for (int r = 0; r < kCacheQueries; ++r) {
      largest[r] = -__int_as_float(0x7f800000);
      total[r] = 0;
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
#pragma unroll
        for (int e = 0; e < kPiece; ++e) o[r][i][e] = 0;
      }
    }
  }

  CODA_DEVICE void shrink(int r, float factor) {
    total[r] *= factor;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) o[r][i][e] *= factor;
    }
  }

  /// Scores become weights against the new largest.
  CODA_DEVICE void weigh(int r, float (&s)[kKeysAtOnce]) {
    float now = largest[r];
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) now = fmaxf(now, s[u]);
    const float origin = now == -__int_as_float(0x7f800000) ? 0.0f : now;  // no number seen yet
    shrink(r, expf(largest[r] - origin));
    largest[r] = now;
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      s[u] = expf(s[u] - origin);
      total[r] += s[u];
    }
  }

  /// Adds what lanes `other` lanes apart have; both then hold the same.
  CODA_DEVICE void add_lanes(int other) {
#pragma unroll
    for (int r = 0; r < kCacheQueries; ++r) {
      const float now = fmaxf(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], other));
      const float origin = now == -__int_as_float(0x7f800000) ? 0.0f : now;
      shrink(r, expf(largest[r] - origin));
      largest[r] = now;
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], other);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
#pragma unroll
        for (int e = 0; e < kPiece; ++e) {
          o[r][i][e] += __shfl_xor_sync(0xffffffffu, o[r][i][e], other);
        }
      }
    }
  }
};

/// Four keys of eight lanes, from `key` on: scores of every query, -inf where it must not look.
CODA_DEVICE void score_keys(const CachedAttentionParams& p,
                            const float (&q)[kCacheQueries][kHeadSlices * kSlice],
                            const CachedRows& keys, long long key, long long end,
                            const long long (&seen)[kCacheQueries],
                            float (&s)[kCacheQueries][kKeysAtOnce]) {
  const int piece = static_cast<int>(threadIdx.x) % kKeyLanes * kPiece;
#pragma unroll
  for (int r = 0; r < kCacheQueries; ++r) {
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) s[r][u] = 0;
  }
#pragma unroll 2
  for (int i = 0; i < kHeadSlices; ++i) {
    const int c = i * kSlice + piece;
    float k[kKeysAtOnce][kPiece];
    keys.load_keys(key, end, c, k);
#pragma unroll
    for (int r = 0; r < kCacheQueries; ++r) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        const float x = q[r][c + e];
#pragma unroll
        for (int u = 0; u < kKeysAtOnce; ++u) s[r][u] += x * k[u][e];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kCacheQueries; ++r) {
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
#pragma unroll
      for (int other = 1; other < kKeyLanes; other *= 2) {
        s[r][u] += __shfl_xor_sync(0xffffffffu, s[r][u], other);
      }
      s[r][u] = sees(p, seen[r], key + u) ? score_of(p, s[r][u]) : -__int_as_float(0x7f800000);
    }
  }
}

/// Sums of a CTA's warps, added in ascending order, become the part of a block's queries.
CODA_DEVICE void store_part(const CachedAttentionParams& p, long long part, int first_column,
                            const RunningQueries& sums, CacheShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int r = 0; r < kCacheQueries; ++r) {
    if (lane == 0) {
      shared.largest[warp][r] = sums.largest[r];
      shared.total[warp][r] = sums.total[r];
    }
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        if (lane < kKeyLanes) shared.o[warp][r][i * kSlice + lane * kPiece + e] = sums.o[r][i][e];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kCacheQueries; ++r) {
    float now = shared.largest[0][r];
#pragma unroll
    for (int w = 1; w < kCacheWarps; ++w) now = fmaxf(now, shared.largest[w][r]);
    const float origin = now == -__int_as_float(0x7f800000) ? 0.0f : now;
    float factor[kCacheWarps], sum = 0;
#pragma unroll
    for (int w = 0; w < kCacheWarps; ++w) {
      factor[w] = expf(shared.largest[w][r] - origin);
      sum += shared.total[w][r] * factor[w];
    }
    const long long row = part * kCacheQueries + r;
    for (int c = thread; c < kCtaColumns && first_column + c < kHeadDim; c += kCacheThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kCacheWarps; ++w) value += shared.o[w][r][c] * factor[w];
      p.part_o[row * kHeadDim + first_column + c] = value;
    }
    if (thread == 0 && first_column == 0) {
      p.part_rows[2 * row] = now;
      p.part_rows[2 * row + 1] = sum;
    }
  }
}

/// Block (x, y): columns, key-value head and slot of x; part y of the keys. Which slots and parts
/// there are is found on the device, so that a launch can be replayed on other lengths.
extern "C" __global__ void __launch_bounds__(kCacheThreads)
    coda_cached_attention_parts(const CachedAttentionParams p) {
  const int column_part = static_cast<int>(blockIdx.x) % kColumnParts;
  const int kv_head = static_cast<int>(blockIdx.x) / kColumnParts % p.kv_heads;
  const int slot = static_cast<int>(blockIdx.x) / kColumnParts / p.kv_heads;
  const CachedSequence s = cached_sequence(
      p, last_sequence(p, [&](int i) { return first_slot(p, i) <= slot; }));
  const int first = (slot - first_slot(p, s.index)) * kCacheQueries;
  const int rows = (s.end - s.begin) * p.group;
  if (first >= rows || !s.good) return;
  const int count = min(kCacheQueries, rows - first);
  const long long most = seen_by(p, s, first + count - 1);
  const long long hidden = hidden_by(p, s, first), part_keys = keys_of_part(p, most - hidden);
  const long long part_first = hidden + static_cast<long long>(blockIdx.y) * part_keys;
  if (part_first >= most) return;
  const long long part_end = part_first + part_keys < most ? part_first + part_keys : most;

  // Step 1: the queries in fp32; rows that do not exist are zeros.
  __shared__ CacheShared shared;
  for (int i = threadIdx.x; i < kCacheQueries * kHeadSlices * kSlice; i += kCacheThreads) {
    const int r = i / (kHeadSlices * kSlice), c = i % (kHeadSlices * kSlice);
    const int row = first + r, head = kv_head * p.group + row % p.group;
    const bool inside = r < count && c < kHeadDim;
    shared.q[r][c] = inside ? Element::load(p.q.pointer, (s.begin + row / p.group) * p.q.stride +
                                                      head * kHeadDim + c)
                     : 0.0f;
  }
  long long seen[kCacheQueries];
#pragma unroll
  for (int r = 0; r < kCacheQueries; ++r) seen[r] = r < count ? seen_by(p, s, first + r) : 0;
  __syncthreads();

  // Step 2: every eight lanes walk over their keys of the part, four at a time.
  const CachedRows keys(p, p.cache_k, p.k, s, kv_head), values(p, p.cache_v, p.v, s, kv_head);
  const int first_column = column_part * kCtaColumns;
  const int piece = static_cast<int>(threadIdx.x) % kKeyLanes * kPiece;
  RunningQueries sums;
  for (long long step = part_first; step < part_end; step += kCacheStep) {
    const long long key = step + static_cast<int>(threadIdx.x) / kKeyLanes * kKeysAtOnce;
    // The first values are on their way while the scores are made.
    float v[kKeysAtOnce][kPiece];
    values.load_keys(key, part_end, first_column + piece, v);
    float weights[kCacheQueries][kKeysAtOnce];
    score_keys(p, shared.q, keys, key, part_end, seen, weights);
#pragma unroll
    for (int r = 0; r < kCacheQueries; ++r) sums.weigh(r, weights[r]);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (i > 0) values.load_keys(key, part_end, first_column + i * kSlice + piece, v);
#pragma unroll
      for (int r = 0; r < kCacheQueries; ++r) {
#pragma unroll
        for (int u = 0; u < kKeysAtOnce; ++u) {
          if (!sees(p, seen[r], key + u)) continue;  // a weight of 0, but the value may be infinite
#pragma unroll
          for (int e = 0; e < kPiece; ++e) sums.o[r][i][e] += weights[r][u] * v[u][e];
        }
      }
    }
  }

  // Step 3: lanes, then warps.
#pragma unroll
  for (int other = kKeyLanes; other < 32; other *= 2) sums.add_lanes(other);
  const long long block = static_cast<long long>(slot) * p.kv_heads + kv_head;
  store_part(p, block * p.splits + blockIdx.y, first_column, sums, shared);
}

/// Do the lists say what a run may do? By the threads of one CTA.
CODA_DEVICE bool lists_are_good(const CachedAttentionParams& p) {
  bool good = load_integer(p.cu_seqlens, 0, p.wide_offsets != 0) == 0 &&
              load_integer(p.cu_seqlens, p.sequences, p.wide_offsets != 0) == p.tokens;
  for (int i = threadIdx.x; i < p.sequences; i += kCacheThreads) {
    good = good && load_integer(p.cu_seqlens, i, p.wide_offsets != 0) <=
                       load_integer(p.cu_seqlens, i + 1, p.wide_offsets != 0) &&
           cached_sequence(p, i).good;
  }
  return good;
}

/// What each part of a query counts against the largest score of all, by a warp; returns the sum of
/// their exponentials.
CODA_DEVICE float part_factors(const CachedAttentionParams& p, long long at, int parts,
                               float* factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest[kPartLanes], total[kPartLanes], most = -__int_as_float(0x7f800000), sum = 0;
#pragma unroll
  for (int i = 0; i < kPartLanes; ++i) {
    const int part = lane + 32 * i;
    const float* of = p.part_rows + 2 * (at + static_cast<long long>(kCacheQueries) * part);
    largest[i] = part < parts ? of[0] : -__int_as_float(0x7f800000);
    total[i] = part < parts ? of[1] : 0.0f;
    most = fmaxf(most, largest[i]);
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other));
  }
  const float origin = most == -__int_as_float(0x7f800000) ? 0.0f : most;
#pragma unroll
  for (int i = 0; i < kPartLanes; ++i) {
    const float own = expf(largest[i] - origin);
    factor[lane + 32 * i] = own;
    sum += total[i] * own;
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  __syncwarp();
  return sum;
}

/// A warp has one query: its parts become a row of o. The first of a group appends the token's key
/// and value to the cache, which nobody reads behind `past`.
extern "C" __global__ void __launch_bounds__(kCacheThreads)
    coda_cached_attention_sums(const CachedAttentionParams p) {
  __shared__ float factors[kCacheWarps][kMostParts];
  if (blockIdx.x == 0 && !lists_are_good(p)) *p.error_flag = 1;
  const int n_heads = p.kv_heads * p.group;
  const int query = static_cast<int>(blockIdx.x) * kCacheWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = query / n_heads, head = query % n_heads, kv_head = head / p.group;
  if (token >= p.tokens) return;
  const CachedSequence s = cached_sequence(
      p, last_sequence(p, [&](int i) { return cached_offset(p, i) <= token; }));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const long long to = token * p.o.stride + head * kHeadDim;
  if (!s.good || token < s.begin || token >= s.end) {
    for (int c = lane; c < kHeadDim; c += 32) Element::store(p.o.pointer, to + c, nan_value());
    return;
  }

  const int rows = (s.end - s.begin) * p.group;
  const int row = (token - s.begin) * p.group + head % p.group;
  const int in_block = row % kCacheQueries, first = row - in_block;
  const long long most = seen_by(p, s, min(first + kCacheQueries, rows) - 1);
  const long long hidden = hidden_by(p, s, first), part_keys = keys_of_part(p, most - hidden);
  const int parts = static_cast<int>((most - hidden + part_keys - 1) / part_keys);
  const long long slot = first_slot(p, s.index) + first / kCacheQueries;
  const long long at = (slot * p.kv_heads + kv_head) * p.splits * kCacheQueries + in_block;
  float* const factor = factors[threadIdx.x / 32];
  const float total = part_factors(p, at, parts, factor);
  for (int c = lane; c < kHeadDim; c += 32) {
    float sum = 0;
#pragma unroll 16
    for (int i = 0; i < parts; ++i) {
      sum += p.part_o[(at + kCacheQueries * i) * kHeadDim + c] * factor[i];
    }
    Element::store(p.o.pointer, to + c, sum / total);
  }
  if (head % p.group != 0) return;
  const CacheRows own[2] = {p.k, p.v}, cache[2] = {p.cache_k, p.cache_v};
  const long long cache_block = static_cast<long long>(s.index) * p.kv_heads + kv_head;
  const long long cache_row = cache_block * p.capacity + s.past + token - s.begin;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int c = lane; c < kHeadDim; c += 32) {
      Element::store(cache[i].pointer, cache_row * cache[i].stride + c,
                     Element::load(own[i].pointer, token * own[i].stride + kv_head * kHeadDim + c));
    }
  }
}

}  // namespace coda_device
