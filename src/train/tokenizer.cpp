#include "train/tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "train/file.h"
#include "train/tokenizer_json.h"

namespace coda {
namespace {

constexpr std::int32_t kByteBos = 256;
constexpr std::int32_t kByteEos = 257;
constexpr std::int64_t kLeastPieces = 320;
constexpr std::int64_t kMostPieces = 1'000'000;
constexpr std::size_t kTrainingBytes = std::size_t{64} << 20;
constexpr std::string_view kSpaceMark = "\u2581";

/// Bytes of the character that this byte leads, 0 if none can begin with it.
std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

/// Calls visit(character) for each character of each text; beyond kTrainingBytes of text, for
/// those of every k-th stretch of 4096 characters.
template <class Visit>
void for_each_character(std::span<const std::string> texts, Visit visit) {
  constexpr std::size_t kStretch = 4096;
  std::size_t total = 0, seen = 0;
  for (const std::string& text : texts) total += text.size();
  const std::size_t every = total / kTrainingBytes + 1;
  for (const std::string& text : texts) {
    for (std::size_t at = 0; at < text.size(); ++seen) {
      const std::size_t length =
          std::max<std::size_t>(1, sequence_length(static_cast<unsigned char>(text[at])));
      if (seen / kStretch % every == 0) visit(std::string_view(text).substr(at, length));
      at += length;
    }
  }
}

/// The most frequent characters, at most `most`; equal counts by code point. Line breaks and tabs
/// are never among them: they stay bytes, so that no piece spans two lines.
std::set<std::string, std::less<>> frequent_characters(std::span<const std::string> texts,
                                                       std::size_t most) {
  std::map<std::string, std::int64_t, std::less<>> counts;
  for_each_character(texts, [&](std::string_view character) {
    const auto it = counts.find(character);
    if (it != counts.end()) {
      ++it->second;
    } else if (character != "\n" && character != "\r" && character != "\t") {
      counts.emplace(character, 1);
    }
  });
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [character, count] : counts) order.emplace_back(-count, character);
  std::sort(order.begin(), order.end());
  std::set<std::string, std::less<>> kept;
  for (std::size_t i = 0; i < std::min(most, order.size()); ++i) kept.insert(order[i].second);
  return kept;
}

/// What pieces are learnt from: lines, cut also at the characters that are left to the bytes.
class Lines : public sentencepiece::SentenceIterator {
 public:
  Lines(std::span<const std::string> texts, std::int64_t vocab_size) {
    const auto kept = frequent_characters(texts, static_cast<std::size_t>(vocab_size - 259) / 2);
    std::string line;
    const auto finish = [&] {
      if (!line.empty()) lines_.push_back(std::move(line));
      line.clear();
    };
    for_each_character(texts, [&](std::string_view character) {
      kept.contains(character) ? void(line += character) : finish();
    });
    finish();
  }

  bool done() const override { return next_ >= lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  std::size_t next_ = 0;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
    : processor_(std::move(processor)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::bytes() { return Tokenizer(nullptr); }

Tokenizer Tokenizer::train(std::span<const std::string> texts, std::int64_t vocab_size) {
  if (vocab_size < kLeastPieces || vocab_size > kMostPieces) {
    throw_error<UsageError>(
        "--vocab: expected {} to {} pieces (256 of them are bytes), got {}. For a smaller "
        "vocabulary use --tokenizer bytes.",
        kLeastPieces, kMostPieces, vocab_size);
  }
  Lines lines(texts, vocab_size);
  std::string model;
  const auto trained = sentencepiece::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{
          {"model_type", "bpe"},
          {"vocab_size", fmt::format("{}", vocab_size)},
          {"hard_vocab_limit", "false"},  // a small text gives fewer pieces
          {"character_coverage", "1"},    // rare ones are cut out of the lines already
          {"byte_fallback", "true"},
          {"split_digits", "true"},
          {"allow_whitespace_only_pieces", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"max_sentence_length", "1073741824"},
          {"num_threads", "1"},
          {"minloglevel", "3"},
      },
      &lines, &model);
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (!trained.ok() || !processor->LoadFromSerializedProto(model).ok()) {
    throw_error<UsageError>(
        "tokenizer: SentencePiece found no {} pieces in the text: {}. Give more text, another "
        "--vocab, or --tokenizer bytes.",
        vocab_size, trained.ToString());
  }
  return Tokenizer(std::move(processor));
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path model = folder / "tokenizer.model";
  if (std::filesystem::exists(model)) {
    auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
    const auto status = processor->LoadFromSerializedProto(MappedFile(model).text());
    if (!status.ok() || processor->GetPieceSize() < 1) {
      throw_error<UsageError>("{}: expected a SentencePiece model, got: {}.", model.string(),
                              status.ToString());
    }
    return Tokenizer(std::move(processor));
  }
  const std::filesystem::path config = folder / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    const auto json = nlohmann::json::parse(read_file(config), nullptr, false);
    if (json.is_object() && json.value("coda_tokenizer", nlohmann::json()) == "bytes") {
      return bytes();
    }
  }
  throw_error<UsageError>(
      "{}: expected tokenizer.model (SentencePiece) or coda's byte tokenizer, got neither. Give a "
      "folder that `coda train` wrote, or one with a SentencePiece model.",
      folder.string());
}

void Tokenizer::save(const std::filesystem::path& folder) const {
  std::string config, tokenizer;
  if (is_bytes()) {
    config = byte_tokenizer_config();
    tokenizer = byte_tokenizer_json();
  } else {
    std::vector<Piece> pieces;
    for (int id = 0; id < processor_->GetPieceSize(); ++id) {
      pieces.push_back({processor_->IdToPiece(id), processor_->IsControl(id),
                        processor_->IsUnknown(id), processor_->IsByte(id)});
    }
    config = piece_tokenizer_config();
    tokenizer = piece_tokenizer_json(pieces);
    replace_file(folder / "tokenizer.model", processor_->serialized_model_proto());
  }
  replace_file(folder / "tokenizer.json", tokenizer);
  replace_file(folder / "tokenizer_config.json", config);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  if (is_bytes()) {
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  // Line by line: no piece spans a line break, so the ids are those of the whole text.
  std::vector<int> line_ids;
  while (!text.empty()) {
    const std::size_t line = std::min(text.find('\n'), text.size() - 1) + 1;
    const auto status = processor_->Encode(text.substr(0, line), &line_ids);
    if (!status.ok()) throw_error<BackendError>("tokenizer: SentencePiece: {}", status.ToString());
    ids.insert(ids.end(), line_ids.begin(), line_ids.end());
    text.remove_prefix(line);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    if (is_bytes()) {
      if (id < kByteBos) text.push_back(static_cast<char>(id));
      continue;
    }
    if (processor_->IsControl(id) || processor_->IsUnknown(id)) continue;
    const std::string& piece = processor_->IdToPiece(id);
    if (processor_->IsByte(id)) {  // "<0x0A>"
      text.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      continue;
    }
    for (std::size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      text.push_back(space ? ' ' : piece[at]);
      at += space ? kSpaceMark.size() : 1;
    }
  }
  return text;
}

std::int64_t Tokenizer::vocab_size() const {
  return is_bytes() ? kByteEos + 1 : processor_->GetPieceSize();
}

std::int32_t Tokenizer::bos() const { return is_bytes() ? kByteBos : processor_->bos_id(); }
std::int32_t Tokenizer::eos() const { return is_bytes() ? kByteEos : processor_->eos_id(); }

namespace {

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

}  // namespace

std::size_t complete_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte >= 0x80 && byte < 0xc0) continue;
    return sequence_length(byte) > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = sequence_length(lead);
    if (length == 0 || at + length > text.size()) return at;
    for (std::size_t i = 1; i < length; ++i) {
      if (!is_continuation(lead, i, static_cast<unsigned char>(text[at + i]))) return at;
    }
    at += length;
  }
  return at;
}

}  // namespace coda
