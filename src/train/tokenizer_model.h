// What a kind of tokeniser implements; callers use Tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coda {

/// Name and content.
using TokenizerFile = std::pair<std::string, std::string>;

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;

  /// Adds the ids of `text`, which is valid UTF-8. continues: other text stands before it, so that
  /// no space is put in front of it by tokenisers that begin texts with one.
  virtual void encode(std::string_view text, bool continues,
                      std::vector<std::int32_t>& ids) const = 0;
  /// Adds the bytes that a valid id stands for, none for controls.
  virtual void decode(std::int32_t id, std::string& text) const = 0;

  virtual std::int64_t vocab_size() const = 0;  ///< above the largest id
  virtual std::int32_t bos() const = 0;         ///< -1: texts begin with none
  virtual std::int32_t eos() const = 0;         ///< -1: none is known
  virtual bool is_bytes() const { return false; }

  /// tokenizer.json and the like, as save() writes them.
  virtual std::vector<TokenizerFile> files() const = 0;
};

/// tokenizer.model, with the other files of its folder kept. Throws UsageError.
std::unique_ptr<TokenizerModel> load_pieces(const std::filesystem::path& folder);
/// See Tokenizer::train.
std::unique_ptr<TokenizerModel> train_pieces(std::span<const std::string> texts,
                                             std::int64_t vocab_size);
/// tokenizer.json. Throws UsageError naming the field that it cannot follow.
std::unique_ptr<TokenizerModel> load_tokenizer_json(const std::filesystem::path& folder);

/// Every file of the folder that belongs to a tokeniser, byte for byte.
std::vector<TokenizerFile> tokenizer_files(const std::filesystem::path& folder);

}  // namespace coda
