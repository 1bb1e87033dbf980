// tokenizer.json and tokenizer_config.json, which Hugging Face's libraries read. Kept apart from
// the tokeniser itself, which needs neither.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace coda {

/// One entry of a SentencePiece vocabulary; its index is its id, and BPE merges come in id order.
struct Piece {
  std::string text;
  bool control, unknown, byte;
};

std::string piece_tokenizer_config();
std::string piece_tokenizer_json(std::span<const Piece> pieces);
std::string byte_tokenizer_config();
std::string byte_tokenizer_json();

}  // namespace coda
