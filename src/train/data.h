// Text files to training batches. Which windows a step sees is a pure function of (seed, step), so
// that a resumed run continues exactly; the held-out part is the end of the token stream.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/model.h"
#include "train/tokenizer.h"

namespace coda {

/// The texts of files, and of all files below folders, in the order given and then by path; files
/// and folders below whose name begins with a dot are left out. Throws UsageError naming the path
/// if one is missing, unreadable, no UTF-8 text, or if there is no text at all.
std::vector<std::string> read_texts(std::span<const std::string> paths);

/// One stream: begin, text, end for each text.
std::vector<std::int32_t> tokenize(std::span<const std::string> texts, const Tokenizer& tokenizer);

struct TokenSplit {
  std::span<const std::int32_t> training, held_out;
};
/// The last twentieth is held out, at least one sequence and the token after it. Throws UsageError
/// if either part would be shorter than that.
TokenSplit split_tokens(std::span<const std::int32_t> tokens, std::int64_t seq);

/// Sequences `first` to `first + count - 1` of those that `step` sees, drawn uniformly with
/// replacement from all windows of seq tokens; the label of a token is the one after it.
Batch draw_batch(std::span<const std::int32_t> tokens, std::int64_t seq, std::uint64_t seed,
                 std::int64_t step, std::int64_t sequences_per_step, std::int64_t first,
                 std::int64_t count);

/// Consecutive windows over all the tokens, `count` sequences a batch; the rest that fills no
/// window comes last as a shorter sequence of its own. Every token but the first is a label once.
std::vector<Batch> consecutive_batches(std::span<const std::int32_t> tokens, std::int64_t seq,
                                       std::int64_t count);

/// Mean cross-entropy, in nats, of tokens 1 to the last under the frequencies of the training
/// tokens with one added to every count: what a model must beat to have learnt any context.
double unigram_loss(std::span<const std::int32_t> training, std::span<const std::int32_t> held_out,
                    std::int64_t vocab_size);

/// Tells apart two token streams (a 64-bit hash): a run resumes on the data that it began with.
std::uint64_t fingerprint(std::span<const std::int32_t> tokens);

}  // namespace coda
