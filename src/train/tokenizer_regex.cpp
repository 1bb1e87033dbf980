#include "train/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/check.h"

namespace coda {
namespace {

/// White space as Oniguruma has it; PCRE2's \s adds U+180E, which Unicode took out in version 6.3.
constexpr std::string_view kSpace =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

struct Supplement {
  std::string_view property, ranges;
};

/// Characters that Unicode 15, 15.1 and 16 added, by general category (UnicodeData.txt).
constexpr std::array kSupplements = {
    Supplement{"Lu", "\\x{1c89}\\x{a7cb}\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"},
    Supplement{"Ll", "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"},
    Supplement{"Lm",
               "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}\\x{16d6c}\\x{1e030}-\\x{1e06d}"
               "\\x{1e4eb}"},
    Supplement{"Lo",
               "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}"
               "\\x{1123f}\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}"
               "\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"
               "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"
               "\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}\\x{1b132}\\x{1b155}"
               "\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}"
               "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    Supplement{"M",
               "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"
               "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"
               "\\x{113cc}-\\x{113d0}\\x{113d2}\\x{113e1}\\x{113e2}\\x{11f00}\\x{11f01}\\x{11f03}"
               "\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}"
               "\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}"
               "\\x{1e5ee}\\x{1e5ef}"},
    Supplement{"Nd",
               "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}"
               "\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}"
               "\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"},
    Supplement{"No", "\\x{1d2c0}-\\x{1d2d3}"},
    Supplement{"P",
               "\\x{1b4e}\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}\\x{113d5}\\x{113d7}\\x{113d8}"
               "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}"
               "\\x{1e5ff}"},
    Supplement{"S",
               "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}\\x{31e5}\\x{31ef}\\x{10d8e}"
               "\\x{10d8f}\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}"
               "\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}"
               "\\x{1f8c0}\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}"
               "\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}\\x{1facf}"
               "\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}\\x{1fae9}\\x{1faf7}\\x{1faf8}"
               "\\x{1fbcb}-\\x{1fbef}"},
};

/// What goes inside [...] for a property, "" if it is none of those that tokenizers use.
std::string property_ranges(std::string_view name) {
  const std::array<std::string_view, 15> known = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N",
                                                  "Nd", "Nl", "No", "P",  "S",  "Mn", "Mc"};
  std::string out;
  for (const std::string_view each : known) {
    if (each == name) out = fmt::format("\\p{{{}}}", name);
  }
  if (out.empty() || name == "Mn" || name == "Mc") return name.size() == 1 ? out : "";
  for (const Supplement& s : kSupplements) {
    if (s.property == name || (name.size() == 1 && s.property[0] == name[0])) out += s.ranges;
  }
  return out;
}

/// Walks the pattern once and writes it anew.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        char_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        counted();
      } else if (c == '.' || c == '^' || c == '$') {
        // Where lines begin depends on the text before, of which a piece shows nothing.
        c == '.' ? copy(1) : unsupported(fmt::format("{}", c));
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    throw_error<UsageError>("{}: expected a pattern that coda can read, got {} in \"{}\".", where_,
                            what, in_);
  }

  char peek(std::size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  /// Groups that mean the same to both: plain, (?:...), (?i:...), lookahead.
  void group() {
    for (const std::string_view start : {"(?:", "(?i:", "(?=", "(?!", "(?>"}) {
      if (in_.substr(at_).starts_with(start)) return copy(start.size());
    }
    if (peek(1) == '?' || peek(1) == '*') unsupported(in_.substr(at_, 4));
    copy(1);
  }

  /// {n}, {n,}, {n,m}; after one, + means possessive to PCRE2 and repetition to Oniguruma.
  void counted() {
    const std::size_t end = in_.find('}', at_);
    const std::string_view inside =
        end == std::string_view::npos ? "" : in_.substr(at_ + 1, end - at_ - 1);
    const bool counts = !inside.empty() && inside[0] >= '0' && inside[0] <= '9' &&
                        inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!counts) unsupported("\"{\" that begins no count");
    if (end + 1 < in_.size() && (in_[end + 1] == '+' || in_[end + 1] == '?')) {
      unsupported("a count followed by " + std::string(1, in_[end + 1]));
    }
    copy(end + 1 - at_);
  }

  void escape(bool in_class) {
    const char c = peek(1);
    if (c == 'p' || c == 'P') return property(in_class);
    if (c == 's' || c == 'S' || c == 'd' || c == 'D') {
      const std::string inside = c == 's' || c == 'S' ? std::string(kSpace) : property_ranges("Nd");
      const bool negated = c == 'S' || c == 'D';
      if (in_class && negated) unsupported(fmt::format("\\{} inside [...]", c));
      out_ += in_class ? inside : fmt::format("[{}{}]", negated ? "^" : "", inside);
      at_ += 2;
      return;
    }
    if (c == 'v') {  // one character to Oniguruma
      out_ += "\\x0b";
      at_ += 2;
      return;
    }
    if (c == 'u') {
      if (at_ + 6 > in_.size()) unsupported("\\u without four digits");
      out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
      at_ += 6;
      return;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    if (c == '\0' || digit ||
        (letter && c != 'n' && c != 'r' && c != 't' && c != 'f' && c != 'x')) {
      unsupported(fmt::format("\\{}", c));
    }
    copy(2);
  }

  /// \p{L}, \P{L}, \p{^L}: with the later characters; scripts and others as PCRE2 knows them.
  void property(bool in_class) {
    const std::size_t end = in_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) unsupported("\\p without {name}");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::string ranges = property_ranges(name);
    if (ranges.empty()) {
      out_ += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    } else if (!in_class) {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", ranges);
    } else if (!negated) {
      out_ += ranges;
    } else {
      unsupported("a negated property inside [...]");
    }
    at_ = end + 1;
  }

  void char_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') unsupported("[] that begins with ]");
    for (;;) {
      const char c = peek(0);
      if (at_ >= in_.size()) unsupported("[ without ]");
      if (c == ']') return copy(1);
      if (c == '[') unsupported("[ inside [...]");
      if (c == '&' && peek(1) == '&') unsupported("&& inside [...]");
      c == '\\' ? escape(true) : copy(1);
    }
  }

  std::string_view in_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::string where;

  ~Compiled() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view pattern, const std::string& where)
    : compiled_(std::make_unique<Compiled>()) {
  const std::string translated = translated_pattern(pattern, where);
  int error = 0;
  std::size_t offset = 0;
  Compiled& c = *compiled_;
  c.where = where;
  c.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                         PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (c.code == nullptr) {
    throw_error<UsageError>("{}: expected a regular expression, got \"{}\": {}.", where, pattern,
                            pcre2_message(error));
  }
  c.data = pcre2_match_data_create(1, nullptr);
  c.context = pcre2_match_context_create(nullptr);
  // Without the just-in-time compiler the same matches are found, more slowly.
  if (pcre2_jit_compile(c.code, PCRE2_JIT_COMPLETE) == 0) {
    c.stack = pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{16} << 20, nullptr);
    pcre2_jit_stack_assign(c.context, nullptr, c.stack);
  }
  pcre2_set_match_limit(c.context, 1'000'000'000);
}

Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex::Match Regex::find(std::string_view text, std::size_t from) const {
  const Compiled& c = *compiled_;
  const int count = pcre2_match(c.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, PCRE2_NO_UTF_CHECK, c.data, c.context);
  if (count == PCRE2_ERROR_NOMATCH) return {std::string_view::npos, std::string_view::npos};
  if (count < 0) {
    throw_error<UsageError>("{}: PCRE2 cannot match the pattern against this text: {}.", c.where,
                            pcre2_message(count));
  }
  const std::size_t* ends = pcre2_get_ovector_pointer(c.data);
  return {ends[0], ends[1]};
}

std::string escaped_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                       (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && static_cast<unsigned char>(c) > ' ') out += '\\';
    out += c;
  }
  return out;
}

std::string translated_pattern(std::string_view pattern, const std::string& where) {
  // Lines end with \n to Oniguruma, whatever PCRE2 was built for.
  return "(*LF)" + Translator(pattern, where).run();
}

}  // namespace coda
