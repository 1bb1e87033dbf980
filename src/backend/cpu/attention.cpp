// Blocks of queries against blocks of keys; see attention.h for the math.

#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/gemm_kernel.h"
#include "base/check.h"

// Instruction sets whose code would differ from a neighbour's by little are not built.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "backend/cpu/attention_kernels-inl.h"

#ifndef CODA_ATTENTION_LAYOUT
#define CODA_ATTENTION_LAYOUT
namespace coda::cpu {
namespace {

constexpr std::int64_t kKeyBlock = 128;
constexpr std::int64_t kNoWindow = std::numeric_limits<std::int32_t>::max();
/// Columns are padded to this many: two vectors of the widest instruction set that is built.
constexpr std::int64_t kPad = 32;

std::int64_t padded(std::int64_t columns) { return (columns + kPad - 1) / kPad * kPad; }

/// What the registry row's attributes mean.
struct Heads {
  std::int64_t kv_heads, group, dim;  ///< key-value heads, query heads of each, head dimension
  std::int64_t window;                ///< keys that a query sees at most
  float scale, softcap;               ///< softcap: 0 is none

  explicit Heads(const Attrs& attrs)
      : kv_heads(attrs.index2),
        group(attrs.index / attrs.index2),
        dim(attrs.period),
        window(std::min(attrs.lo > 0 ? attrs.lo : kNoWindow, kNoWindow)),
        scale(static_cast<float>(attrs.value)),
        softcap(static_cast<float>(attrs.softcap)) {}

  /// The first block of keys that a query at `t` or later sees, in the sequence from `begin` on.
  std::int64_t first_key_block(std::int64_t begin, std::int64_t t) const {
    return begin + std::max<std::int64_t>(t - window + 1 - begin, 0) / kKeyBlock * kKeyBlock;
  }
};

/// Parts of one thread's workspace, in floats.
struct Layout {
  std::int64_t queries;  ///< in a block; times the heads that share keys they half fill an L2 cache
  std::int64_t width;    ///< padded head_dim
  std::int64_t query_tile, key_tile, scores, vectors;

  explicit Layout(const Heads& heads)
      : queries(heads.group >= 4 ? 48 : 96),
        width(padded(heads.dim)),
        query_tile(heads.group * queries * width),
        key_tile(kKeyBlock * width),
        scores(queries * kKeyBlock),
        vectors(padded(2 * heads.group * queries) + width) {}

  std::int64_t forward() const {  // q, o; k, v; scores; max and sum of rows, a row
    return 2 * query_tile + 2 * key_tile + scores + vectors;
  }
  /// Blocks of keys, each packed for itself.
  std::int64_t packed_keys(std::int64_t tokens) const {
    return (tokens + kKeyBlock - 1) / kKeyBlock * key_tile;
  }
  std::int64_t backward(std::int64_t tokens) const {
    // q and d_o as rows and as panels, d_q; p, ds; lse and delta, a row; of a sequence: k and v
    // transposed, k, d_k, d_v
    return 5 * query_tile + 2 * scores + vectors + 3 * packed_keys(tokens) + 2 * tokens * width;
  }
};

/// cu_seqlens: 0, then the end of each sequence.
class Offsets {
 public:
  explicit Offsets(const TensorView& list) : list_(list), count_(list.rows * list.cols) {}
  std::int64_t sequences() const { return std::max<std::int64_t>(count_ - 1, 0); }
  std::int64_t operator[](std::int64_t i) const {
    return list_.dtype == DType::i64 ? list_.as<std::int64_t>()[i] : list_.as<std::int32_t>()[i];
  }
  /// The sequence that a token lies in.
  std::int64_t sequence_of(std::int64_t token) const {
    std::int64_t low = 0, high = sequences() - 1;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if ((*this)[middle + 1] > token) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  const TensorView& list_;
  std::int64_t count_;
};

}  // namespace
}  // namespace coda::cpu
#endif  // CODA_ATTENTION_LAYOUT

HWY_BEFORE_NAMESPACE();
namespace coda::cpu {
namespace HWY_NAMESPACE {

inline const void* element(const TensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<const char*>(view.data) +
         (row * view.stride + col) * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Queries [first, first + n) against a block of keys: who sees what. Of rows [start, stop) each
/// sees at least one key.
struct Sight {
  std::int64_t first, first_key, keys, window, start, stop;

  Sight(const Heads& heads, std::int64_t query, std::int64_t n, std::int64_t key,
        std::int64_t key_count)
      : first(query),
        first_key(key),
        keys(key_count),
        window(heads.window),
        start(std::max<std::int64_t>(key - query, 0)),
        stop(std::min(key + key_count - 1 + heads.window - query, n)) {}

  /// Row t sees keys [hidden(t), seen(t)) of the block.
  std::int64_t hidden(std::int64_t t) const {
    return std::clamp<std::int64_t>(first + t - window + 1 - first_key, 0, keys);
  }
  std::int64_t seen(std::int64_t t) const {
    return std::clamp<std::int64_t>(first + t + 1 - first_key, 0, keys);
  }
};

/// Columns that a softmax step writes: up to kMicroRows beyond the visible ones are zeroed, since
/// products take six rows at a time.
inline std::int64_t zeroed(std::int64_t seen) {
  const std::int64_t step = lanes();
  return std::min((seen + kMicroRows + step - 1) / step * step, kKeyBlock);
}

/// Packs rows [first, first + n) of columns [col, col + dim) of a tensor, transposed, for a product
/// over the features; columns that fill the last panel are zero.
inline void pack_transposed(const TensorView& from, std::int64_t first, std::int64_t n,
                            std::int64_t col, std::int64_t dim, float* row, float* panels) {
  constexpr std::int64_t kAtOnce = 8;  // rows, by the GEMM's packing
  const std::int64_t panel = panel_width(), step = panel % kAtOnce == 0 ? kAtOnce : 1;
  std::fill_n(row, dim, 0.0f);
  for (std::int64_t r = 0; r < (n + panel - 1) / panel * panel; r += step) {
    if (step == 1) {
      if (r < n) copy_row(from, first + r, col, dim, 1.0f, row, dim);
      if (r == n) std::fill_n(row, dim, 0.0f);
      pack_column(row, dim, r, panels);
      continue;
    }
    const void* rows[kAtOnce];
    for (std::int64_t i = 0; i < kAtOnce; ++i)
      rows[i] = r + i < n ? element(from, first + r + i, col) : row;
    gemm_kernel().pack_transposed(panels + r / panel * dim * panel + r % panel, panel, rows,
                                  from.dtype, dim, 0);
  }
}

/// Packs rows [first, first + n) of columns [col, col + dim) of a tensor for a product over these
/// rows: panels of columns, zeros up to `width`.
inline void pack_rows(const TensorView& from, std::int64_t first, std::int64_t n, std::int64_t col,
                      std::int64_t dim, std::int64_t width, float* panels) {
  const std::int64_t panel = panel_width();
  for (std::int64_t c = 0; c < width; c += panel) {
    float* to = panels + c * n;
    if (c >= dim)
      std::fill_n(to, n * panel, 0.0f);
    else
      gemm_kernel().pack_columns(to, panel, element(from, first, col + c), from.stride, dim - c,
                                 from.dtype, n);
  }
}

/// One block of queries [first, last) (tokens) of the sequence that begins at token `begin`, for
/// the query heads of key-value head g.
void forward_block(const OpaqueCall& call, std::int64_t begin, std::int64_t first,
                   std::int64_t last, std::int64_t g, float* workspace) {
  const Heads heads(call.attrs);
  const Layout layout(heads);
  const std::int64_t dim = heads.dim, width = layout.width, n = last - first;
  const TensorView &q_in = call.inputs[0], &k_in = call.inputs[1], &v_in = call.inputs[2];
  const TensorView &o_out = call.outputs[0], &lse_out = call.outputs[1];
  float* q = workspace;
  float* o = q + layout.query_tile;
  float* keys_t = o + layout.query_tile;
  float* values = keys_t + layout.key_tile;
  float* scores = values + layout.key_tile;
  float* row_max = scores + layout.scores;
  float* row_total = row_max + heads.group * layout.queries;
  float* row = row_max + padded(2 * heads.group * layout.queries);

  for (std::int64_t h = 0; h < heads.group; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      copy_row(q_in, first + t, (g * heads.group + h) * dim, dim, heads.scale,
               q + (h * layout.queries + t) * width, width);
    }
    std::fill_n(row_max + h * layout.queries, n, -std::numeric_limits<float>::infinity());
    std::fill_n(row_total + h * layout.queries, n, 0.0f);
    std::fill_n(o + h * layout.queries * width, n * width, 0.0f);
  }

  for (std::int64_t key = heads.first_key_block(begin, first); key < last; key += kKeyBlock) {
    const std::int64_t keys = std::min(kKeyBlock, last - key);
    pack_transposed(k_in, key, keys, g * dim, dim, row, keys_t);
    pack_rows(v_in, key, keys, g * dim, dim, width, values);
    const Sight sight(heads, first, n, key, keys);
    for (std::int64_t h = 0; h < heads.group; ++h) {
      const Elements q_rows{q + h * layout.queries * width, width, 1};
      product(
          sight.start, sight.stop, keys, q_rows, keys_t, dim, scores, kKeyBlock, false,
          [&](std::int64_t i, std::int64_t m) { return Extent{sight.seen(i + m - 1), 0, dim}; });
      float* o_rows = o + h * layout.queries * width;
      for (std::int64_t t = sight.start; t < sight.stop; ++t) {
        float* s = scores + t * kKeyBlock;
        const std::int64_t seen = sight.seen(t);
        if (heads.softcap > 0) cap_scores(s, seen, heads.softcap);
        std::fill_n(s, sight.hidden(t), -std::numeric_limits<float>::infinity());
        float& largest = row_max[h * layout.queries + t];
        float& total = row_total[h * layout.queries + t];
        const float before = largest;
        largest = std::max(before, max_of(s, seen));
        const float here = exponentials(s, seen, zeroed(seen), largest);
        if (largest == before) {
          total += here;
        } else {
          const float shrink = std::exp(before - largest);
          total = total * shrink + here;
          scale_row(o_rows + t * width, width, shrink);
        }
      }
      product(sight.start, sight.stop, dim, Elements{scores, kKeyBlock, 1}, values, keys, o_rows,
              width, true, [&](std::int64_t i, std::int64_t m) {
                return Extent{dim, sight.hidden(i), sight.seen(i + m - 1)};
              });
    }
  }

  for (std::int64_t h = 0; h < heads.group; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t i = h * layout.queries + t, head = g * heads.group + h;
      store_row(o + i * width, dim, 1.0f / row_total[i], o_out, first + t, head * dim);
      lse_out.as<float>()[(first + t) * lse_out.stride + head] =
          row_max[i] + std::log(row_total[i]);
    }
  }
}

/// A row of scores becomes p, and of dp the gradient of q . k, where keys [hidden, seen) are seen;
/// zeros around them.
void score_gradients(const Heads& heads, std::int64_t hidden, std::int64_t seen, float lse,
                     float delta, float* p, float* ds) {
  const std::int64_t columns = zeroed(seen);
  float slope[kKeyBlock];
  if (heads.softcap > 0) {
    cap_slopes(p, seen, heads.softcap, slope);
    cap_scores(p, seen, heads.softcap);
  }
  exponentials(p, seen, columns, lse);
  score_gradient(p, ds, seen, columns, delta);
  if (heads.softcap > 0) {
    for (std::int64_t j = 0; j < seen; ++j) ds[j] *= slope[j];
  }
  std::fill_n(p, hidden, 0.0f);
  std::fill_n(ds, hidden, 0.0f);
}

/// All of one sequence, tokens [begin, end), for key-value head g and its query heads: blocks of
/// queries in ascending order, within each the blocks of keys.
void backward_sequence(const OpaqueCall& call, std::int64_t begin, std::int64_t end, std::int64_t g,
                       float* workspace) {
  const Heads heads(call.attrs);
  const Layout layout(heads);
  const std::int64_t dim = heads.dim, width = layout.width, tokens = end - begin;
  const TensorView &q_in = call.inputs[0], &k_in = call.inputs[1], &v_in = call.inputs[2];
  const TensorView &o_in = call.inputs[4], &lse_in = call.inputs[5], &d_o_in = call.inputs[6];
  const TensorView &d_q_out = call.outputs[0], &d_k_out = call.outputs[1];
  const TensorView& d_v_out = call.outputs[2];
  float* q = workspace;
  float* q_panels = q + layout.query_tile;
  float* d_o = q_panels + layout.query_tile;
  float* d_o_panels = d_o + layout.query_tile;
  float* d_q = d_o_panels + layout.query_tile;
  float* p = d_q + layout.query_tile;
  float* ds = p + layout.scores;
  float* lse = ds + layout.scores;
  float* delta = lse + heads.group * layout.queries;
  float* row = lse + padded(2 * heads.group * layout.queries);
  float* all_keys_t = row + width;
  float* all_values_t = all_keys_t + layout.packed_keys(tokens);
  float* all_keys = all_values_t + layout.packed_keys(tokens);
  float* d_k = all_keys + layout.packed_keys(tokens);
  float* d_v = d_k + tokens * width;
  std::fill_n(d_k, 2 * tokens * width, 0.0f);
  for (std::int64_t key = begin; key < end; key += kKeyBlock) {
    const std::int64_t keys = std::min(kKeyBlock, end - key), at = (key - begin) * width;
    pack_transposed(k_in, key, keys, g * dim, dim, row, all_keys_t + at);
    pack_transposed(v_in, key, keys, g * dim, dim, row, all_values_t + at);
    pack_rows(k_in, key, keys, g * dim, dim, width, all_keys + at);
  }

  for (std::int64_t first = begin; first < end; first += layout.queries) {
    const std::int64_t n = std::min(layout.queries, end - first), last = first + n;
    for (std::int64_t h = 0; h < heads.group; ++h) {
      const std::int64_t head = g * heads.group + h, at = h * layout.queries;
      for (std::int64_t t = 0; t < n; ++t) {
        float* q_row = q + (at + t) * width;
        float* d_o_row = d_o + (at + t) * width;
        copy_row(q_in, first + t, head * dim, dim, heads.scale, q_row, width);
        copy_row(d_o_in, first + t, head * dim, dim, 1.0f, d_o_row, width);
        copy_row(o_in, first + t, head * dim, dim, 1.0f, row, width);
        delta[at + t] = dot(d_o_row, row, width);
        lse[at + t] = lse_in.as<float>()[(first + t) * lse_in.stride + head];
      }
      const auto pack = [&](float* rows, float* panels) {
        pack_rows({rows + at * width, DType::f32, n, width, width}, 0, n, 0, width, width,
                  panels + at * width);
      };
      pack(q, q_panels);
      pack(d_o, d_o_panels);
    }
    std::fill_n(d_q, layout.query_tile, 0.0f);

    for (std::int64_t key = heads.first_key_block(begin, first); key < last; key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, last - key), at_key = (key - begin) * width;
      const std::int64_t packed = std::min(kKeyBlock, end - key);  // rows of its panels
      const float *keys_t = all_keys_t + at_key, *values_t = all_values_t + at_key;
      const float* keys_panels = all_keys + at_key;
      const Sight sight(heads, first, n, key, keys);
      // Of a product over queries, keys [i, i + m) need those from the first that sees key i to the
      // last that sees key i + m - 1.
      const auto over_queries = [&](std::int64_t i, std::int64_t m) {
        return Extent{dim, std::max<std::int64_t>(key + i - first, 0),
                      std::min(key + i + m - 1 + heads.window - first, n)};
      };
      const auto over_keys = [&](std::int64_t i, std::int64_t m) {
        return Extent{dim, sight.hidden(i), sight.seen(i + m - 1)};
      };
      const auto over_features = [&](std::int64_t i, std::int64_t m) {
        return Extent{sight.seen(i + m - 1), 0, dim};
      };
      float* d_k_rows = d_k + (key - begin) * width;
      float* d_v_rows = d_v + (key - begin) * width;
      for (std::int64_t h = 0; h < heads.group; ++h) {
        const std::int64_t at = h * layout.queries;
        product(sight.start, sight.stop, keys, Elements{q + at * width, width, 1}, keys_t, dim, p,
                kKeyBlock, false, over_features);
        product(sight.start, sight.stop, keys, Elements{d_o + at * width, width, 1}, values_t, dim,
                ds, kKeyBlock, false, over_features);
        for (std::int64_t t = sight.start; t < sight.stop; ++t) {
          score_gradients(heads, sight.hidden(t), sight.seen(t), lse[at + t], delta[at + t],
                          p + t * kKeyBlock, ds + t * kKeyBlock);
        }
        product(0, keys, dim, Elements{p, 1, kKeyBlock}, d_o_panels + at * width, n, d_v_rows,
                width, true, over_queries);
        product(0, keys, dim, Elements{ds, 1, kKeyBlock}, q_panels + at * width, n, d_k_rows, width,
                true, over_queries);
        product(sight.start, sight.stop, dim, Elements{ds, kKeyBlock, 1}, keys_panels, packed,
                d_q + at * width, width, true, over_keys);
      }
    }
    for (std::int64_t h = 0; h < heads.group; ++h) {
      for (std::int64_t t = 0; t < n; ++t) {
        store_row(d_q + (h * layout.queries + t) * width, dim, heads.scale, d_q_out, first + t,
                  (g * heads.group + h) * dim);
      }
    }
  }
  for (std::int64_t j = 0; j < tokens; ++j) {
    store_row(d_k + j * width, dim, 1.0f, d_k_out, begin + j, g * dim);
    store_row(d_v + j * width, dim, 1.0f, d_v_out, begin + j, g * dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coda::cpu {
namespace {

HWY_EXPORT(forward_block);
HWY_EXPORT(backward_sequence);

/// The thread's part of the workspace.
float* part_of(const OpaqueCall& call, int thread, std::int64_t needed) {
  const std::size_t each = call.workspace.size() / static_cast<std::size_t>(call.pool.threads()) /
                           kPad / sizeof(float) * kPad;
  internal_check(static_cast<std::int64_t>(each) >= needed,
                 "attention: a workspace of {} floats a thread is too small for {}", each, needed);
  return reinterpret_cast<float*>(call.workspace.data()) + static_cast<std::size_t>(thread) * each;
}

std::size_t forward_workspace(const Attrs& attrs, std::int64_t, int threads) {
  return static_cast<std::size_t>(Layout(Heads(attrs)).forward() * threads) * sizeof(float);
}

std::size_t backward_workspace(const Attrs& attrs, std::int64_t max_tokens, int threads) {
  return static_cast<std::size_t>(Layout(Heads(attrs)).backward(max_tokens) * threads) *
         sizeof(float);
}

/// Blocks of [0, M), cut where sequences end; the last ones, which see most keys, come first.
void run_forward(const OpaqueCall& call) {
  const Heads heads(call.attrs);
  const Layout layout(heads);
  const Offsets offsets(call.inputs[3]);
  const std::int64_t blocks = (call.tokens + layout.queries - 1) / layout.queries;
  call.pool.parallel_for(blocks * heads.kv_heads, [&](std::int64_t task, int thread) {
    const std::int64_t block = blocks - 1 - task / heads.kv_heads;
    const std::int64_t stop = std::min((block + 1) * layout.queries, call.tokens);
    float* mine = part_of(call, thread, layout.forward());
    for (std::int64_t first = block * layout.queries; first < stop;) {
      const std::int64_t s = offsets.sequence_of(first);
      const std::int64_t last = std::min(stop, offsets[s + 1]);
      HWY_DYNAMIC_DISPATCH(forward_block)
      (call, offsets[s], first, last, task % heads.kv_heads, mine);
      first = last;
    }
  });
}

void run_backward(const OpaqueCall& call) {
  const Heads heads(call.attrs);
  const Offsets offsets(call.inputs[3]);
  const std::int64_t tasks = offsets.sequences() * heads.kv_heads;
  call.pool.parallel_for(tasks, [&](std::int64_t task, int thread) {
    const std::int64_t s = task / heads.kv_heads, begin = offsets[s], end = offsets[s + 1];
    if (begin == end) return;
    HWY_DYNAMIC_DISPATCH(backward_sequence)
    (call, begin, end, task % heads.kv_heads,
     part_of(call, thread, Layout(heads).backward(end - begin)));
  });
}

}  // namespace

const OpaqueKernel kAttention{forward_workspace, run_forward};
const OpaqueKernel kAttentionBackward{backward_workspace, run_backward};

}  // namespace coda::cpu
#endif  // HWY_ONCE
