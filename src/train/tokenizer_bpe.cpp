#include "train/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "train/utf8.h"

namespace coda {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15;
  return x ^ (x >> 29);
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

void Bpe::PairTable::build(const std::vector<Merge>& merges) {
  std::size_t size = 16;
  while (size < merges.size() * 2) size *= 2;
  mask_ = size - 1;
  slots_.assign(size, {0, {-1, -1}});
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    std::size_t at = mix(key) & mask_;
    while (slots_[at].found.rank >= 0 && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, {static_cast<std::int32_t>(rank), merges[rank].merged}};
  }
}

Bpe::PairTable::Found Bpe::PairTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = mix(key) & mask_;
  while (slots_[at].found.rank >= 0 && slots_[at].key != key) at = (at + 1) & mask_;
  return slots_[at].found;
}

Bpe::Bpe(std::unordered_map<std::string, std::int32_t> vocabulary, const std::vector<Merge>& merges,
         const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  pairs_.build(merges);
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(find_piece(options_.byte_level ? std::string(1, static_cast<char>(byte))
                                                       : fmt::format("<0x{:02X}>", byte)));
  }
}

std::int32_t Bpe::find_piece(const std::string& piece) const {
  const auto found = vocabulary_.find(piece);
  return found == vocabulary_.end() ? -1 : found->second;
}

/// The symbols that merging begins with.
void Bpe::spell(std::string_view word) {
  symbols_.clear();
  std::int32_t unknown = -1;  // seen, not yet written: the next one may join it
  const auto add = [&](std::int32_t id) {
    const auto at = static_cast<std::int32_t>(symbols_.size());
    symbols_.push_back({id, at - 1, at + 1});
  };
  const auto add_unknown = [&] {
    if (unknown >= 0) add(unknown);
    unknown = -1;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length =
        options_.byte_level ? 1 : utf8_length(static_cast<unsigned char>(word[at]));
    const std::string_view character = word.substr(at, length);
    at += length;
    const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    const std::int32_t id =
        options_.byte_level ? byte_id(character[0]) : find_piece(std::string(character));
    if (id >= 0) {
      add_unknown();
      add(id);
    } else if (options_.byte_fallback &&
               std::all_of(character.begin(), character.end(),
                           [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : character) add(byte_id(byte));
    } else if (options_.unknown >= 0) {
      if (!options_.fuse_unknown) add_unknown();
      unknown = options_.unknown;
    }
  }
  add_unknown();
  if (!symbols_.empty()) symbols_.back().next = -1;
}

void Bpe::add_candidate(std::int32_t at) {
  if (at < 0) return;
  const Symbol& left = symbols_[static_cast<std::size_t>(at)];
  if (left.next < 0) return;
  const auto found = pairs_.find(left.id, symbols_[static_cast<std::size_t>(left.next)].id);
  if (found.rank < 0) return;
  heap_.push_back({found.rank, at, found.merged});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

/// The pair of the lowest rank first, of equal ones the leftmost: O(n log n).
void Bpe::merge_all() {
  heap_.clear();
  for (std::size_t at = 0; at + 1 < symbols_.size(); ++at) {
    add_candidate(static_cast<std::int32_t>(at));
  }
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(top.at)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    const auto found = pairs_.find(left.id, right.id);
    if (found.rank < 0 || found.merged != top.merged) continue;  // the pair is another by now
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[static_cast<std::size_t>(left.next)].previous = top.at;
    add_candidate(left.previous);
    add_candidate(top.at);
  }
}

void Bpe::merge_word(std::string_view word, std::vector<std::int32_t>& ids) {
  if (options_.ignore_merges) {
    const std::int32_t whole = find_piece(std::string(word));
    if (whole >= 0) return ids.push_back(whole);
  }
  spell(word);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  cache_.encode(word, ids,
                [this](std::string_view w, std::vector<std::int32_t>& out) { merge_word(w, out); });
}

}  // namespace coda
