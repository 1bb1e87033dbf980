#include "train/data.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "train/random.h"

namespace coda {
namespace {

/// Adds `count` tokens and the labels after them to a batch, as whole sequences.
void append(Batch& batch, const std::int32_t* tokens, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(batch.tokens.size());
    if (begins_document(tokens[i]) && at % batch.seq != 0) {
      batch.documents.push_back(static_cast<std::int32_t>(at));
    }
    batch.tokens.push_back(token_id(tokens[i]));
    const std::int32_t label = tokens[i + 1];
    batch.labels.push_back(begins_document(label) ? kIgnoredLabel : label);
  }
}

}  // namespace

TokenSplit split_tokens(std::span<const std::int32_t> tokens, std::int64_t seq) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  const std::int64_t held_out = std::max(total / 20, seq + 1);
  if (total - held_out < seq + 1) {
    throw_error<UsageError>(
        "--data: expected at least {} tokens (a training and a held-out sequence of --seq {}, and "
        "a token after each), got {}. Give more text or a smaller --seq.",
        2 * (seq + 1), seq, total);
  }
  const auto cut = static_cast<std::size_t>(total - held_out);
  return {tokens.first(cut), tokens.subspan(cut)};
}

Batch draw_batch(std::span<const std::int32_t> tokens, std::int64_t seq, std::uint64_t seed,
                 std::int64_t step, std::int64_t sequences_per_step, std::int64_t first,
                 std::int64_t count) {
  const CounterRandom random(seed, stream_of("data"));
  const std::uint64_t windows = tokens.size() - static_cast<std::size_t>(seq);
  Batch batch{seq, {}, {}};
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto draw = static_cast<std::uint64_t>(step * sequences_per_step + i);
    append(batch, tokens.data() + random.below(draw, windows), seq);
  }
  return batch;
}

void for_each_consecutive(std::span<const std::int32_t> tokens, std::int64_t seq,
                          std::int64_t count, const std::function<void(const Batch&)>& visit) {
  if (tokens.size() < 2) return;
  const auto labels = static_cast<std::int64_t>(tokens.size()) - 1;
  const auto pass = [&](std::int64_t at, std::int64_t length, std::int64_t sequences) {
    Batch batch{length, {}, {}};
    append(batch, tokens.data() + at, length * sequences);
    visit(batch);
  };
  const std::int64_t windows = labels / seq;
  for (std::int64_t w = 0; w < windows; w += count) {
    pass(w * seq, seq, std::min(count, windows - w));
  }
  if (windows * seq < labels) pass(windows * seq, labels - windows * seq, 1);
}

double unigram_loss(std::span<const std::int32_t> training, std::span<const std::int32_t> held_out,
                    std::int64_t vocab_size, const std::function<void()>& release) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab_size), 1);
  std::int64_t total = vocab_size;
  for (std::size_t at = 0; at < training.size(); at += kBlock) {
    for (const std::int32_t token : training.subspan(at, std::min(kBlock, training.size() - at))) {
      if (begins_document(token)) continue;
      ++counts.at(static_cast<std::size_t>(token));
      ++total;
    }
    if (release) release();
  }
  double loss = 0.0;
  std::int64_t labels = 0;
  for (const std::int32_t token : held_out.subspan(1)) {
    if (begins_document(token)) continue;
    ++labels;
    loss -= std::log(static_cast<double>(counts.at(static_cast<std::size_t>(token))) /
                     static_cast<double>(total));
  }
  return loss / static_cast<double>(std::max<std::int64_t>(1, labels));
}

std::optional<double> telling_unigram_loss(std::span<const std::int32_t> training,
                                           std::span<const std::int32_t> held_out,
                                           std::int64_t vocab_size,
                                           const std::function<void()>& release) {
  if (static_cast<std::int64_t>(training.size()) / 10 < vocab_size) return std::nullopt;
  return unigram_loss(training, held_out, vocab_size, release);
}

}  // namespace coda
