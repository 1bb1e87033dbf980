#include "backend/cuda/cached_attention.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/device_sources.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"

namespace coda::cuda {
namespace {

using coda_device::CachedAttentionParams;
using coda_device::CacheRows;
using coda_device::kCacheQueries;
using coda_device::kCacheStep;
using coda_device::kMostParts;

constexpr std::int64_t kPiece = 8;  ///< elements that a lane loads at once, where aligned
/// CTAs that keep a GPU busy; a constant, since bits follow from it.
constexpr std::int64_t kWantedCtas = 512;

/// What the registry row's attributes mean, and the launch of a run of so many tokens.
struct Blocks {
  std::int64_t group, slots, heads_of_slots, column_parts, splits;

  Blocks(const Attrs& attrs, std::int64_t tokens, std::int64_t sequences)
      : group(attrs.index / attrs.index2),
        slots(tokens * group / kCacheQueries + sequences),
        heads_of_slots(slots * attrs.index2),
        column_parts((attrs.period + coda_device::kCacheColumns - 1) / coda_device::kCacheColumns),
        splits(std::clamp<std::int64_t>(
            kWantedCtas / std::max<std::int64_t>(heads_of_slots * column_parts, 1), 1,
            std::min<std::int64_t>(kMostParts, (attrs.hi + kCacheStep - 1) / kCacheStep))) {}
};

std::int64_t count_of(const TensorView& list) { return list.rows * list.cols; }

void check_lists(const Attrs& attrs, std::span<const TensorView> views) {
  const std::int64_t sequences = count_of(views[5]) - 1,
                     room = views[3].rows / attrs.index2 / attrs.hi;
  if (sequences > room) {
    throw_error<UsageError>(
        "cached_attention: cu_seqlens: expected at most {} sequences, for which the cache has "
        "room, "
        "got {}. Give fewer sequences, or a larger cache.",
        room, sequences);
  }
  if (count_of(views[6]) != sequences) {
    throw_error<UsageError>(
        "cached_attention: past: expected one entry for each of the {} sequences, got {}. Give the "
        "number of rows that each sequence has in the cache.",
        sequences, count_of(views[6]));
  }
}

unsigned grid_of(std::int64_t ctas, std::int64_t tokens) {
  if (ctas > std::numeric_limits<std::int32_t>::max()) {
    throw_error<UsageError>(
        "cached_attention: {} rows: expected at most 2^31 - 1 blocks, got {}. Use fewer tokens a "
        "run.",
        tokens, ctas);
  }
  return static_cast<unsigned>(ctas);
}

class CachedAttentionStep final : public StepKernel {
 public:
  CachedAttentionStep(const Attrs& attrs, const CachedAttentionVariant& variant,
                      const StepContext& context)
      : attrs_(attrs), variant_(variant), context_(context) {}

  std::vector<KernelSource> sources() const override { return cached_attention_sources(variant_); }

  void bind(std::span<const TensorView> views, std::int64_t tokens) override {
    const bool aligned = is_aligned_for_cache(attrs_, views);
    if (aligned != variant_.aligned) kernels_.clear();
    variant_.aligned = aligned;
    launches_ = cached_attention_launches(attrs_, views, tokens,
                                          reinterpret_cast<void*>(context_.workspace),
                                          reinterpret_cast<unsigned*>(context_.error_flag));
    if (!kernels_.empty()) return;
    for (const KernelSource& source : sources())
      kernels_.push_back(KernelStore::get().load(source));
  }

  void launch(const Stream& stream) override {
    if (launches_.parts_grid == 0) return;
    CachedAttentionParams* p = &launches_.params;
    kernels_[0].launch(stream, launches_.parts_grid, kCachedAttentionThreads, 1, {p},
                       launches_.parts_grid_y);
    kernels_[1].launch(stream, launches_.sums_grid, kCachedAttentionThreads, 1, {p});
  }

 private:
  Attrs attrs_;
  CachedAttentionVariant variant_;
  StepContext context_;
  CachedAttentionLaunches launches_;
  std::vector<Kernel> kernels_;  ///< of variant_
};

}  // namespace

std::vector<KernelSource> cached_attention_sources(const CachedAttentionVariant& variant) {
  std::vector<KernelSource> sources;
  for (const char* entry : {"coda_cached_attention_parts", "coda_cached_attention_sums"}) {
    KernelSource source;
    source.name = fmt::format("{}_{}_{}{}{}", entry + 5, name_of(variant.dtype), variant.head_dim,
                              variant.window ? "_window" : "", variant.softcap ? "_softcap" : "");
    source.entry = entry;
    source.text = device_text({"params.cuh", "cached_attention_params.cuh", "ptx.cuh",
                               "elements.cuh", "op_math.cuh", "rows.cuh"});
    source.text += fmt::format(
        "namespace coda_device {{\nusing Element = {};\nconstexpr int kHeadDim = {};\n"
        "constexpr int kPiece = {};\nconstexpr bool kWindow = {}, kSoftcap = {};\n}}\n",
        element_text(variant.dtype), variant.head_dim, variant.aligned ? kPiece : 1, variant.window,
        variant.softcap);
    source.text += device_text({"attention_score.cuh", "cached_attention.cuh"});
    sources.push_back(std::move(source));
  }
  return sources;
}

bool is_aligned_for_cache(const Attrs& attrs, std::span<const TensorView> views) {
  if (attrs.period % kPiece != 0) return false;
  for (const std::size_t i : {1, 2, 3, 4}) {
    if (reinterpret_cast<std::uintptr_t>(views[i].data) % 16 != 0) return false;
    if (views[i].stride % kPiece != 0) return false;
  }
  return true;
}

CachedAttentionLaunches cached_attention_launches(const Attrs& attrs,
                                                  std::span<const TensorView> views,
                                                  std::int64_t tokens, void* workspace,
                                                  unsigned* error_flag) {
  internal_check(views.size() == 8, "cached_attention: {} operands", views.size());
  check_lists(attrs, views);
  const std::int64_t sequences = count_of(views[5]) - 1, kv_heads = attrs.index2;
  const Blocks blocks(attrs, tokens, sequences);
  const auto rows_of = [&](std::size_t i) { return CacheRows{views[i].data, views[i].stride}; };
  CachedAttentionLaunches launches;
  CachedAttentionParams& p = launches.params;
  p.q = rows_of(0);
  p.k = rows_of(1);
  p.v = rows_of(2);
  p.cache_k = rows_of(3);
  p.cache_v = rows_of(4);
  p.o = rows_of(7);
  p.cu_seqlens = views[5].data;
  p.past = views[6].data;
  p.wide_offsets = views[5].dtype == DType::i64;
  p.wide_past = views[6].dtype == DType::i64;
  p.sequences = static_cast<int>(sequences);
  p.tokens = static_cast<int>(tokens);
  p.kv_heads = static_cast<int>(kv_heads);
  p.group = static_cast<int>(blocks.group);
  p.splits = static_cast<int>(blocks.splits);
  p.capacity = attrs.hi;
  p.scale = static_cast<float>(attrs.value);
  p.window = attrs.lo;
  p.softcap = static_cast<float>(attrs.softcap);
  p.part_rows = static_cast<float*>(workspace);
  p.part_o = p.part_rows + 2 * kCacheQueries * blocks.heads_of_slots * blocks.splits;
  p.error_flag = error_flag;
  if (tokens == 0 || sequences == 0) return launches;
  constexpr std::int64_t kQueries = kCachedAttentionThreads / 32;  // of a CTA of sums
  launches.parts_grid = grid_of(blocks.heads_of_slots * blocks.column_parts, tokens);
  launches.parts_grid_y = static_cast<unsigned>(blocks.splits);
  launches.sums_grid = grid_of((tokens * attrs.index + kQueries - 1) / kQueries, tokens);
  return launches;
}

std::size_t cached_attention_bytes(const Attrs& attrs, std::int64_t cache_rows,
                                   std::int64_t max_tokens) {
  const std::int64_t sequences = cache_rows / (attrs.index2 * attrs.hi);
  // Fewer rows have more parts, up to kWantedCtas of both together.
  const Blocks most(attrs, max_tokens, sequences);
  const std::int64_t parts = std::max(most.heads_of_slots, kWantedCtas);
  return static_cast<std::size_t>(parts * kCacheQueries * (attrs.period + 2)) * sizeof(float);
}

std::unique_ptr<StepKernel> make_cached_attention_kernel(const Step& step, const Plan& plan,
                                                         const StepContext& context) {
  const auto dtype_of = [&](std::size_t i) {
    return plan.buffers[static_cast<std::size_t>(step.slices[i].buffer)].dtype;
  };
  constexpr std::int64_t kWidestHead = 2048;  // whose queries fit shared memory
  if (step.attrs.period > kWidestHead) {
    throw_error<UsageError>(
        "cached_attention: expected heads of at most {} columns on a GPU, got {}. Use the cpu "
        "backend.",
        kWidestHead, step.attrs.period);
  }
  CachedAttentionVariant variant{dtype_of(0), step.attrs.period, step.attrs.period % kPiece == 0,
                                 step.attrs.lo > 0, step.attrs.softcap > 0};
  for (const std::size_t i : {1, 2, 3, 4, 7}) {
    if (dtype_of(i) == variant.dtype) continue;
    throw_error<UsageError>(
        "cached_attention: expected operands, caches and result of one dtype, got {} and {}. Cast "
        "before attention, and keep the cache in that dtype.",
        name_of(variant.dtype), name_of(dtype_of(i)));
  }
  return std::make_unique<CachedAttentionStep>(step.attrs, variant, context);
}

std::size_t cached_attention_workspace_bytes(const Step& step, std::int64_t max_tokens) {
  return cached_attention_bytes(step.attrs, step.slices[3].rows, max_tokens);
}

}  // namespace coda::cuda
