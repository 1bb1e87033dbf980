// Random numbers by counter: value i of stream s under a seed is a pure function of the three, so
// that a resumed run, or one with other threads, draws the same. Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace coda {

inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

/// A stream's number from its name (FNV-1a), so that adding a tensor changes no other's values.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

class CounterRandom {
 public:
  CounterRandom(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::uint64_t bits(std::uint64_t index) const {
    const auto words = block(index);
    return (std::uint64_t{words[1]} << 32) | words[0];
  }

  /// In [0, 1), a multiple of 2^-53.
  double uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }

  /// In [0, range), range > 0. The bias is below range / 2^64.
  std::uint64_t below(std::uint64_t index, std::uint64_t range) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{bits(index)} * range) >> 64);
  }

  /// Standard normal (Box and Muller), from one block of four words.
  double normal(std::uint64_t index) const {
    const auto words = block(index);
    const std::uint64_t first = (std::uint64_t{words[1]} << 32) | words[0];
    const std::uint64_t second = (std::uint64_t{words[3]} << 32) | words[2];
    const double radius =
        std::sqrt(-2.0 * std::log((static_cast<double>(first >> 11) + 1) * 0x1p-53));
    return radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(second >> 11) * 0x1p-53);
  }

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                   static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                  {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  }

  std::uint64_t seed_, stream_;
};

}  // namespace coda
