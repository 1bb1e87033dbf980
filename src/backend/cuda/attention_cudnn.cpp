#include "backend/cuda/attention_cudnn.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "backend/cuda/device_sources.h"
#include "base/check.h"

namespace coda::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Where in the workspace: lengths, offsets, then cuDNN's own.
std::size_t lengths_bytes(std::int64_t places) {
  return aligned(static_cast<std::size_t>(places) * sizeof(std::int32_t));
}
std::size_t offsets_bytes(std::int64_t places) {
  return aligned(kCudnnOperands * static_cast<std::size_t>(places + 1) * sizeof(std::int64_t));
}

/// Which view of the registry's row is which operand of cuDNN's.
constexpr std::array<std::size_t, kCudnnOperands> kViews = {0, 1, 2, 4, 5, 6, 7, 8, 9};
std::size_t operand_count(bool backward) {
  return backward ? std::size_t{kCudnnOperands} : std::size_t{kDO};
}

/// Graphs are made for 1, 2, 4, ... sequences.
std::int64_t places_for(std::int64_t sequences) {
  std::int64_t places = 1;
  while (places < sequences) places *= 2;
  return places;
}

std::string_view wish() {
  const char* value = std::getenv("CODA_ATTENTION");
  return value ? value : "auto";
}

/// "", or why our kernels run.
std::string why_own(const AttentionVariant& variant) {
  const std::string_view value = wish();
  if (value == "own" || value == "mma") return fmt::format("CODA_ATTENTION={}", value);
  if (value != "auto" && value != "cudnn") {
    throw_error<UsageError>("CODA_ATTENTION: expected auto, own, mma or cudnn, got {}.", value);
  }
  if (variant.dtype != DType::bf16 && variant.dtype != DType::f16) {
    return fmt::format("cuDNN's do not take {}", name_of(variant.dtype));
  }
  if (variant.head_dim != 64 && variant.head_dim != 128) {
    return fmt::format("cuDNN's are used for heads of 64 and 128, not {}", variant.head_dim);
  }
  if (variant.window || variant.softcap) return "cuDNN's are used without window and softcap";
  if (const std::string& why = CudnnAttention::why_not(variant.backward); !why.empty()) return why;
  return variant.backward && value == "auto" ? "cuDNN's backward of repeatable bits is slower" : "";
}

}  // namespace

std::vector<KernelSource> cudnn_attention_sources() {
  KernelSource source;
  source.name = "attention_offsets";
  source.entry = "coda_attention_offsets";
  source.text =
      device_text({"params.cuh", "attention_params.cuh", "ptx.cuh", "attention_offsets.cuh"});
  return {source};
}

AttentionChoice attention_choice(const AttentionVariant& variant) {
  const std::string why = why_own(variant);
  if (!why.empty()) return {false, fmt::format("own kernels ({})", why)};
  return {true, CudnnAttention::version()};
}

CudnnAttentionStep::CudnnAttentionStep(const Attrs& attrs, const AttentionVariant& variant,
                                       std::int64_t max_tokens, DevicePointer workspace,
                                       std::size_t workspace_bytes)
    : attrs_(attrs),
      variant_(variant),
      max_tokens_(max_tokens),
      workspace_(workspace),
      workspace_bytes_(workspace_bytes),
      own_(attrs, variant, workspace) {}

void CudnnAttentionStep::bind(std::span<const TensorView> views, std::int64_t tokens) {
  try {
    why_own_ = bind_cudnn(views, tokens);
  } catch (const BackendError& error) {
    if (wish() == "cudnn") throw;
    why_own_ = error.what();
    static std::once_flag said;
    std::call_once(said, [&] {
      fmt::print(stderr, "coda: attention runs on coda's own kernels: {}\n", why_own_);
    });
  }
  if (why_own_.empty()) return;
  graph_.reset();
  own_.bind(views, tokens);
}

std::string CudnnAttentionStep::bind_cudnn(std::span<const TensorView> views, std::int64_t tokens) {
  const std::int64_t sequences = views[3].rows * views[3].cols - 1;
  if (tokens == 0 || sequences < 1) return "nothing to do";
  if (sequences > kCudnnSequences) return "too many sequences";
  CudnnAttentionShape shape;
  shape.dtype = variant_.dtype;
  shape.backward = variant_.backward;
  shape.n_heads = attrs_.index;
  shape.n_kv_heads = attrs_.index2;
  shape.head_dim = variant_.head_dim;
  shape.scale = static_cast<float>(attrs_.value);
  shape.sequences = places_for(sequences);
  shape.max_tokens = (max_tokens_ + 127) / 128 * 128;  // fewer graphs; and it refuses 1
  offsets_ = {};
  for (std::size_t i = 0; i < operand_count(variant_.backward); ++i) {
    const TensorView& view = views[kViews[i]];
    const std::int64_t row_bytes = view.stride * static_cast<std::int64_t>(size_of(view.dtype));
    const bool fits =
        i == kLse || (reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && row_bytes % 16 == 0);
    if (!fits) return "rows that are not at multiples of 16 bytes";
    shape.strides[i] = offsets_.strides[i] = view.stride;
    memory_.matrices[i] = view.data;
  }
  graph_ = CudnnAttention::get(shape);

  const std::size_t lengths = lengths_bytes(shape.sequences),
                    offsets = offsets_bytes(shape.sequences);
  if (lengths + offsets + graph_->workspace_bytes() > workspace_bytes_) {
    return fmt::format("cuDNN asks for {} bytes of workspace, the plan has {}",
                       lengths + offsets + graph_->workspace_bytes(), workspace_bytes_);
  }
  memory_.lengths = reinterpret_cast<void*>(workspace_);
  memory_.offsets = reinterpret_cast<void*>(workspace_ + lengths);
  memory_.workspace = reinterpret_cast<void*>(workspace_ + lengths + offsets);
  offsets_.cu_seqlens = views[3].data;
  offsets_.wide_offsets = views[3].dtype == DType::i64;
  offsets_.lengths = static_cast<int*>(memory_.lengths);
  offsets_.offsets = static_cast<long long*>(memory_.offsets);
  offsets_.sequences = static_cast<int>(sequences);
  offsets_.places = static_cast<int>(shape.sequences);
  offsets_.tokens = static_cast<int>(tokens);
  offsets_.matrices = static_cast<int>(operand_count(variant_.backward));
  if (kernels_.empty()) kernels_.push_back(KernelStore::get().load(cudnn_attention_sources()[0]));
  return "";
}

void CudnnAttentionStep::launch(const Stream& stream) {
  if (!graph_) {
    own_.launch(stream);
    return;
  }
  kernels_[0].launch(stream, 1, 256, 1, {&offsets_});
  graph_->run(stream, memory_);
}

std::size_t cudnn_attention_workspace_bytes(
    const Attrs& attrs, const AttentionVariant& variant, std::int64_t max_tokens,
    const std::array<std::int64_t, kCudnnOperands>& strides) {
  const std::size_t lists = lengths_bytes(kCudnnSequences) + offsets_bytes(kCudnnSequences);
  // Backward: fp32 sums of d_q with its strides, d_k and d_v of every query head (space for fp32),
  // dot(o, d_o) with lse's; and counters of who adds next to a tile of d_q.
  std::size_t own = std::size_t{1} << 20;
  if (variant.backward) {
    const std::int64_t group = attrs.index / attrs.index2;
    const std::int64_t row =
        strides[kDQ] + strides[kLse] + (group > 1 ? group * (strides[kDK] + strides[kDV]) : 0);
    const std::int64_t tiles = max_tokens / 64 + kCudnnSequences;
    own +=
        static_cast<std::size_t>((max_tokens + 127) * row + kCudnnSequences * attrs.index * tiles) *
        sizeof(float);
  }
  return std::max(lists + own, own_attention_workspace_bytes(attrs, variant, max_tokens));
}

}  // namespace coda::cuda
