#include "train/tokenizer_added.h"

#include <utf8proc.h>

#include <algorithm>

#include "train/utf8.h"

namespace coda {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

/// White_Space of Unicode 15.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

/// Letters, marks, digits, letter numbers, connectors and joiners (Unicode, UTS 18, \w).
bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
             (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189);
  }
}

/// Where the character that ends at `end` begins.
std::size_t previous(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    by_first_byte_.resize(256);
    by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(std::move(token));
  }
  for (auto& bucket : by_first_byte_) {
    std::stable_sort(bucket.begin(), bucket.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.compare(at, token.content.size(), token.content) == 0) return &token;
  }
  return nullptr;
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from) const {
  if (by_first_byte_.empty()) return {kNone, kNone, -1};
  for (std::size_t at = from; at < text.size(); ++at) {
    if (by_first_byte_[static_cast<unsigned char>(text[at])].empty()) continue;
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) continue;
    std::size_t begin = at, end = at + token->content.size();
    if (token->single_word) {
      const bool inside = (begin > 0 && is_word(code_point_at(text, previous(text, begin)))) ||
                          (end < text.size() && is_word(code_point_at(text, end)));
      if (inside) {
        at = end - 1;  // its characters are used up all the same
        continue;
      }
    }
    while (token->left_strip && begin > from) {
      const std::size_t before = previous(text, begin);
      if (!is_space(code_point_at(text, before))) break;
      begin = before;
    }
    while (token->right_strip && end < text.size() && is_space(code_point_at(text, end))) {
      end += utf8_length(static_cast<unsigned char>(text[end]));
    }
    return {begin, end, token->id};
  }
  return {kNone, kNone, -1};
}

}  // namespace coda
