#include "train/tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "train/file.h"
#include "train/random.h"
#include "train/tokenizer_export.h"
#include "train/tokenizer_model.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kByteBos = 256;
constexpr std::int32_t kByteEos = 257;

class Bytes : public TokenizerModel {
 public:
  void encode(std::string_view text, bool, std::vector<std::int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void decode(std::int32_t id, std::string& text) const override {
    if (id < kByteBos) text.push_back(static_cast<char>(id));
  }
  std::int64_t vocab_size() const override { return kByteEos + 1; }
  std::int32_t bos() const override { return kByteBos; }
  std::int32_t eos() const override { return kByteEos; }
  bool is_bytes() const override { return true; }
  std::vector<TokenizerFile> files() const override {
    return {{"tokenizer.json", byte_tokenizer_json()},
            {"tokenizer_config.json", byte_tokenizer_config()}};
  }
};

bool is_byte_tokenizer(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code unused;
  if (!fs::exists(path, unused)) return false;
  const auto config = nlohmann::json::parse(read_file(path), nullptr, false);
  return config.is_object() && config.value("coda_tokenizer", nlohmann::json()) == "bytes";
}

/// Places where tokenisers rarely join what stands on both sides, best first.
enum class CutKind { line_end, space, character };

bool is_cut(std::string_view text, std::size_t at, CutKind kind) {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  switch (kind) {
    case CutKind::line_end:
      return (text[at] == '\n') != (text[at - 1] == '\n');
    case CutKind::space:
      return space(text[at]) != space(text[at - 1]);
    case CutKind::character:
      return (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
  }
  return false;
}

/// Offset of the first character that begins at `at` or later.
std::size_t character_from(std::string_view text, std::size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::bytes() { return Tokenizer(std::make_unique<Bytes>()); }

Tokenizer Tokenizer::train(std::span<const std::string> texts, std::int64_t vocab_size) {
  return Tokenizer(train_pieces(texts, vocab_size));
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  std::error_code unused;
  if (fs::exists(folder / "tokenizer.model", unused)) return Tokenizer(load_pieces(folder));
  if (is_byte_tokenizer(folder)) return bytes();
  if (fs::exists(folder / "tokenizer.json", unused)) return Tokenizer(load_tokenizer_json(folder));
  throw_error<UsageError>(
      "{}: expected tokenizer.model (SentencePiece), tokenizer.json (byte-pair encoding) or coda's "
      "byte tokenizer, got none. Give a folder that `coda train` wrote or one of Hugging Face.",
      folder.string());
}

void Tokenizer::save(const fs::path& folder) const {
  for (const auto& [name, content] : model_->files()) replace_file(folder / name, content);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool continues) const {
  std::vector<std::int32_t> ids;
  if (find_invalid_utf8(text) != text.size()) {
    std::string valid;
    append_valid_utf8(text, valid);
    model_->encode(valid, continues, ids);
  } else {
    model_->encode(text, continues, ids);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size()) model_->decode(id, text);
  }
  return text;
}

std::size_t Tokenizer::find_cut(std::string_view text) const {
  constexpr std::size_t kAround = 4096;
  constexpr int kAttempts = 16;
  if (text.size() <= 2 * kAround) return 0;
  for (const CutKind kind : {CutKind::line_end, CutKind::space, CutKind::character}) {
    int attempts = 0;
    for (std::size_t at = text.size() - kAround; at > kAround && attempts < kAttempts; --at) {
      if (!is_cut(text, at, kind)) continue;
      if (model_->is_bytes()) return at;
      ++attempts;
      const std::size_t begin = character_from(text, at - kAround);
      const std::size_t end = character_from(text, at + kAround);
      std::vector<std::int32_t> whole, parts;
      model_->encode(text.substr(begin, end - begin), true, whole);
      model_->encode(text.substr(begin, at - begin), true, parts);
      model_->encode(text.substr(at, end - at), true, parts);
      if (whole == parts) return at;
    }
  }
  return 0;
}

std::int64_t Tokenizer::vocab_size() const { return model_->vocab_size(); }
std::int32_t Tokenizer::bos() const { return model_->bos(); }
std::int32_t Tokenizer::eos() const { return model_->eos(); }
bool Tokenizer::is_bytes() const { return model_->is_bytes(); }

std::uint64_t Tokenizer::fingerprint() const {
  std::string all;
  for (const auto& [name, content] : model_->files()) {
    all += fmt::format("{} {:016x} {}\n", name, stream_of(content), content.size());
  }
  return stream_of(all);
}

std::vector<TokenizerFile> tokenizer_files(const fs::path& folder) {
  constexpr std::array kNames = {"tokenizer.model",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "vocab.json",
                                 "merges.txt",
                                 "chat_template.jinja"};
  std::vector<TokenizerFile> files;
  for (const char* name : kNames) {
    std::error_code unused;
    if (fs::exists(folder / name, unused)) files.emplace_back(name, read_file(folder / name));
  }
  return files;
}

}  // namespace coda
