// Tokens that tokenizer.json adds to a vocabulary: they are found in the text before anything else
// is done to it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only between characters of no word
  bool left_strip = false;   ///< takes the white space before it
  bool right_strip = false;  ///< and after it
  bool normalized = false;   ///< is looked for after normalisation
  bool special = false;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    std::size_t begin, end;  ///< with the white space taken; begin == npos: none
    std::int32_t id;
  };
  /// The leftmost token at `from` or later, of those there the longest. Stripping to the left ends
  /// at `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<std::vector<AddedToken>> by_first_byte_;  ///< longest first
};

}  // namespace coda
