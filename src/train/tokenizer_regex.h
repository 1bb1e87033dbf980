// Regular expressions of tokenizer.json. They are written for Oniguruma (Ruby's syntax) and run on
// PCRE2: what the two read differently is translated, or refused by name, and properties hold the
// characters of Unicode 16 whatever PCRE2's own tables know.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace coda {

class Regex {
 public:
  /// Throws UsageError, opening with `where`, if the pattern is broken or cannot be translated.
  Regex(std::string_view pattern, const std::string& where);
  Regex(Regex&&) noexcept;
  ~Regex();

  struct Match {
    std::size_t begin, end;  ///< begin == std::string_view::npos: none
    bool found() const { return begin != std::string_view::npos; }
  };
  /// The first match at `from` or later; `text` is valid UTF-8. Throws UsageError if the text makes
  /// the pattern exceed PCRE2's limits.
  Match find(std::string_view text, std::size_t from) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

/// A pattern that matches the text itself.
std::string escaped_pattern(std::string_view text);

/// Oniguruma's pattern as one for PCRE2. Throws UsageError, opening with `where`.
std::string translated_pattern(std::string_view pattern, const std::string& where);

}  // namespace coda
