// Text to token ids and back. Two kinds: SentencePiece BPE with byte fallback, trained on the
// run's own text, and plain bytes. Both take any UTF-8 text and give it back exactly, except that
// SentencePiece writes U+2581 (its own mark for a space) as a space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace coda {

class Tokenizer {
 public:
  /// Ids 0 to 255 are bytes; then begin and end of text: 258 ids.
  static Tokenizer bytes();

  /// Trains BPE of `vocab_size` pieces (at least 320: 256 bytes, 3 controls, some letters) on the
  /// texts. A text too small for that many gives fewer: ask vocab_size(). Deterministic.
  /// Throws UsageError if vocab_size is too small.
  static Tokenizer train(std::span<const std::string> texts, std::int64_t vocab_size);

  /// Reads tokenizer.model, or tokenizer_config.json for bytes. Throws UsageError if there is
  /// neither, or a broken one.
  static Tokenizer load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Writes what load() and transformers' AutoTokenizer read.
  void save(const std::filesystem::path& folder) const;

  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Controls and ids outside the vocabulary give nothing.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int64_t vocab_size() const;
  std::int32_t bos() const;
  std::int32_t eos() const;
  bool is_bytes() const { return processor_ == nullptr; }

 private:
  explicit Tokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor);
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;  ///< nullptr: bytes
};

/// Length of the longest prefix of `text` that ends at a character's boundary; the rest is the
/// beginning of a character whose bytes have not all come yet (streaming decode).
std::size_t complete_utf8(std::string_view text);

/// Offset of the first byte that is not valid UTF-8, or text.size().
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace coda
