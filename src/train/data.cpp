#include "train/data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "train/file.h"
#include "train/random.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Regular files below a folder, sorted. Links to folders are not followed: they may form a ring.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code unused;
    if (is_hidden(it->path())) {
      if (it->is_directory(unused)) it.disable_recursion_pending();
    } else if (it->is_regular_file(unused)) {
      files.push_back(it->path());
    }
  }
  if (error) {
    throw_error<UsageError>("--data: {}: cannot read the folder: {}.", folder.string(),
                            error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_text(const fs::path& path) {
  std::string text = read_file(path);
  const std::size_t zero = text.find('\0');
  const std::size_t invalid = std::min(find_invalid_utf8(text), std::min(zero, text.size()));
  if (invalid != text.size()) {
    throw_error<UsageError>(
        "--data: {}: expected UTF-8 text, got byte 0x{:02x} at offset {}. Leave binary files out, "
        "or convert the text to UTF-8.",
        path.string(), static_cast<unsigned char>(text[invalid]), invalid);
  }
  return text;
}

}  // namespace

std::vector<std::string> read_texts(std::span<const std::string> paths) {
  std::vector<std::string> texts;
  std::size_t files = 0;
  const auto add = [&](const fs::path& path) {
    ++files;
    std::string text = read_text(path);
    if (!text.empty()) texts.push_back(std::move(text));
  };
  for (const std::string& path : paths) {
    std::error_code unused;
    if (!fs::exists(path, unused)) {
      throw_error<UsageError>("--data: {}: expected a file or a folder, got nothing there.", path);
    }
    if (fs::is_directory(path, unused)) {
      for (const fs::path& file : files_below(path)) add(file);
    } else {
      add(path);
    }
  }
  if (texts.empty()) {
    throw_error<UsageError>("--data: {}: expected some text, got {} empty files.",
                            fmt::join(paths, " "), files);
  }
  return texts;
}

std::vector<std::int32_t> tokenize(std::span<const std::string> texts, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  for (const std::string& text : texts) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (tokenizer.eos() >= 0) tokens.push_back(tokenizer.eos());
  }
  return tokens;
}

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
    const auto* begin = tokens.data() + random.below(draw, windows);
    batch.tokens.insert(batch.tokens.end(), begin, begin + seq);
    batch.labels.insert(batch.labels.end(), begin + 1, begin + seq + 1);
  }
  return batch;
}

std::vector<Batch> consecutive_batches(std::span<const std::int32_t> tokens, std::int64_t seq,
                                       std::int64_t count) {
  std::vector<Batch> batches;
  if (tokens.size() < 2) return batches;
  const auto labels = static_cast<std::int64_t>(tokens.size()) - 1;
  const auto add = [&](std::int64_t at, std::int64_t length, std::int64_t sequences) {
    const auto* begin = tokens.data() + at;
    const auto* end = begin + length * sequences;
    batches.push_back({length, {begin, end}, {begin + 1, end + 1}});
  };
  const std::int64_t windows = labels / seq;
  for (std::int64_t w = 0; w < windows; w += count) {
    add(w * seq, seq, std::min(count, windows - w));
  }
  if (windows * seq < labels) add(windows * seq, labels - windows * seq, 1);
  return batches;
}

double unigram_loss(std::span<const std::int32_t> training, std::span<const std::int32_t> held_out,
                    std::int64_t vocab_size) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab_size), 1);
  for (const std::int32_t token : training) ++counts.at(static_cast<std::size_t>(token));
  const double total = static_cast<double>(training.size()) + static_cast<double>(vocab_size);
  double loss = 0.0;
  for (const std::int32_t token : held_out.subspan(1)) {
    loss -= std::log(static_cast<double>(counts.at(static_cast<std::size_t>(token))) / total);
  }
  return loss / static_cast<double>(held_out.size() - 1);
}

std::uint64_t fingerprint(std::span<const std::int32_t> tokens) {
  const auto bytes = std::as_bytes(tokens);
  return stream_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace coda
