#include "train/tokenizer_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "train/utf8.h"

namespace coda {
namespace {

struct Range {
  char32_t first, last;
};

/// Characters of Unicode 10 to 15 that have a combining class or a mapping, or compose.
constexpr std::array kNewerCharacters = {
    Range{0x7fd, 0x7fd},     Range{0x898, 0x89f},     Range{0x8ca, 0x8d3},
    Range{0x9fe, 0x9fe},     Range{0xc3c, 0xc3c},     Range{0xd3b, 0xd3c},
    Range{0xeba, 0xeba},     Range{0x1715, 0x1715},   Range{0x1abf, 0x1ace},
    Range{0x1df6, 0x1dfa},   Range{0x32ff, 0x32ff},   Range{0xa7f2, 0xa7f4},
    Range{0xa82c, 0xa82c},   Range{0xab69, 0xab69},   Range{0x10781, 0x10785},
    Range{0x10787, 0x107b0}, Range{0x107b2, 0x107ba}, Range{0x10d24, 0x10d27},
    Range{0x10eab, 0x10eac}, Range{0x10efd, 0x10eff}, Range{0x10f46, 0x10f50},
    Range{0x10f82, 0x10f85}, Range{0x11070, 0x11070}, Range{0x1133b, 0x1133b},
    Range{0x1145e, 0x1145e}, Range{0x11839, 0x1183a}, Range{0x11930, 0x11930},
    Range{0x11938, 0x11938}, Range{0x1193d, 0x1193e}, Range{0x11943, 0x11943},
    Range{0x119e0, 0x119e0}, Range{0x11a34, 0x11a34}, Range{0x11a47, 0x11a47},
    Range{0x11a99, 0x11a99}, Range{0x11d42, 0x11d42}, Range{0x11d44, 0x11d45},
    Range{0x11d97, 0x11d97}, Range{0x11f41, 0x11f42}, Range{0x16ff0, 0x16ff1},
    Range{0x1e030, 0x1e06d}, Range{0x1e08f, 0x1e08f}, Range{0x1e130, 0x1e136},
    Range{0x1e2ae, 0x1e2ae}, Range{0x1e2ec, 0x1e2ef}, Range{0x1e4ec, 0x1e4ef},
    Range{0x1f16c, 0x1f16c}, Range{0x1fbf0, 0x1fbf9},
};

bool is_newer(char32_t c) {
  const auto* const range =
      std::lower_bound(kNewerCharacters.begin(), kNewerCharacters.end(), c,
                       [](const Range& r, char32_t value) { return r.last < value; });
  return range != kNewerCharacters.end() && range->first <= c;
}

void append_normalized(std::string_view text, NormalForm form, std::string& out) {
  if (text.empty()) return;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &result,
                                             static_cast<utf8proc_option_t>(options));
  if (size < 0) {
    throw_error<InternalError>("tokenizer: utf8proc on valid text: {}", utf8proc_errmsg(size));
  }
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
}

}  // namespace

std::string normalized(std::string_view text, NormalForm form) {
  // Nothing below U+0300 changes by NFC, nor below U+0080 by any form.
  const int least_changed = form == NormalForm::nfc ? 0xcc : 0x80;
  const bool plain = std::all_of(text.begin(), text.end(), [&](char c) {
    return static_cast<unsigned char>(c) < least_changed;
  });
  if (plain) return std::string(text);
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    if (length >= 2 && is_newer(code_point_at(text, at))) {
      append_normalized(text.substr(begin, at - begin), form, out);
      out += text.substr(at, length);
      begin = at + length;
    }
    at += length;
  }
  append_normalized(text.substr(begin), form, out);
  return out;
}

}  // namespace coda
