// Byte-pair encoding of one pre-token: merges of neighbours by rank. Knows neither pre-tokenisers
// nor files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "train/word_cache.h"

namespace coda {

/// A merge of two neighbours; its rank is its index.
struct Merge {
  std::int32_t left, right, merged;
};

struct BpeOptions {
  bool byte_level = true;      ///< words and the vocabulary are bytes, else characters
  bool ignore_merges = false;  ///< a word that is in the vocabulary is not merged
  bool byte_fallback = false;  ///< characters that are not there are spelt <0x41>
  bool fuse_unknown = false;
  std::int32_t unknown = -1;  ///< id of what is not there; -1: left out
};

class Bpe {
 public:
  /// `vocabulary` holds the pieces as what they stand for (byte-level ones decoded).
  Bpe(std::unordered_map<std::string, std::int32_t> vocabulary, const std::vector<Merge>& merges,
      const BpeOptions& options);

  /// Adds the word's ids. Words seen before come from a cache of bounded size, so one object serves
  /// one thread.
  void encode(std::string_view word, std::vector<std::int32_t>& ids);

 private:
  /// An open-addressed table from 64-bit keys; fixed once built.
  class PairTable {
   public:
    void build(const std::vector<Merge>& merges);
    struct Found {
      std::int32_t rank, merged;  ///< rank < 0: none
    };
    Found find(std::int32_t left, std::int32_t right) const;

   private:
    struct Slot {
      std::uint64_t key;
      Found found;
    };
    std::size_t mask_ = 0;
    std::vector<Slot> slots_;
  };
  struct Symbol {
    std::int32_t id, previous, next;
  };
  struct Candidate {
    std::int32_t rank, at, merged;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };

  std::int32_t find_piece(const std::string& piece) const;
  void spell(std::string_view word);
  void merge_all();
  void merge_word(std::string_view word, std::vector<std::int32_t>& ids);
  void add_candidate(std::int32_t at);

  std::unordered_map<std::string, std::int32_t> vocabulary_;
  BpeOptions options_;
  PairTable pairs_;
  std::vector<std::int32_t> byte_ids_;  ///< of the 256 bytes, or of <0x00> to <0xFF>; -1: none

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;

  WordCache cache_;
};

}  // namespace coda
