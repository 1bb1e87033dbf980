// The token stream of a run: a file of 32-bit ids, written while the texts are read and mapped
// afterwards, so that neither is ever in memory as a whole. A run keeps it as RUN/tokens.bin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "train/data_texts.h"
#include "train/tokenizer.h"

namespace coda {

/// The first token of a document has this bit set beside its id.
inline constexpr std::int32_t kDocumentBit = std::int32_t{1} << 30;
constexpr bool begins_document(std::int32_t token) { return (token & kDocumentBit) != 0; }
constexpr std::int32_t token_id(std::int32_t token) { return token & ~kDocumentBit; }

/// A token file, open and mapped. Move-only.
class TokenFile {
 public:
  /// Reads all texts: begin, text, end of each document, with kDocumentBit on its first. The file
  /// has no name; it lies in `folder`, or where temporary files do if that cannot be written, and
  /// goes when this object does unless it is kept. Throws UsageError as Texts::read, BackendError.
  static TokenFile write(const Texts& texts, const Tokenizer& tokenizer,
                         const std::filesystem::path& folder, TextReport& report,
                         const Texts::Progress& progress = {});

  /// A kept file, read once to check it. None if there is none or it is of other data; the reason
  /// goes to `trouble` if one is there that is damaged.
  static std::optional<TokenFile> open(const std::filesystem::path& path, std::uint64_t key,
                                       std::string& trouble);

  /// What a file is made from.
  static std::uint64_t key(const Texts& texts, const Tokenizer& tokenizer);

  /// Gives the file a name, replacing what has it. Throws BackendError.
  void keep(const std::filesystem::path& path);

  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;
  ~TokenFile();

  std::span<const std::int32_t> tokens() const { return {tokens_, count_}; }
  /// Lets go of the pages that were read; they come back when they are read again.
  void release() const;
  /// Tells token streams apart: a run resumes on the data that it began with.
  std::uint64_t hash() const { return hash_; }

 private:
  TokenFile() = default;
  void map();

  int fd_ = -1;
  const std::int32_t* tokens_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0, count_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace coda
