#include "train/utf8.h"

#include <algorithm>
#include <cstring>

namespace coda {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Unicode 15, table 3-7: the second byte's range depends on the first (no overlong forms, no
/// surrogates, nothing beyond U+10FFFF).
bool is_continuation(unsigned char lead, std::size_t position, unsigned char byte) {
  if (position == 1) {
    if (lead == 0xe0) return byte >= 0xa0 && byte < 0xc0;
    if (lead == 0xed) return byte >= 0x80 && byte < 0xa0;
    if (lead == 0xf0) return byte >= 0x90 && byte < 0xc0;
    if (lead == 0xf4) return byte >= 0x80 && byte < 0x90;
  }
  return byte >= 0x80 && byte < 0xc0;
}

/// How many bytes at `at` begin a well-formed character (at most its length).
std::size_t well_formed(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = utf8_length(lead);
  if (length == 0) return 0;
  std::size_t good = 1;
  while (good < length && at + good < text.size() &&
         is_continuation(lead, good, static_cast<unsigned char>(text[at + good]))) {
    ++good;
  }
  return good;
}

std::size_t skip_ascii(std::string_view text, std::size_t at) {
  for (std::uint64_t word = 0; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

std::size_t find_invalid_from(std::string_view text, std::size_t at) {
  for (;;) {
    at = skip_ascii(text, at);
    if (at >= text.size()) return text.size();
    const std::size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    if (length == 0 || well_formed(text, at) != length) return at;
    at += length;
  }
}

}  // namespace

std::size_t utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

std::size_t complete_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte >= 0x80 && byte < 0xc0) continue;
    return utf8_length(byte) > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::size_t find_invalid_utf8(std::string_view text) { return find_invalid_from(text, 0); }

std::int64_t append_valid_utf8(std::string_view text, std::string& out) {
  std::int64_t replaced = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bad = find_invalid_from(text, at);
    out += text.substr(at, bad - at);
    if (bad == text.size()) break;
    out += kReplacement;
    ++replaced;
    at = bad + std::max<std::size_t>(1, well_formed(text, bad));
  }
  return replaced;
}

char32_t code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  switch (utf8_length(static_cast<unsigned char>(text[at]))) {
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 |
             (byte(3) & 0x3f);
    default:
      return byte(0);
  }
}

}  // namespace coda
