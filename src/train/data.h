// The token stream to training batches. Which windows a step sees is a pure function of (seed,
// step), so that a resumed run continues exactly; the held-out part is the end of the stream.
// Documents in one window do not see each other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "train/data_tokens.h"
#include "train/model.h"

namespace coda {

struct TokenSplit {
  std::span<const std::int32_t> training, held_out;
};
/// Of a stream as TokenFile has it (kDocumentBit marks where documents begin): the last twentieth
/// is held out, at least one sequence and the token after it. Throws UsageError if either part
/// would be shorter than that.
TokenSplit split_tokens(std::span<const std::int32_t> tokens, std::int64_t seq);

/// Sequences `first` to `first + count - 1` of those that `step` sees, drawn uniformly with
/// replacement from all windows of seq tokens; the label of a token is the one after it, or none
/// where that begins another document.
Batch draw_batch(std::span<const std::int32_t> tokens, std::int64_t seq, std::uint64_t seed,
                 std::int64_t step, std::int64_t sequences_per_step, std::int64_t first,
                 std::int64_t count);

/// Calls visit(batch) with consecutive windows over all the tokens, `count` sequences a batch; the
/// rest that fills no window comes last as a shorter sequence of its own. Every token but the first
/// is a label once, unless it begins a document.
void for_each_consecutive(std::span<const std::int32_t> tokens, std::int64_t seq,
                          std::int64_t count, const std::function<void(const Batch&)>& visit);

/// Mean cross-entropy, in nats, of tokens 1 to the last under the frequencies of the training
/// tokens with one added to every count: what a model must beat to have learnt any context. Tokens
/// that begin documents are left out, as they are no labels. release: called every million tokens.
double unigram_loss(std::span<const std::int32_t> training, std::span<const std::int32_t> held_out,
                    std::int64_t vocab_size, const std::function<void()>& release = {});

/// The same where it tells something: from ten training tokens an id on. With fewer, the counts
/// that are added decide, and a model that has learnt next to nothing would seem to have learnt a
/// lot.
std::optional<double> telling_unigram_loss(std::span<const std::int32_t> training,
                                           std::span<const std::int32_t> held_out,
                                           std::int64_t vocab_size,
                                           const std::function<void()>& release = {});

}  // namespace coda
