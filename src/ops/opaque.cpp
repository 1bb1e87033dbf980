#include "ops/opaque.h"

#include <array>

#include "base/check.h"

namespace coda {
namespace {

using From = OpaqueSource::From;
using Names = std::string_view;

constexpr std::array<Names, 4> kAttentionInputs = {"q", "k", "v", "cu_seqlens"};
constexpr std::array<Names, 2> kAttentionOutputs = {"o", "lse"};
constexpr std::array<Names, 7> kAttentionBackwardInputs = {"q", "k",   "v",  "cu_seqlens",
                                                           "o", "lse", "d_o"};
constexpr std::array<Names, 3> kAttentionBackwardOutputs = {"d_q", "d_k", "d_v"};
constexpr std::array<OpaqueSource, 7> kAttentionBackwardSources = {{{From::input, 0},
                                                                    {From::input, 1},
                                                                    {From::input, 2},
                                                                    {From::input, 3},
                                                                    {From::output, 0},
                                                                    {From::output, 1},
                                                                    {From::cotangent, 0}}};
constexpr std::array<int, 3> kAttentionGradients = {0, 1, 2};

constexpr std::array<Names, 2> kEmbeddingInputs = {"table", "ids"};
constexpr std::array<Names, 1> kEmbeddingOutputs = {"x"};
constexpr std::array<Names, 2> kEmbeddingBackwardInputs = {"ids", "d_x"};
constexpr std::array<Names, 1> kEmbeddingBackwardOutputs = {"d_table"};
constexpr std::array<OpaqueSource, 2> kEmbeddingBackwardSources = {
    {{From::input, 1}, {From::cotangent, 0}}};
constexpr std::array<int, 1> kEmbeddingGradients = {0};

constexpr std::array<Names, 7> kCachedAttentionInputs = {"q",       "k",          "v",   "cache_k",
                                                         "cache_v", "cu_seqlens", "past"};
constexpr std::array<Names, 1> kCachedAttentionOutputs = {"o"};
constexpr std::array<int, 2> kCachedAttentionUpdates = {3, 4};

/// In the order of the enum, from Opaque::attention on.
const std::array<OpaqueRow, 5> kRows = {{
    {Opaque::attention, "attention", kAttentionInputs, kAttentionOutputs,
     Opaque::attention_backward, kAttentionBackwardSources, kAttentionGradients},
    {Opaque::attention_backward,
     "attention_backward",
     kAttentionBackwardInputs,
     kAttentionBackwardOutputs,
     Opaque::none,
     {},
     {}},
    {Opaque::embedding, "embedding", kEmbeddingInputs, kEmbeddingOutputs,
     Opaque::embedding_backward, kEmbeddingBackwardSources, kEmbeddingGradients},
    {Opaque::embedding_backward,
     "embedding_backward",
     kEmbeddingBackwardInputs,
     kEmbeddingBackwardOutputs,
     Opaque::none,
     {},
     {},
     {},
     true},
    {Opaque::cached_attention,
     "cached_attention",
     kCachedAttentionInputs,
     kCachedAttentionOutputs,
     Opaque::none,
     {},
     {},
     kCachedAttentionUpdates},
}};

}  // namespace

const OpaqueRow& row_of(Opaque opaque) {
  const auto index = static_cast<std::size_t>(opaque);
  internal_check(index >= 1 && index <= kRows.size(), "row_of: no opaque node number {}", index);
  return kRows[index - 1];
}

}  // namespace coda
