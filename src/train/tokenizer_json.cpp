#include "train/tokenizer_json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nn/json_object.h"
#include "train/utf8.h"

namespace coda {
namespace {

using nlohmann::json;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const json kNull;

/// A JSON value and where it stands, for messages.
struct Field {
  const json& value;
  std::string where;

  [[noreturn]] void reject(std::string_view expected) const {
    throw_error<UsageError>("{}: expected {}, got {}.", where, expected, excerpt(value));
  }

  Field at(const char* name) const {
    const auto found = value.is_object() ? value.find(name) : value.end();
    return {value.is_object() && found != value.end() ? *found : kNull,
            fmt::format("{}.{}", where, name)};
  }
  Field element(std::size_t i) const { return {value[i], fmt::format("{}[{}]", where, i)}; }
  bool absent() const { return value.is_null(); }

  const std::string& text(std::string_view expected = "a string") const {
    if (!value.is_string()) reject(expected);
    return value.get_ref<const std::string&>();
  }
  bool flag(bool otherwise = false) const {
    if (absent()) return otherwise;
    if (!value.is_boolean()) reject("true or false");
    return value.get<bool>();
  }
  std::int32_t id() const {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 1;
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() > kMost) {
      reject("an id");
    }
    return value.get<std::int32_t>();
  }
  const Field& array() const {
    if (!value.is_array()) reject("a list");
    return *this;
  }
  const Field& object() const {
    if (!value.is_object()) reject("an object");
    return *this;
  }
  std::size_t size() const { return value.size(); }
};

/// Calls read(step) for the parts of a {"type": "Sequence"}, else for the field itself.
template <class Read>
void for_each_step(const Field& field, const char* list, Read read) {
  if (field.object().at("type").text() != "Sequence") return read(field);
  const Field parts = field.at(list);
  for (std::size_t i = 0; i < parts.array().size(); ++i) {
    for_each_step(parts.element(i), list, read);
  }
}

Regex pattern_of(const Field& field) {
  const Field regex = field.object().at("Regex"), text = field.at("String");
  if (!regex.absent()) return Regex(regex.text(), regex.where);
  if (text.text().empty()) text.reject("a text to look for");
  return Regex(escaped_pattern(text.text()), text.where);
}

void read_normalizer(const Field& field, std::vector<NormalizerStep>& steps) {
  using Kind = NormalizerStep::Kind;
  const std::string& type = field.at("type").text();
  const auto form = [&](NormalForm f) { steps.push_back({Kind::form, f, {}, {}}); };
  if (type == "NFC") return form(NormalForm::nfc);
  if (type == "NFD") return form(NormalForm::nfd);
  if (type == "NFKC") return form(NormalForm::nfkc);
  if (type == "NFKD") return form(NormalForm::nfkd);
  if (type == "Replace") {
    NormalizerStep step{Kind::replace, {}, {}, field.at("content").text()};
    step.pattern.push_back(pattern_of(field.at("pattern")));
    return steps.push_back(std::move(step));
  }
  if (type == "Prepend") {
    return steps.push_back({Kind::prepend, {}, {}, field.at("prepend").text()});
  }
  field.at("type").reject("NFC, NFD, NFKC, NFKD, Replace, Prepend or Sequence");
}

SplitBehavior behavior_of(const Field& field) {
  const std::string& name = field.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  field.reject("Removed, Isolated, Contiguous, MergedWithPrevious or MergedWithNext");
}

void read_byte_level(const Field& field, PreTokenizer& out) {
  if (field.at("add_prefix_space").flag(true)) {
    if (!out.steps.empty()) field.at("add_prefix_space").reject("false after other steps");
    out.prefix = std::string(1, ' ');
    out.scheme = PrefixScheme::always;
  }
  if (field.at("use_regex").flag(true)) {
    out.steps.push_back({Regex(kGpt2Pattern, field.where), SplitBehavior::isolated, false});
  }
  out.byte_level = true;
}

void read_metaspace(const Field& field, PreTokenizer& out) {
  if (!out.steps.empty()) field.at("type").reject("Metaspace before other steps");
  out.space = out.prefix = field.at("replacement").text();
  const Field scheme = field.at("prepend_scheme");
  const std::string name = !scheme.absent()                          ? scheme.text()
                           : field.at("add_prefix_space").flag(true) ? "always"
                                                                     : "never";
  if (name != "always" && name != "first" && name != "never") {
    scheme.reject("always, first or never");
  }
  out.scheme = name == "always"  ? PrefixScheme::always
               : name == "first" ? PrefixScheme::first
                                 : PrefixScheme::never;
  if (field.at("split").flag(true)) {
    out.steps.push_back(
        {Regex(escaped_pattern(out.space), field.where), SplitBehavior::merged_with_next, false});
  }
}

void read_pre_tokenizer(const Field& field, PreTokenizer& out) {
  const std::string& type = field.at("type").text();
  if (out.byte_level) field.at("type").reject("nothing after ByteLevel");
  const auto add = [&](std::string_view pattern, SplitBehavior behavior) {
    out.steps.push_back({Regex(pattern, field.where), behavior, false});
  };
  if (type == "ByteLevel") return read_byte_level(field, out);
  if (type == "Metaspace") return read_metaspace(field, out);
  if (type == "Split") {
    return out.steps.push_back({pattern_of(field.at("pattern")), behavior_of(field.at("behavior")),
                                field.at("invert").flag()});
  }
  if (type == "Digits") {
    return add(field.at("individual_digits").flag() ? "\\p{N}" : "\\p{N}+",
               SplitBehavior::isolated);
  }
  field.at("type").reject("ByteLevel, Split, Digits, Metaspace or Sequence");
}

/// The token that goes before a text. What goes behind it is not read: texts end with the end token
/// anyway, and prompts do not.
std::int32_t template_prefix(const Field& field) {
  const Field single = field.at("single");
  std::int32_t prefix = -1;
  for (std::size_t i = 0; i < single.array().size(); ++i) {
    const Field token = single.element(i).at("SpecialToken");
    if (token.absent()) break;  // the text
    const Field ids = field.at("special_tokens").at(token.at("id").text().c_str()).at("ids");
    if (prefix >= 0 || ids.array().size() != 1) single.reject("at most one token before the text");
    prefix = ids.element(0).id();
  }
  return prefix;
}

void read_post_processor(const Field& field, TokenizerJson& out) {
  const std::string& type = field.at("type").text();
  std::int32_t prefix = -1;
  if (type == "TemplateProcessing") {
    prefix = template_prefix(field);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const Field cls = field.at("cls");
    if (cls.array().size() != 2) cls.reject("a token and its id");
    prefix = cls.element(1).id();
  } else if (type != "ByteLevel") {
    field.at("type").reject(
        "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing or Sequence");
  }
  if (prefix >= 0 && out.prefix >= 0) field.reject("one token before the text");
  if (prefix >= 0) out.prefix = prefix;
}

void check_decoder(const Field& field, bool byte_level) {
  const std::string& type = field.at("type").text();
  if (byte_level) {
    if (type != "ByteLevel") field.at("type").reject("ByteLevel, as the pre_tokenizer");
  } else if (type != "Replace" && type != "ByteFallback" && type != "Fuse" && type != "Strip" &&
             type != "Metaspace") {
    field.at("type").reject("Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  }
}

void expect_empty(const Field& field) {
  if (field.absent() || (field.value.is_string() && field.text().empty())) return;
  if (field.value.is_number() && field.value.get<double>() == 0.0) return;
  field.reject("nothing (coda does not know what to do with it)");
}

std::int32_t id_of_piece(const TokenizerJson& out, const Field& field, const std::string& piece) {
  const auto found = out.vocabulary.find(piece);
  if (found == out.vocabulary.end()) {
    throw_error<UsageError>("{}: expected pieces of model.vocab, got {}.", field.where,
                            excerpt(piece));
  }
  return found->second;
}

/// "a b", or ["a", "b"], which allows spaces inside.
Merge read_merge(const Field& field, const TokenizerJson& out) {
  std::string left, right;
  if (field.value.is_array() && field.size() == 2) {
    left = field.element(0).text();
    right = field.element(1).text();
  } else {
    const std::string& both = field.text("two pieces");
    const std::size_t space = both.find(' ');
    if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
      field.reject("two pieces and a space between them");
    }
    left = both.substr(0, space);
    right = both.substr(space + 1);
  }
  return {id_of_piece(out, field, left), id_of_piece(out, field, right),
          id_of_piece(out, field, left + right)};
}

void read_model(const Field& field, TokenizerJson& out) {
  const Field type = field.object().at("type");
  if (!type.absent() && type.text() != "BPE") type.reject("BPE");
  expect_empty(field.at("dropout"));
  expect_empty(field.at("continuing_subword_prefix"));
  expect_empty(field.at("end_of_word_suffix"));
  const Field vocabulary = field.at("vocab");
  out.vocabulary.reserve(vocabulary.object().size());
  for (const auto& [piece, id] : vocabulary.value.items()) {
    out.vocabulary[piece] = Field{id, fmt::format("{}.{}", vocabulary.where, piece)}.id();
  }
  const Field merges = field.at("merges");
  for (std::size_t i = 0; i < merges.array().size(); ++i) {
    out.merges.push_back(read_merge(merges.element(i), out));
  }
  out.options.ignore_merges = field.at("ignore_merges").flag();
  out.options.byte_fallback = field.at("byte_fallback").flag();
  out.options.fuse_unknown = field.at("fuse_unk").flag();
  const Field unknown = field.at("unk_token");
  if (!unknown.absent()) {
    const auto found = out.vocabulary.find(unknown.text());
    if (found != out.vocabulary.end()) out.options.unknown = found->second;
  }
}

void read_added(const Field& field, TokenizerJson& out) {
  for (std::size_t i = 0; i < field.array().size(); ++i) {
    const Field token = field.element(i);
    AddedToken added;
    added.id = token.object().at("id").id();
    added.content = token.at("content").text();
    added.single_word = token.at("single_word").flag();
    added.left_strip = token.at("lstrip").flag();
    added.right_strip = token.at("rstrip").flag();
    added.special = token.at("special").flag();
    added.normalized = token.at("normalized").flag(!added.special);
    const auto known = out.vocabulary.find(added.content);
    if (known != out.vocabulary.end() && known->second != added.id) {
      token.at("id").reject(fmt::format("the id in model.vocab, {}", known->second));
    }
    out.added.push_back(std::move(added));
  }
}

/// Ids index tables: a wild one must not allocate gigabytes.
void check_ids(const TokenizerJson& tokenizer, const std::string& where) {
  const std::size_t count = tokenizer.vocabulary.size() + tokenizer.added.size();
  const std::size_t most = 4 * count + 65536;
  const auto check = [&](const std::string& piece, std::int32_t id) {
    if (static_cast<std::size_t>(id) < most) return;
    throw_error<UsageError>("{}: {}: expected an id below {} ({} pieces), got {}.", where,
                            excerpt(piece), most, count, id);
  };
  for (const auto& [piece, id] : tokenizer.vocabulary) check(piece, id);
  for (const AddedToken& token : tokenizer.added) check(token.content, token.id);
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  const json root = parse_json_object(text, where);
  const auto field = [&](const char* name) {
    const auto found = root.find(name);
    return Field{found == root.end() ? kNull : *found, fmt::format("{}: {}", where, name)};
  };
  TokenizerJson out;
  read_model(field("model"), out);
  if (!field("added_tokens").absent()) read_added(field("added_tokens"), out);
  check_ids(out, where);
  if (!field("normalizer").absent()) {
    for_each_step(field("normalizer"), "normalizers",
                  [&](const Field& f) { read_normalizer(f, out.normalizer); });
  }
  if (!field("pre_tokenizer").absent()) {
    for_each_step(field("pre_tokenizer"), "pretokenizers",
                  [&](const Field& f) { read_pre_tokenizer(f, out.pre_tokenizer); });
  }
  if (!field("post_processor").absent()) {
    for_each_step(field("post_processor"), "processors",
                  [&](const Field& f) { read_post_processor(f, out); });
  }
  if (!field("decoder").absent()) {
    for_each_step(field("decoder"), "decoders",
                  [&](const Field& f) { check_decoder(f, out.pre_tokenizer.byte_level); });
  }
  out.options.byte_level = out.pre_tokenizer.byte_level;
  return out;
}

const std::vector<std::string>& byte_letters() {
  static const std::vector<std::string> kLetters = [] {
    const auto visible = [](int b) {
      return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    };
    std::vector<std::string> letters;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code = visible(byte) ? byte : next++;
      std::string text;
      if (code < 0x80) {
        text.push_back(static_cast<char>(code));
      } else {
        text.push_back(static_cast<char>(0xc0 | (code >> 6)));
        text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
      }
      letters.push_back(text);
    }
    return letters;
  }();
  return kLetters;
}

bool from_byte_letters(std::string_view text, std::string& bytes) {
  static const std::unordered_map<std::string, char> kBytes = [] {
    std::unordered_map<std::string, char> map;
    for (int byte = 0; byte < 256; ++byte) {
      map[byte_letters()[static_cast<std::size_t>(byte)]] = static_cast<char>(byte);
    }
    return map;
  }();
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    const auto found = kBytes.find(std::string(text.substr(at, length)));
    if (found == kBytes.end()) return false;
    bytes += found->second;
    at += length;
  }
  return true;
}

}  // namespace coda
