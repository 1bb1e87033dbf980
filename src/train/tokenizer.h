// Text to token ids and back. Four kinds: SentencePiece BPE with byte fallback, trained on the
// run's own text; plain bytes; tokenizer.model and tokenizer.json of a Hugging Face folder. What a
// run trains itself takes any UTF-8 text and gives it back exactly, except that SentencePiece
// writes U+2581 (its own mark for a space) as a space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/utf8.h"

namespace coda {

class TokenizerModel;

/// Encoding keeps a cache, so one object serves one thread at a time.
class Tokenizer {
 public:
  /// Ids 0 to 255 are bytes; then begin and end of text: 258 ids.
  static Tokenizer bytes();

  /// Trains BPE of `vocab_size` pieces (at least 320: 256 bytes, 3 controls, some letters) on the
  /// texts. A text too small for that many gives fewer: ask vocab_size(). Deterministic.
  /// Throws UsageError if vocab_size is too small.
  static Tokenizer train(std::span<const std::string> texts, std::int64_t vocab_size);

  /// Reads tokenizer.model, coda's byte tokenizer, or tokenizer.json. Throws UsageError if there is
  /// none, a broken one, or a tokenizer.json with parts that coda cannot follow.
  static Tokenizer load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Writes what load() and transformers' AutoTokenizer read; files that were loaded, byte for
  /// byte.
  void save(const std::filesystem::path& folder) const;

  /// The text's ids, without begin and end. Ill-formed UTF-8 counts as U+FFFD. continues: the text
  /// continues another, so that tokenizers which put a space before texts leave it out.
  std::vector<std::int32_t> encode(std::string_view text, bool continues = false) const;
  /// Controls and ids outside the vocabulary give nothing.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// Where a text of which only this part is known can be cut: the ids of what stands before and of
  /// what follows (as encode(..., true) gives them) are those of the whole. It is the last place of
  /// a line's end, a space or, failing these, a character, that changes no id within 4096 bytes on
  /// either side and is at least as far from the end of `text`; 0 if none is found.
  std::size_t find_cut(std::string_view text) const;

  std::int64_t vocab_size() const;
  std::int32_t bos() const;  ///< what texts begin with; -1: nothing
  std::int32_t eos() const;  ///< what texts end with; -1: nothing
  bool is_bytes() const;

  /// Tells tokenizers apart: a hash of their files.
  std::uint64_t fingerprint() const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerModel> model);
  std::unique_ptr<TokenizerModel> model_;
};

}  // namespace coda
