// The tokeniser of a tokenizer.json: added tokens are cut out, the rest is normalised, cut into
// words, and each word merged.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "nn/json_object.h"
#include "train/file.h"
#include "train/tokenizer_json.h"
#include "train/tokenizer_model.h"
#include "train/utf8.h"

namespace coda {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSpaceMark = "\u2581";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

std::string replaced(const Regex& pattern, std::string_view text, std::string_view content) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t from = 0; from < text.size();) {
    const Regex::Match match = pattern.find(text, from);
    if (!match.found() || match.begin == match.end) break;
    out += text.substr(done, match.begin - done);
    out += content;
    done = from = match.end;
  }
  out += text.substr(done);
  return out;
}

/// What ids stand for, and which are controls.
struct Meaning {
  std::string bytes;
  bool special = false;
};

/// "<0x0A>" of a vocabulary that spells characters in bytes.
bool is_byte_piece(std::string_view piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' &&
         piece.find_first_not_of("0123456789ABCDEF", 3) == 5;
}

std::string meaning_of(const std::string& piece, const BpeOptions& options) {
  std::string bytes;
  if (options.byte_level) return from_byte_letters(piece, bytes) ? bytes : piece;
  if (options.byte_fallback && is_byte_piece(piece)) {
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  bytes = piece;
  replace_all(bytes, kSpaceMark, " ");
  return bytes;
}

/// Byte-level pieces as bytes; those with other characters are reached through added tokens only.
std::unordered_map<std::string, std::int32_t> words_of(const TokenizerJson& file) {
  if (!file.options.byte_level) return file.vocabulary;
  std::unordered_map<std::string, std::int32_t> words;
  std::string bytes;
  for (const auto& [piece, id] : file.vocabulary) {
    if (from_byte_letters(piece, bytes)) words[bytes] = id;
  }
  return words;
}

class JsonTokenizer : public TokenizerModel {
 public:
  JsonTokenizer(TokenizerJson file, std::vector<TokenizerFile> files, std::int32_t eos)
      : normalizer_(std::move(file.normalizer)),
        pre_tokenizer_(std::move(file.pre_tokenizer)),
        bpe_(words_of(file), file.merges, file.options),
        files_(std::move(files)),
        bos_(file.prefix),
        eos_(eos) {
    const auto set = [&](std::int32_t id, std::string bytes, bool special) {
      const auto at = static_cast<std::size_t>(id);
      if (at >= meanings_.size()) meanings_.resize(at + 1);
      meanings_[at] = {std::move(bytes), special};
    };
    for (const auto& [piece, id] : file.vocabulary) {
      set(id, meaning_of(piece, file.options), false);
    }
    std::vector<AddedToken> plain, normal;
    for (AddedToken& token : file.added) {
      set(token.id, token.content, token.special);
      if (token.normalized) token.content = normalize(token.content, false);
      (token.normalized ? normal : plain).push_back(std::move(token));
    }
    plain_ = AddedTokens(std::move(plain));
    normalized_ = AddedTokens(std::move(normal));
  }

  void encode(std::string_view text, bool continues,
              std::vector<std::int32_t>& ids) const override {
    const auto normalize_and_split = [&](std::string_view piece, bool first) {
      const bool begins = !(first && continues);
      if (normalizer_.empty()) return split_normalized(piece, first, begins, ids);
      split_normalized(normalize(piece, begins), first, begins, ids);
    };
    for_each_between(plain_, text, true, ids, normalize_and_split);
  }

  void decode(std::int32_t id, std::string& text) const override {
    const Meaning& meaning = meanings_[static_cast<std::size_t>(id)];
    if (!meaning.special) text += meaning.bytes;
  }

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(meanings_.size()); }
  std::int32_t bos() const override { return bos_; }
  std::int32_t eos() const override { return eos_; }
  std::vector<TokenizerFile> files() const override { return files_; }

 private:
  /// see(part, is the first of the text) for the text between added tokens, whose ids are added.
  template <class See>
  static void for_each_between(const AddedTokens& tokens, std::string_view text, bool first,
                               std::vector<std::int32_t>& ids, See see) {
    for (std::size_t at = 0; at < text.size();) {
      const AddedTokens::Match match = tokens.find(text, at);
      const std::size_t end = std::min(match.begin, text.size());
      if (end > at) see(text.substr(at, end - at), first && at == 0);
      if (match.begin == std::string_view::npos) return;
      ids.push_back(match.id);
      at = match.end;
    }
  }

  std::string normalize(std::string_view text, bool begins) const {
    std::string out(text);
    for (const NormalizerStep& step : normalizer_) {
      switch (step.kind) {
        case NormalizerStep::Kind::form:
          out = normalized(out, step.form);
          break;
        case NormalizerStep::Kind::replace:
          out = replaced(step.pattern[0], out, step.content);
          break;
        case NormalizerStep::Kind::prepend:
          if (begins && !out.empty()) out.insert(0, step.content);
          break;
      }
    }
    return out;
  }

  void split_normalized(std::string_view text, bool first, bool begins,
                        std::vector<std::int32_t>& ids) const {
    for_each_between(normalized_, text, first, ids, [&](std::string_view part, bool is_first) {
      split(part, is_first, begins || !is_first, ids);
    });
  }

  void split(std::string_view text, bool first, bool begins, std::vector<std::int32_t>& ids) const {
    const PreTokenizer& p = pre_tokenizer_;
    std::string edited;
    const bool prefixes =
        begins && (p.scheme == PrefixScheme::always || (p.scheme == PrefixScheme::first && first));
    if (prefixes || !p.space.empty()) {
      edited = text;
      if (!p.space.empty()) replace_all(edited, " ", p.space);
      if (prefixes && !edited.starts_with(p.prefix)) edited.insert(0, p.prefix);
      text = edited;
    }
    split_words(p.steps, text, [&](std::string_view word) { bpe_.encode(word, ids); });
  }

  std::vector<NormalizerStep> normalizer_;
  PreTokenizer pre_tokenizer_;
  mutable Bpe bpe_;  ///< caches words
  AddedTokens plain_, normalized_;
  std::vector<Meaning> meanings_;
  std::vector<TokenizerFile> files_;
  std::int32_t bos_, eos_;
};

json object_of(const fs::path& path) {
  std::error_code unused;
  return fs::exists(path, unused) ? parse_json_object(read_file(path), path.string())
                                  : json::object();
}

/// The end of a text: the tokeniser's own configuration names it, else the model's gives its id.
std::int32_t find_eos(const TokenizerJson& file, const fs::path& folder) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    const json config = object_of(path);
    json eos = config.value("eos_token", json());
    if (eos.is_object()) eos = eos.value("content", json());
    if (eos.is_null()) continue;
    if (eos.is_string()) {
      const auto& content = eos.get_ref<const std::string&>();
      for (const AddedToken& token : file.added) {
        if (token.content == content) return token.id;
      }
      const auto piece = file.vocabulary.find(content);
      if (piece != file.vocabulary.end()) return piece->second;
    }
    throw_error<UsageError>("{}: eos_token: expected a token of tokenizer.json, got {}.",
                            path.string(), excerpt(eos));
  }
  json eos = object_of(folder / "config.json").value("eos_token_id", json());
  if (eos.is_array() && !eos.empty()) eos = json(eos[0]);
  const bool known = eos.is_number_integer() && eos.get<std::int64_t>() >= 0 &&
                     eos.get<std::int64_t>() < std::int64_t{1} << 31;
  return known ? eos.get<std::int32_t>() : -1;
}

}  // namespace

std::unique_ptr<TokenizerModel> load_tokenizer_json(const fs::path& folder) {
  const fs::path path = folder / "tokenizer.json";
  TokenizerJson file = parse_tokenizer_json(MappedFile(path).text(), path.string());
  const std::int32_t eos = find_eos(file, folder);
  return std::make_unique<JsonTokenizer>(std::move(file), tokenizer_files(folder), eos);
}

}  // namespace coda
