// UTF-8: where it is broken, and how to mend it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace coda {

/// Bytes of the character that this byte leads, 0 if none can begin with it.
std::size_t utf8_length(unsigned char lead);

/// Length of the longest prefix of `text` that ends at a character's boundary; the rest is the
/// beginning of a character whose bytes have not all come yet (streaming decode).
std::size_t complete_utf8(std::string_view text);

/// Offset of the first byte that is not valid UTF-8, or text.size().
std::size_t find_invalid_utf8(std::string_view text);

/// Appends `text` to `out` with U+FFFD for each ill-formed part (the longest beginnings of a
/// character, else single bytes: Unicode 15, section 3.9). Returns how many there were.
std::int64_t append_valid_utf8(std::string_view text, std::string& out);

/// The code point of the character at `text[at]`, which must be valid.
char32_t code_point_at(std::string_view text, std::size_t at);

}  // namespace coda
