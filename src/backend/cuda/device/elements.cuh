// Elements of the memory types, single and in chunks: load widens, store rounds once to nearest even.
#pragma once

namespace coda_device {

struct Bf16 {
  static CODA_DEVICE const void* at(const void* pointer, long long index) {
    return static_cast<const u16*>(pointer) + index;
  }
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return unpack_bf16(static_cast<const u16*>(pointer)[index]);
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<u16*>(pointer)[index] = static_cast<u16>(pack_bf16(value, 0.0f));
  }
};
struct F16 {
  static CODA_DEVICE const void* at(const void* pointer, long long index) {
    return static_cast<const u16*>(pointer) + index;
  }
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return unpack_f16(static_cast<const u16*>(pointer)[index]);
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<u16*>(pointer)[index] = static_cast<u16>(pack_f16(value, 0.0f));
  }
};
struct F32 {
  static CODA_DEVICE const void* at(const void* pointer, long long index) {
    return static_cast<const float*>(pointer) + index;
  }
  static CODA_DEVICE float load(const void* pointer, long long index) {
    return static_cast<const float*>(pointer)[index];
  }
  static CODA_DEVICE void store(void* pointer, long long index, float value) {
    static_cast<float*>(pointer)[index] = value;
  }
};
struct F64 {
  static CODA_DEVICE double load(const void* pointer, long long index) {
    return static_cast<const double*>(pointer)[index];
  }
  static CODA_DEVICE void store(void* pointer, long long index, double value) {
    static_cast<double*>(pointer)[index] = value;
  }
};

// ---- Chunks of N elements at `at`, a multiple of N

/// 16 bytes, or what a smaller chunk has, moved by one instruction.
template <int kWords>
struct alignas(4 * kWords) Words {
  u32 word[kWords];
};

template <class T>
struct IsHalf {
  static constexpr bool value = true;
};
template <>
struct IsHalf<F32> {
  static constexpr bool value = false;
};

template <class T>
CODA_DEVICE u32 pack_pair(float low, float high);
template <>
CODA_DEVICE u32 pack_pair<Bf16>(float low, float high) {
  return pack_bf16(low, high);
}
template <>
CODA_DEVICE u32 pack_pair<F16>(float low, float high) {
  return pack_f16(low, high);
}
template <class T>
CODA_DEVICE u32 larger_pair_or_nan(u32 a, u32 b);
template <>
CODA_DEVICE u32 larger_pair_or_nan<Bf16>(u32 a, u32 b) {
  return larger_bf16_or_nan(a, b);
}
template <>
CODA_DEVICE u32 larger_pair_or_nan<F16>(u32 a, u32 b) {
  return larger_f16_or_nan(a, b);
}
template <class T>
CODA_DEVICE float unpack_half(u16 bits);
template <>
CODA_DEVICE float unpack_half<Bf16>(u16 bits) {
  return unpack_bf16(bits);
}
template <>
CODA_DEVICE float unpack_half<F16>(u16 bits) {
  return unpack_f16(bits);
}

template <class T, int N>
CODA_DEVICE void load_chunk(const void* data, long long at, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = T::load(data, at);
  } else if constexpr (IsHalf<T>::value) {
    constexpr int kWords = N / 2 < 4 ? N / 2 : 4;
    const auto* from = reinterpret_cast<const Words<kWords>*>(static_cast<const u16*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / (2 * kWords); ++i) {
      const Words<kWords> words = from[i];
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        x[2 * (i * kWords + k)] = unpack_half<T>(static_cast<u16>(words.word[k] & 0xffffu));
        x[2 * (i * kWords + k) + 1] = unpack_half<T>(static_cast<u16>(words.word[k] >> 16));
      }
    }
  } else {
    constexpr int kWords = N < 4 ? N : 4;
    const auto* from = reinterpret_cast<const Words<kWords>*>(static_cast<const float*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / kWords; ++i) {
      const Words<kWords> words = from[i];
#pragma unroll
      for (int k = 0; k < kWords; ++k) x[i * kWords + k] = __uint_as_float(words.word[k]);
    }
  }
}

template <class T, int N>
CODA_DEVICE void store_chunk(void* data, long long at, const float (&x)[N]) {
  if constexpr (N == 1) {
    T::store(data, at, x[0]);
  } else if constexpr (IsHalf<T>::value) {
    constexpr int kWords = N / 2 < 4 ? N / 2 : 4;
    auto* to = reinterpret_cast<Words<kWords>*>(static_cast<u16*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / (2 * kWords); ++i) {
      Words<kWords> words;
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int j = 2 * (i * kWords + k);
        words.word[k] = pack_pair<T>(x[j], x[j + 1]);
      }
      to[i] = words;
    }
  } else {
    constexpr int kWords = N < 4 ? N : 4;
    auto* to = reinterpret_cast<Words<kWords>*>(static_cast<float*>(data) + at);
#pragma unroll
    for (int i = 0; i < N / kWords; ++i) {
      Words<kWords> words;
#pragma unroll
      for (int k = 0; k < kWords; ++k) words.word[k] = __float_as_uint(x[i * kWords + k]);
      to[i] = words;
    }
  }
}

}  // namespace coda_device
