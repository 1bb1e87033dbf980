// The ids of words seen before. Bounded: once full it begins anew.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coda {

class WordCache {
 public:
  WordCache();

  /// Adds the word's ids, as `encode(word, ids)` does if it is not known yet; long words are not
  /// kept, since they hardly come twice.
  template <class Encode>
  void encode(std::string_view word, std::vector<std::int32_t>& ids, Encode encode_word) {
    constexpr std::size_t kLongest = 128;
    if (word.size() > kLongest) return encode_word(word, ids);
    const std::uint64_t hash = hash_of(word);
    if (find(word, hash, ids)) return;
    const std::size_t before = ids.size();
    encode_word(word, ids);
    insert(word, hash, std::span(ids).subspan(before));
  }

 private:
  struct Slot {  ///< no ids: free
    std::uint64_t hash = 0;
    std::uint32_t word = 0, word_size = 0, ids = 0, ids_size = 0;
  };

  static std::uint64_t hash_of(std::string_view word);
  bool find(std::string_view word, std::uint64_t hash, std::vector<std::int32_t>& ids) const;
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
  std::string words_;
  std::vector<std::int32_t> ids_;
};

}  // namespace coda
