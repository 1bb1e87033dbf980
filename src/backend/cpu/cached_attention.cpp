#include "backend/cpu/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

// Instruction sets whose code would differ from a neighbour's by little are not built.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/cached_attention.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "backend/cpu/attention_kernels-inl.h"

#ifndef CODA_CACHED_ATTENTION_LAYOUT
#define CODA_CACHED_ATTENTION_LAYOUT
namespace coda::cpu {
namespace {

constexpr std::int64_t kChunk = 256;  ///< keys, and columns of a block of scores
constexpr std::int64_t kRows = 4;     ///< queries of a block: they share the keys they read
/// Rows are padded to this many columns: a vector of the widest instruction set that is built.
constexpr std::int64_t kPad = 16;

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// What the registry row's attributes mean.
struct Heads {
  std::int64_t kv_heads, group, dim, width, capacity;  ///< width: padded dim
  std::int64_t window;                                 ///< keys that a query sees at most
  float scale, softcap;                                ///< softcap: 0 is none

  explicit Heads(const Attrs& attrs)
      : kv_heads(attrs.index2),
        group(attrs.index / attrs.index2),
        dim(attrs.period),
        width(divide_up(dim, kPad) * kPad),
        capacity(attrs.hi),
        window(attrs.lo > 0 ? attrs.lo : attrs.hi),
        scale(static_cast<float>(attrs.value)),
        softcap(static_cast<float>(attrs.softcap)) {}

  /// What a block leaves behind of a chunk, or of all chunks so far: per query a weighted sum of
  /// values, then max and sum of exponentials.
  std::int64_t state_floats() const { return kRows * width + 2 * kPad; }
  /// q; scores; state of a chunk; state of all; keys or values widened.
  std::int64_t thread_floats() const {
    return kRows * width + kRows * kChunk + 2 * state_floats() + kChunk * width;
  }
};

/// Queries of one block: rows [first, first + count) of the (token, head) rows that share a
/// key-value head of a sequence, tokens outermost.
struct Block {
  std::int64_t sequence, kv_head, first, count;
  std::int64_t begin;  ///< row of the sequence's first token in this run
  std::int64_t past;
};

/// Keys before and at row i of the block. It sees the last `window` of them.
inline std::int64_t seen_by(const Heads& heads, const Block& block, std::int64_t i) {
  return block.past + (block.first + i) / heads.group + 1;
}

/// Chunks of keys [first, end) of which the block sees something.
struct Chunks {
  std::int64_t first, end;

  Chunks(const Heads& heads, const Block& block)
      : first(std::max<std::int64_t>(seen_by(heads, block, 0) - heads.window, 0) / kChunk),
        end(divide_up(seen_by(heads, block, block.count - 1), kChunk)) {}
};

/// Fewer blocks than this a thread are split by chunks of keys.
constexpr std::int64_t kBlocksPerThread = 2;

}  // namespace
}  // namespace coda::cpu
#endif  // CODA_CACHED_ATTENTION_LAYOUT

HWY_BEFORE_NAMESPACE();
namespace coda::cpu {
namespace HWY_NAMESPACE {

/// scores[r, j] = q[r] . keys[j]. One order of summation for any kCount.
template <int kCount, class T>
void score_keys(const float* HWY_RESTRICT q, std::int64_t width, const T* HWY_RESTRICT keys,
                std::int64_t n, std::int64_t dim, float* HWY_RESTRICT scores) {
  const F32 d;
  const std::int64_t step = lanes();
  for (std::int64_t j = 0; j < n; ++j, keys += dim) {
    VF sum[kCount];
    for (int r = 0; r < kCount; ++r) sum[r] = hn::Zero(d);
    for (std::int64_t c = 0; c < dim; c += step) {
      const VF key = load(keys + c);
      for (int r = 0; r < kCount; ++r) sum[r] = hn::MulAdd(load(q + r * width + c), key, sum[r]);
    }
    for (int r = 0; r < kCount; ++r)
      scores[r * kChunk + j] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
  }
}

/// kVectors vectors of o[r] = sum_j p[r, j] values[j], j ascending.
template <int kCount, int kVectors, class T>
HWY_INLINE void weigh_columns(const float* HWY_RESTRICT p, std::int64_t n,
                              const T* HWY_RESTRICT values, std::int64_t dim, float* HWY_RESTRICT o,
                              std::int64_t width) {
  const F32 d;
  const std::int64_t step = lanes();
  VF sum[kCount][kVectors];
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  for (std::int64_t j = 0; j < n; ++j, values += dim) {
    VF value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load(values + v * step);
    for (int r = 0; r < kCount; ++r) {
      const VF weight = hn::Set(d, p[r * kChunk + j]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, o + r * width + v * step);
}

template <int kCount, class T>
void weigh_values(const float* p, std::int64_t n, const T* values, std::int64_t dim, float* o,
                  std::int64_t width) {
  constexpr int kMost = kCount == 1 ? 8 : 2;  // accumulators that fit 16 registers
  const std::int64_t step = lanes();
  std::int64_t c = 0;
  for (; c + kMost * step <= dim; c += kMost * step)
    weigh_columns<kCount, kMost>(p, n, values + c, dim, o + c, width);
  for (; c < dim; c += step) weigh_columns<kCount, 1>(p, n, values + c, dim, o + c, width);
}

/// Rows [row, row + n) of a cache as memory of type T with whole vectors: where they lie, or
/// widened to `scratch`.
template <class T>
const T* rows_of(const TensorView& cache, std::int64_t row, std::int64_t, std::int64_t, float*) {
  return cache.as<const T>() + row * cache.stride;
}
template <>
const float* rows_of<float>(const TensorView& cache, std::int64_t row, std::int64_t n,
                            std::int64_t width, float* scratch) {
  if (cache.dtype == DType::f32 && cache.cols == width && cache.stride == width)
    return cache.as<const float>() + row * cache.stride;
  for (std::int64_t j = 0; j < n; ++j)
    copy_row(cache, row + j, 0, cache.cols, 1.0f, scratch + j * width, width);
  return scratch;
}

/// The state of chunk `chunk` for the block's queries: o [kRows, width], maxima, sums.
template <int kCount, class T>
void attend_chunk(const OpaqueCall& call, const Heads& heads, const Block& block,
                  std::int64_t chunk, std::int64_t width, const float* q, float* scores,
                  float* widened, float* state) {
  const std::int64_t first = chunk * kChunk;
  const std::int64_t n = std::min(kChunk, seen_by(heads, block, block.count - 1) - first);
  const std::int64_t row =
      (block.sequence * heads.kv_heads + block.kv_head) * heads.capacity + first;
  float* maxima = state + kRows * heads.width;
  float* sums = maxima + kPad;
  score_keys<kCount>(q, heads.width, rows_of<T>(call.inputs[3], row, n, width, widened), n, width,
                     scores);
  const std::int64_t end = (n + lanes() - 1) / lanes() * lanes();
  for (std::int64_t r = 0; r < kCount; ++r) {
    const bool real = r < block.count;  // of the rows that fill a block up nothing is read
    const std::int64_t last = seen_by(heads, block, r) - first;
    const std::int64_t seen = real ? std::clamp<std::int64_t>(last, 0, n) : 0;
    float* s = scores + r * kChunk;
    if (heads.softcap > 0) cap_scores(s, seen, heads.softcap);
    const std::int64_t hidden = std::clamp<std::int64_t>(last - heads.window, 0, seen);
    std::fill_n(s, hidden, -std::numeric_limits<float>::infinity());
    const float largest = max_of(s, seen);
    maxima[r] = largest;
    sums[r] = exponentials(s, seen, end, std::isinf(largest) && largest < 0 ? 0.0f : largest);
  }
  weigh_values<kCount>(scores, n, rows_of<T>(call.inputs[4], row, n, width, widened), width, state,
                       heads.width);
}

/// Which rows of a block are computed (one, or all of them) and how the cache is read.
inline void attend(const OpaqueCall& call, const Heads& heads, const Block& block,
                   std::int64_t chunk, const float* q, float* scores, float* widened,
                   float* state) {
  const TensorView &k = call.inputs[3], &v = call.inputs[4];
  const bool as_it_is = k.dtype == DType::bf16 && v.dtype == DType::bf16 &&
                        heads.dim % lanes() == 0 && k.stride == heads.dim && v.stride == heads.dim;
  const std::int64_t width = (heads.dim + lanes() - 1) / lanes() * lanes();
  if (block.count == 1 && as_it_is)
    attend_chunk<1, hwy::bfloat16_t>(call, heads, block, chunk, width, q, scores, widened, state);
  else if (block.count == 1)
    attend_chunk<1, float>(call, heads, block, chunk, width, q, scores, widened, state);
  else if (as_it_is)
    attend_chunk<kRows, hwy::bfloat16_t>(call, heads, block, chunk, width, q, scores, widened,
                                         state);
  else
    attend_chunk<kRows, float>(call, heads, block, chunk, width, q, scores, widened, state);
}

inline void load_queries(const OpaqueCall& call, const Heads& heads, const Block& block, float* q) {
  for (std::int64_t i = 0; i < block.count; ++i) {
    const std::int64_t row = block.first + i,
                       head = block.kv_head * heads.group + row % heads.group;
    copy_row(call.inputs[0], block.begin + row / heads.group, head * heads.dim, heads.dim,
             heads.scale, q + i * heads.width, heads.width);
  }
  std::fill(q + block.count * heads.width, q + kRows * heads.width, 0.0f);
}

/// Adds the state of a chunk to that of the chunks before it.
inline void merge(const Heads& heads, std::int64_t rows, const float* chunk, float* all) {
  const F32 d;
  const float* max = chunk + kRows * heads.width;
  float* all_max = all + kRows * heads.width;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (max[kPad + r] == 0) continue;  // it sees nothing of the chunk
    const float largest = std::max(all_max[r], max[r]);
    const float keep = std::exp(all_max[r] - largest), add = std::exp(max[r] - largest);
    all_max[kPad + r] = all_max[kPad + r] * keep + max[kPad + r] * add;
    all_max[r] = largest;
    const VF keeps = hn::Set(d, keep), adds = hn::Set(d, add);
    float* to = all + r * heads.width;
    const float* from = chunk + r * heads.width;
    for (std::int64_t c = 0; c < heads.width; c += lanes())
      hn::StoreU(hn::MulAdd(load(from + c), adds, hn::Mul(load(to + c), keeps)), d, to + c);
  }
}

inline void start(const Heads& heads, float* state) {
  std::fill_n(state, heads.state_floats(), 0.0f);
  std::fill_n(state + kRows * heads.width, kRows, -std::numeric_limits<float>::infinity());
}

inline void store(const OpaqueCall& call, const Heads& heads, const Block& block,
                  const float* state) {
  const float* sums = state + kRows * heads.width + kPad;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const std::int64_t row = block.first + i,
                       head = block.kv_head * heads.group + row % heads.group;
    store_row(state + i * heads.width, heads.dim, 1.0f / sums[i], call.outputs[0],
              block.begin + row / heads.group, head * heads.dim);
  }
}

/// All chunks of a block, one after the other.
void attend_block(const OpaqueCall& call, const Block& block, float* workspace) {
  const Heads heads(call.attrs);
  float* q = workspace;
  float* scores = q + kRows * heads.width;
  float* chunk_state = scores + kRows * kChunk;
  float* state = chunk_state + heads.state_floats();
  float* widened = state + heads.state_floats();
  load_queries(call, heads, block, q);
  start(heads, state);
  start(heads, chunk_state);
  const Chunks chunks(heads, block);
  for (std::int64_t c = chunks.first; c < chunks.end; ++c) {
    attend(call, heads, block, c, q, scores, widened, chunk_state);
    merge(heads, block.count, chunk_state, state);
  }
  store(call, heads, block, state);
}

/// One chunk of a block, to a state of its own.
void attend_part(const OpaqueCall& call, const Block& block, std::int64_t chunk, float* workspace,
                 float* state) {
  const Heads heads(call.attrs);
  float* q = workspace;
  float* scores = q + kRows * heads.width;
  float* widened = scores + kRows * kChunk + 2 * heads.state_floats();
  load_queries(call, heads, block, q);
  start(heads, state);
  attend(call, heads, block, chunk, q, scores, widened, state);
}

/// Merges the states of the block's chunks and stores the result.
void finish_block(const OpaqueCall& call, const Block& block, float* states, float* workspace) {
  const Heads heads(call.attrs);
  const Chunks chunks(heads, block);
  start(heads, workspace);
  for (std::int64_t c = 0; c < chunks.end - chunks.first; ++c)
    merge(heads, block.count, states + c * heads.state_floats(), workspace);
  store(call, heads, block, workspace);
}

/// Row `token` of this run's k and v to row `at` of sequence s in the caches.
void append_row(const OpaqueCall& call, std::int64_t token, std::int64_t s, std::int64_t at,
                float* widened) {
  const Heads heads(call.attrs);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const TensorView &from = call.inputs[i], &to = call.inputs[i + 2];
    for (std::int64_t g = 0; g < heads.kv_heads; ++g) {
      copy_row(from, token, g * heads.dim, heads.dim, 1.0f, widened, heads.dim);
      store_row(widened, heads.dim, 1.0f, to, (s * heads.kv_heads + g) * heads.capacity + at, 0);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {

HWY_EXPORT(attend_block);
HWY_EXPORT(attend_part);
HWY_EXPORT(finish_block);
HWY_EXPORT(append_row);

namespace {

std::int64_t integer_at(const TensorView& list, std::int64_t i) {
  return list.dtype == DType::i64 ? list.as<std::int64_t>()[i] : list.as<std::int32_t>()[i];
}

std::int64_t most_split_states(const Heads& heads, int threads) {
  return kBlocksPerThread * threads * divide_up(heads.capacity, kChunk);
}

std::size_t workspace_bytes(const Attrs& attrs, std::int64_t, int threads) {
  const Heads heads(attrs);
  const std::int64_t floats =
      heads.thread_floats() * threads + heads.state_floats() * most_split_states(heads, threads);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

/// Block number `index` of all sequences, key-value heads and groups of rows.
Block block_of(const OpaqueCall& call, const Heads& heads, std::int64_t index) {
  const TensorView &offsets = call.inputs[5], &past = call.inputs[6];
  for (std::int64_t s = 0;; ++s) {
    const std::int64_t begin = integer_at(offsets, s);
    const std::int64_t rows = (integer_at(offsets, s + 1) - begin) * heads.group;
    const std::int64_t blocks = divide_up(rows, kRows) * heads.kv_heads;
    if (index >= blocks) {
      index -= blocks;
      continue;
    }
    const std::int64_t first = index / heads.kv_heads * kRows;
    return {s,     index % heads.kv_heads, first, std::min(kRows, rows - first),
            begin, integer_at(past, s)};
  }
}

void append(const OpaqueCall& call, const Heads& heads) {
  constexpr std::int64_t kAlone = 16;  // rows that are not worth waking threads for
  const TensorView &offsets = call.inputs[5], &past = call.inputs[6];
  const std::int64_t sequences = offsets.rows * offsets.cols - 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t begin = integer_at(offsets, s), count = integer_at(offsets, s + 1) - begin;
    const auto row = [&](std::int64_t t, int thread) {
      float* mine = reinterpret_cast<float*>(call.workspace.data()) +
                    static_cast<std::int64_t>(thread) * heads.thread_floats();
      HWY_DYNAMIC_DISPATCH(append_row)(call, begin + t, s, integer_at(past, s) + t, mine);
    };
    if (count > kAlone) {
      call.pool.parallel_for(count, row);
    } else {
      for (std::int64_t t = 0; t < count; ++t) row(t, 0);
    }
  }
}

void run(const OpaqueCall& call) {
  const Heads heads(call.attrs);
  internal_check(
      call.workspace.size() >= workspace_bytes(call.attrs, call.tokens, call.pool.threads()),
      "cached_attention: a workspace of {} bytes is too small", call.workspace.size());
  append(call, heads);

  auto* floats = reinterpret_cast<float*>(call.workspace.data());
  const auto part = [&](int thread) { return floats + thread * heads.thread_floats(); };
  const TensorView& offsets = call.inputs[5];
  std::int64_t blocks = 0;
  for (std::int64_t s = 0; s + 1 < offsets.rows * offsets.cols; ++s) {
    const std::int64_t rows = (integer_at(offsets, s + 1) - integer_at(offsets, s)) * heads.group;
    blocks += divide_up(rows, kRows) * heads.kv_heads;
  }
  if (blocks > kBlocksPerThread * call.pool.threads()) {
    // The last blocks see most keys and come first.
    call.pool.parallel_for(blocks, [&](std::int64_t index, int thread) {
      HWY_DYNAMIC_DISPATCH(attend_block)
      (call, block_of(call, heads, blocks - 1 - index), part(thread));
    });
    return;
  }
  // Few blocks: every chunk of each is a task of its own; then the states are merged, in the order
  // and by the arithmetic of attend_block.
  float* states = part(call.pool.threads());
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const Chunks chunks(heads, block_of(call, heads, b));
    most = std::max(most, chunks.end - chunks.first);
  }
  call.pool.parallel_for(blocks * most, [&](std::int64_t index, int thread) {
    const Block block = block_of(call, heads, index / most);
    const Chunks chunks(heads, block);
    const std::int64_t chunk = chunks.first + index % most;
    if (chunk >= chunks.end) return;
    HWY_DYNAMIC_DISPATCH(attend_part)
    (call, block, chunk, part(thread), states + index * heads.state_floats());
  });
  for (std::int64_t b = 0; b < blocks; ++b) {
    const Block block = block_of(call, heads, b);
    HWY_DYNAMIC_DISPATCH(finish_block)
    (call, block, states + b * most * heads.state_floats(), part(0));
  }
}

}  // namespace

const OpaqueKernel kCachedAttention{workspace_bytes, run};

}  // namespace coda::cpu
#endif  // HWY_ONCE
