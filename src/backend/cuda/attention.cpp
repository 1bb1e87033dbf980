#include "backend/cuda/attention.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "backend/cuda/attention_cudnn.h"
#include "backend/cuda/device/attention_params.cuh"
#include "backend/cuda/device_sources.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"

namespace coda::cuda {
namespace {

using coda_device::AttentionParams;
using coda_device::AttentionRows;
using coda_device::kAttentionTile;

constexpr unsigned kDeltaRows = 8;  // warps of a CTA of coda_attention_delta

/// Columns of a tile in shared memory (attention_tile.cuh, kDim) and CTAs that share the columns of
/// a head (kChunks, kPlainChunks).
std::int64_t padded(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
std::int64_t chunks_of(const AttentionVariant& variant) {
  return variant.tensor_cores() ? (padded(variant.head_dim) + 127) / 128
                                : (variant.head_dim + kAttentionTile - 1) / kAttentionTile;
}

/// Rows of a CTA's tile (attention_blocks.cuh).
int block_rows(const AttentionVariant& variant) { return variant.wgmma ? 128 : kAttentionTile; }

std::string prelude(const AttentionVariant& variant) {
  return fmt::format(
      "namespace coda_device {{\nusing Element = {};\n"
      "constexpr int kHeadDim = {};\nconstexpr bool kBf16 = {};\nconstexpr bool kVectorRows = {};\n"
      "constexpr int kBlockRows = {};\nconstexpr bool kWindow = {}, kSoftcap = {};\n}}\n",
      element_text(variant.dtype), variant.head_dim, variant.dtype == DType::bf16,
      variant.head_dim % 8 == 0, block_rows(variant), variant.window, variant.softcap);
}

KernelSource source_of(const AttentionVariant& variant, const std::string& entry,
                       std::initializer_list<const char*> files, std::int64_t shared_bytes) {
  KernelSource source;
  source.name = fmt::format("{}_{}_{}{}{}", entry.substr(entry.find('_') + 1),
                            name_of(variant.dtype), variant.head_dim,
                            variant.window ? "_window" : "", variant.softcap ? "_softcap" : "");
  source.entry = entry;
  source.shared_bytes = static_cast<unsigned>(shared_bytes);
  source.text = device_text(
      {"params.cuh", "attention_params.cuh", "ptx.cuh", "attention_ptx.cuh", "elements.cuh"});
  source.text += prelude(variant) + device_text({"attention_blocks.cuh", "attention_score.cuh"});
  source.text += device_text(files);
  return source;
}

std::int64_t plain_shared_bytes() {
  const std::int64_t rows = 2 * 32 + 2 * kAttentionTile;
  return rows * (kAttentionTile + 1) * std::int64_t{sizeof(float)};
}

AttentionRows rows_of(const TensorView& view) { return {view.data, view.stride}; }

bool is_aligned(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         view.stride * static_cast<std::int64_t>(size_of(view.dtype)) % 16 == 0;
}

/// All but cu_seqlens and lse.
bool are_aligned(std::span<const TensorView> views) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (i != 3 && i != 5 && !is_aligned(views[i])) return false;
  }
  return true;
}

AttentionVariant variant_of(const Step& step, const Plan& plan) {
  internal_check(step.opaque == Opaque::attention || step.opaque == Opaque::attention_backward,
                 "attention: expected a step of attention, got opaque {}",
                 static_cast<int>(step.opaque));
  AttentionVariant variant;
  variant.backward = step.opaque == Opaque::attention_backward;
  variant.head_dim = step.attrs.period;
  variant.window = step.attrs.lo > 0;
  variant.softcap = step.attrs.softcap > 0;
  const auto dtype_of = [&](std::size_t i) {
    return plan.buffers[static_cast<std::size_t>(step.slices[i].buffer)].dtype;
  };
  variant.dtype = dtype_of(0);
  for (std::size_t i = 0; i < step.slices.size(); ++i) {
    if (i == 3 || i == 5) continue;  // cu_seqlens, lse
    if (dtype_of(i) != variant.dtype) {
      throw_error<UsageError>(
          "attention: expected operands and results of one dtype, got {} and {}. Cast before "
          "attention.",
          name_of(variant.dtype), name_of(dtype_of(i)));
    }
  }
  return variant;
}

/// Of a step's matrices in memory that the plan owns; a user's may be wider.
std::array<std::int64_t, kCudnnOperands> strides_of(const Step& step, const Plan& plan) {
  constexpr std::int64_t kPadding = 32;  // elements; arenas pad rows to 64 bytes
  std::array<std::int64_t, kCudnnOperands> strides{};
  std::size_t operand = 0;
  for (std::size_t i = 0; i < step.slices.size(); ++i) {
    if (i == 3) continue;  // cu_seqlens
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(step.slices[i].buffer)];
    strides[operand++] = (buffer.cols + kPadding - 1) / kPadding * kPadding;
  }
  return strides;
}

}  // namespace

std::vector<KernelSource> attention_sources(const AttentionVariant& variant) {
  std::vector<KernelSource> sources;
  if (variant.backward && variant.tensor_cores()) {
    sources.push_back(source_of(variant, "coda_attention_delta", {"attention_delta.cuh"}, 0));
  }
  if (!variant.tensor_cores()) {
    const std::int64_t shared = plain_shared_bytes();
    const auto add = [&](const char* entry, const char* file) {
      sources.push_back(source_of(variant, entry, {"attention_plain.cuh", file}, shared));
    };
    if (!variant.backward) {
      add("coda_attention_plain_forward", "attention_plain_forward.cuh");
    } else {
      add("coda_attention_plain_delta", "attention_plain_delta.cuh");
      add("coda_attention_plain_backward_q", "attention_plain_backward_q.cuh");
      add("coda_attention_plain_backward_kv", "attention_plain_backward_kv.cuh");
    }
    return sources;
  }
  if (variant.wgmma) {
    // attention_wgmma.cuh, Ring: room to align, two tiles, four stages of two with vectors,
    // barriers.
    const std::int64_t row = 2 * variant.head_dim;
    const std::int64_t shared = 1024 + 2 * 128 * row + 4 * (2 * 64 * row + 2 * 64 * 4) + 64;
    const auto add = [&](const char* entry, const char* file) {
      sources.push_back(source_of(
          variant, entry, {"attention_wgmma_ptx.cuh", "attention_wgmma.cuh", file}, shared));
    };
    if (!variant.backward) {
      add("coda_attention_wgmma_forward", "attention_wgmma_forward.cuh");
    } else {
      add("coda_attention_wgmma_backward_q", "attention_wgmma_backward_q.cuh");
      add("coda_attention_wgmma_backward_kv", "attention_wgmma_backward_kv.cuh");
    }
    return sources;
  }
  // Tiles, lse and delta, and what reads of padding columns may touch behind them.
  const std::int64_t tile = kAttentionTile * (padded(variant.head_dim) + 8) * 2;
  const auto add = [&](const char* entry, const char* file, std::int64_t shared) {
    sources.push_back(source_of(variant, entry, {"attention_tile.cuh", file}, shared + 128));
  };
  if (!variant.backward) {
    add("coda_attention_forward", "attention_forward.cuh", 5 * tile);
  } else {
    const std::int64_t vectors = 4 * kAttentionTile * static_cast<std::int64_t>(sizeof(float));
    add("coda_attention_backward_q", "attention_backward_q.cuh", 6 * tile);
    add("coda_attention_backward_kv", "attention_backward_kv.cuh", 6 * tile + vectors);
  }
  return sources;
}

AttentionLaunches attention_launches(const Attrs& attrs, const AttentionVariant& variant,
                                     std::span<const TensorView> views, std::int64_t tokens,
                                     void* workspace) {
  internal_check(views.size() == (variant.backward ? 10u : 6u), "attention: {} operands",
                 views.size());
  const TensorView& offsets = views[3];
  const std::int64_t sequences = std::max<std::int64_t>(offsets.rows * offsets.cols - 1, 0);
  const std::int64_t heads = attrs.index, kv_heads = attrs.index2;
  AttentionLaunches launches;
  AttentionParams& p = launches.params;
  p.q = rows_of(views[0]);
  p.k = rows_of(views[1]);
  p.v = rows_of(views[2]);
  p.cu_seqlens = offsets.data;
  p.wide_offsets = offsets.dtype == DType::i64;
  p.o = rows_of(views[4]);
  p.lse = views[5].as<float>();
  p.lse_stride = views[5].stride;
  if (variant.backward) {
    p.d_o = rows_of(views[6]);
    p.d_q = rows_of(views[7]);
    p.d_k = rows_of(views[8]);
    p.d_v = rows_of(views[9]);
    p.delta = static_cast<float*>(workspace);
    if (!variant.tensor_cores()) p.inverse = p.delta + tokens * heads;
  }
  p.aligned = are_aligned(views);
  internal_check(p.aligned || !variant.wgmma, "attention: wgmma on unaligned rows");
  p.sequences = static_cast<int>(sequences);
  p.tokens = static_cast<int>(tokens);
  p.n_heads = static_cast<int>(heads);
  p.group = static_cast<int>(heads / kv_heads);
  p.slots = p.tokens / block_rows(variant) + p.sequences;
  p.scale = static_cast<float>(attrs.value);
  p.window = static_cast<int>(std::min(attrs.lo, tokens));
  p.softcap = static_cast<float>(attrs.softcap);
  internal_check(variant.window == (attrs.lo > 0) && variant.softcap == (attrs.softcap > 0),
                 "attention: a variant of other options");
  if (tokens == 0 || sequences == 0) return launches;

  const auto add = [&](std::int64_t ctas, unsigned block) {
    if (ctas > std::numeric_limits<std::int32_t>::max()) {
      throw_error<UsageError>(
          "attention: {} rows, {} sequences and {} heads: expected at most 2^31 - 1 tiles, got {}. "
          "Use fewer tokens a batch.",
          tokens, sequences, heads, ctas);
    }
    launches.sizes.push_back({static_cast<unsigned>(ctas), block});
  };
  const std::int64_t chunks = variant.wgmma ? 1 : chunks_of(variant);
  const unsigned block = variant.wgmma ? 384 : variant.tensor_cores() ? 128 : 256;
  if (variant.backward && !variant.tensor_cores()) {
    add(p.slots * heads, block);
  } else if (variant.backward) {
    add((tokens * heads + kDeltaRows - 1) / kDeltaRows, 32 * kDeltaRows);
  }
  add(p.slots * heads * chunks, block);
  if (variant.backward) add(p.slots * kv_heads * chunks, block);
  return launches;
}

OwnAttention::OwnAttention(const Attrs& attrs, const AttentionVariant& variant,
                           DevicePointer workspace)
    : attrs_(attrs), variant_(variant), workspace_(workspace) {}

bool AttentionVariant::may_use_wgmma() const {
  const char* value = std::getenv("CODA_ATTENTION");
  const bool unwanted = window || softcap || (value && std::string_view(value) == "mma");
  return tensor_cores() && (head_dim == 64 || head_dim == 128) && !unwanted;
}

std::vector<KernelSource> OwnAttention::sources() const {
  AttentionVariant variant = variant_;
  variant.wgmma = variant.may_use_wgmma();
  return attention_sources(variant);
}

void OwnAttention::bind(std::span<const TensorView> views, std::int64_t tokens) {
  const bool wgmma = variant_.may_use_wgmma() && are_aligned(views);
  if (wgmma != variant_.wgmma) kernels_.clear();
  variant_.wgmma = wgmma;
  launches_ =
      attention_launches(attrs_, variant_, views, tokens, reinterpret_cast<void*>(workspace_));
  if (!kernels_.empty()) return;
  for (const auto& source : attention_sources(variant_)) {
    kernels_.push_back(KernelStore::get().load(source));
  }
}

void OwnAttention::launch(const Stream& stream) {
  for (std::size_t i = 0; i < launches_.sizes.size(); ++i) {
    const auto [grid, block] = launches_.sizes[i];
    kernels_[i].launch(stream, grid, block, 1, {&launches_.params});
  }
}

std::size_t own_attention_workspace_bytes(const Attrs& attrs, const AttentionVariant& variant,
                                          std::int64_t max_tokens) {
  if (!variant.backward) return 0;
  const int vectors = variant.tensor_cores() ? 1 : 2;  // delta; inverse
  return static_cast<std::size_t>(max_tokens * attrs.index * vectors) * sizeof(float);
}

std::string attention_text(const Step& step, const Plan& plan) {
  if (step.opaque != Opaque::attention && step.opaque != Opaque::attention_backward) return "";
  return attention_choice(variant_of(step, plan)).text;
}

std::unique_ptr<StepKernel> make_attention_kernel(const Step& step, const Plan& plan,
                                                  const StepContext& context) {
  const AttentionVariant variant = variant_of(step, plan);
  if (!attention_choice(variant).cudnn) {
    return std::make_unique<OwnAttention>(step.attrs, variant, context.workspace);
  }
  return std::make_unique<CudnnAttentionStep>(
      step.attrs, variant, context.max_tokens, context.workspace,
      attention_workspace_bytes(step, plan, context.max_tokens));
}

std::size_t attention_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens) {
  const AttentionVariant variant = variant_of(step, plan);
  if (!attention_choice(variant).cudnn) {
    return own_attention_workspace_bytes(step.attrs, variant, max_tokens);
  }
  return cudnn_attention_workspace_bytes(step.attrs, variant, max_tokens, strides_of(step, plan));
}

}  // namespace coda::cuda
