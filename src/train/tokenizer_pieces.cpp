// SentencePiece: models trained on a run's own text, and tokenizer.model of other folders.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "train/file.h"
#include "train/tokenizer_export.h"
#include "train/tokenizer_model.h"
#include "train/utf8.h"
#include "train/word_cache.h"

namespace coda {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

constexpr std::int64_t kLeastPieces = 320;
constexpr std::int64_t kMostPieces = 1'000'000;
constexpr std::string_view kSpaceMark = "\u2581";

/// Calls visit(character) for each character of each text.
template <class Visit>
void for_each_character(std::span<const std::string> texts, Visit visit) {
  for (const std::string& text : texts) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length =
          std::max<std::size_t>(1, utf8_length(static_cast<unsigned char>(text[at])));
      visit(std::string_view(text).substr(at, length));
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

/// Reads one protocol buffer: varints and length-delimited fields, as ModelProto has them.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  /// Moves to the next field; false at the end or if the bytes are no message.
  bool next() {
    std::uint64_t key = 0;
    if (at_ >= bytes_.size() || !varint(key)) return false;
    number = key >> 3;
    content = {};
    switch (key & 7) {
      case 0:
        return varint(value);
      case 1:
        return take(8);
      case 2:
        return varint(value) && take(value);
      case 5:
        return take(4);
      default:
        return false;
    }
  }

  std::uint64_t number = 0, value = 0;
  std::string_view content;

 private:
  bool varint(std::uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      out |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool take(std::uint64_t size) {
    if (size > bytes_.size() - at_) return false;
    content = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

/// ModelProto.normalizer_spec of sentencepiece_model.proto, as far as it matters here.
struct Normalization {
  bool dummy_prefix = true;  ///< a space before each text
  bool identity = true;
};

Normalization normalization_of(std::string_view model) {
  constexpr std::uint64_t kSpec = 3, kRules = 2, kDummyPrefix = 3, kExtraSpaces = 4;
  Normalization out;
  bool removes_spaces = true;
  for (ProtoReader root(model); root.next();) {
    if (root.number != kSpec) continue;
    for (ProtoReader spec(root.content); spec.next();) {
      if (spec.number == kRules) out.identity = spec.content.empty();
      if (spec.number == kDummyPrefix) out.dummy_prefix = spec.value != 0;
      if (spec.number == kExtraSpaces) removes_spaces = spec.value != 0;
    }
  }
  out.identity = out.identity && !removes_spaces;
  return out;
}

std::unique_ptr<Processor> processor_of(std::string_view model) {
  auto processor = std::make_unique<Processor>();
  const auto status = processor->LoadFromSerializedProto(model);
  if (!status.ok() || processor->GetPieceSize() < 1) {
    throw_error<UsageError>("{} bytes that are none", model.size());
  }
  return processor;
}

/// Whether a piece has white space behind another character.
bool spans_words(std::string_view piece) {
  if (piece.find('\n') != std::string_view::npos) return true;
  while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
  return piece.find(kSpaceMark) != std::string_view::npos;
}

class Pieces : public TokenizerModel {
 public:
  /// No files: those that `coda train` writes.
  Pieces(std::string_view model, std::vector<TokenizerFile> files)
      : processor_(processor_of(model)), files_(std::move(files)) {
    const Normalization normalization = normalization_of(model);
    if (normalization.dummy_prefix) {
      // Fields of a message that comes again replace those before: add_dummy_prefix = false.
      continuing_ = processor_of(std::string(model) + std::string("\x1a\x02\x18\x00", 4));
    }
    by_words_ = normalization.identity && !normalization.dummy_prefix;
    for (int id = 0; id < processor_->GetPieceSize() && by_words_; ++id) {
      by_words_ = !spans_words(processor_->IdToPiece(id));
    }
    if (files_.empty()) files_ = written();
  }

  void encode(std::string_view text, bool continues,
              std::vector<std::int32_t>& ids) const override {
    const Processor& processor = continues && continuing_ ? *continuing_ : *processor_;
    const auto encode_part = [&](std::string_view part, std::vector<std::int32_t>& out) {
      const auto status = processor.Encode(part, &part_ids_);
      if (!status.ok()) {
        throw_error<BackendError>("tokenizer: SentencePiece: {}", status.ToString());
      }
      out.insert(out.end(), part_ids_.begin(), part_ids_.end());
    };
    // A mark in the text counts as a space, so that it may join one behind it.
    const bool cuts = by_words_ && text.find(kSpaceMark) == std::string_view::npos;
    if (!cuts) return encode_part(text, ids);
    // A word is white space and what follows it up to the next.
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t word = std::min(text.find_first_not_of(" \n", begin), text.size());
      const std::size_t end = std::min(text.find_first_of(" \n", word), text.size());
      cache_.encode(text.substr(begin, end - begin), ids, encode_part);
      begin = end;
    }
  }

  void decode(std::int32_t id, std::string& text) const override {
    if (processor_->IsControl(id) || processor_->IsUnknown(id)) return;
    const std::string& piece = processor_->IdToPiece(id);
    if (processor_->IsByte(id)) {  // "<0x0A>"
      text.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      return;
    }
    for (std::size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      text.push_back(space ? ' ' : piece[at]);
      at += space ? kSpaceMark.size() : 1;
    }
  }

  std::int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  std::int32_t bos() const override { return processor_->bos_id(); }
  std::int32_t eos() const override { return processor_->eos_id(); }
  std::vector<TokenizerFile> files() const override { return files_; }

 private:
  std::vector<TokenizerFile> written() const {
    std::vector<Piece> pieces;
    for (int id = 0; id < processor_->GetPieceSize(); ++id) {
      pieces.push_back({processor_->IdToPiece(id), processor_->IsControl(id),
                        processor_->IsUnknown(id), processor_->IsByte(id)});
    }
    return {{"tokenizer.model", processor_->serialized_model_proto()},
            {"tokenizer.json", piece_tokenizer_json(pieces)},
            {"tokenizer_config.json", piece_tokenizer_config()}};
  }

  std::unique_ptr<Processor> processor_, continuing_;
  std::vector<TokenizerFile> files_;
  bool by_words_ = false;  ///< no piece spans two words, so each is encoded by itself, once
  mutable WordCache cache_;
  mutable std::vector<int> part_ids_;
};

}  // namespace

std::unique_ptr<TokenizerModel> train_pieces(std::span<const std::string> texts,
                                             std::int64_t vocab_size) {
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
  if (!trained.ok() || model.empty()) {
    throw_error<UsageError>(
        "--vocab: expected a text that gives up to {} pieces, got one in which SentencePiece finds "
        "none. Give more text, another --vocab, or --tokenizer bytes.",
        vocab_size);
  }
  return std::make_unique<Pieces>(model, std::vector<TokenizerFile>());
}

std::unique_ptr<TokenizerModel> load_pieces(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.model";
  const MappedFile model(path);
  try {
    return std::make_unique<Pieces>(model.text(), tokenizer_files(folder));
  } catch (const UsageError& e) {
    throw_error<UsageError>(
        "{}: expected a SentencePiece model, got {}. If the file is cut short or of another kind, "
        "fetch it again.",
        path.string(), e.what());
  }
}

}  // namespace coda
