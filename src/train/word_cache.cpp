#include "train/word_cache.h"

#include <algorithm>
#include <cstring>

namespace coda {
namespace {

constexpr std::size_t kSlots = std::size_t{1} << 18;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

}  // namespace

WordCache::WordCache() : slots_(kSlots) {}

std::uint64_t WordCache::hash_of(std::string_view word) {
  std::uint64_t hash = word.size();
  for (; word.size() > 8; word.remove_prefix(8)) {
    std::uint64_t block = 0;
    std::memcpy(&block, word.data(), 8);
    hash = mix(hash ^ block);
  }
  std::uint64_t block = 0;
  std::memcpy(&block, word.data(), word.size());
  return mix(hash ^ block);
}

bool WordCache::find(std::string_view word, std::uint64_t hash,
                     std::vector<std::int32_t>& ids) const {
  for (std::size_t at = hash & (kSlots - 1); slots_[at].ids_size > 0;
       at = (at + 1) & (kSlots - 1)) {
    const Slot& slot = slots_[at];
    if (slot.hash != hash || slot.word_size != word.size() ||
        words_.compare(slot.word, slot.word_size, word) != 0) {
      continue;
    }
    const auto begin = ids_.begin() + slot.ids;
    ids.insert(ids.end(), begin, begin + slot.ids_size);
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view word, std::uint64_t hash,
                       std::span<const std::int32_t> ids) {
  if (ids.empty()) return;
  if (count_ >= kSlots / 2) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    words_.clear();
    ids_.clear();
    count_ = 0;
  }
  std::size_t at = hash & (kSlots - 1);
  while (slots_[at].ids_size > 0) at = (at + 1) & (kSlots - 1);
  const auto size = [](const auto& container) {
    return static_cast<std::uint32_t>(container.size());
  };
  slots_[at] = {hash, size(words_), size(word), size(ids_), size(ids)};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++count_;
}

}  // namespace coda
