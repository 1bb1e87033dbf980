// tokenizer.json of Hugging Face's tokenizers: the parts of it that byte-pair encodings use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "train/tokenizer_added.h"
#include "train/tokenizer_bpe.h"
#include "train/tokenizer_normalize.h"
#include "train/tokenizer_split.h"

namespace coda {

/// One step of a normaliser.
struct NormalizerStep {
  enum class Kind { form, replace, prepend } kind;
  NormalForm form = NormalForm::nfc;
  std::vector<Regex> pattern;  ///< of replace: one
  std::string content;         ///< of replace and prepend
};

/// Which parts of a text, between added tokens, get `prefix` before them unless they begin with it.
enum class PrefixScheme { never, first, always };

struct PreTokenizer {
  std::string prefix;
  PrefixScheme scheme = PrefixScheme::never;
  std::string space;  ///< what stands for a space, if anything
  std::vector<SplitStep> steps;
  bool byte_level = false;
};

/// The file, read and checked.
struct TokenizerJson {
  std::unordered_map<std::string, std::int32_t> vocabulary;
  std::vector<Merge> merges;
  BpeOptions options;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  PreTokenizer pre_tokenizer;
  std::int32_t prefix = -1;  ///< the token that post-processing puts before a text, -1: none
};

/// Throws UsageError that opens with `where` and the field's name.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

/// The printable characters by which byte-level BPE writes the 256 bytes: visible Latin-1 ones
/// stand for themselves, the others for U+0100 and up, in order.
const std::vector<std::string>& byte_letters();

/// The bytes that byte-level text stands for; false if it has a character that stands for none.
bool from_byte_letters(std::string_view text, std::string& bytes);

}  // namespace coda
