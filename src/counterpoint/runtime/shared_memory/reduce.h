// Elementwise reductions of any number of buffers, in the order in which they are given.
//
// 16-bit floats are widened, combined in float32 and rounded once, to nearest even. Integers wrap around. The maximum
// and the minimum of anything and a NaN is a NaN. Buffers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace counterpoint {

enum Type { F32, F64, BF16, F16, I8, I16, I32, I64, U8, BOOL, TYPES };
enum Operation { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, OPERATIONS };

constexpr size_t ITEM_BYTES[TYPES] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};

template <class T>
inline T read(const char* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void write(char* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// How elements lie in memory, and what is computed with.
template <class T>
struct Plain {
  using Value = T;
  static constexpr size_t BYTES = sizeof(T);
  static T load(const char* from, size_t i) { return read<T>(from, i); }
  static void store(char* to, size_t i, T value) { write<T>(to, i, value); }
};

struct Bfloat16 {
  using Value = float;
  static constexpr size_t BYTES = 2;
  static float load(const char* from, size_t i) { return bits<float>(uint32_t(read<uint16_t>(from, i)) << 16); }
  static void store(char* to, size_t i, float value) {
    uint32_t raw = bits<uint32_t>(value);
    uint32_t even = (raw + 0x7fff + (raw >> 16 & 1)) >> 16;
    write<uint16_t>(to, i, uint16_t(value != value ? 0x7fc0 : even));
  }
};

#if defined(__FLT16_MAX__)
struct Float16 {
  using Value = float;
  static constexpr size_t BYTES = 2;
  static float load(const char* from, size_t i) { return float(read<_Float16>(from, i)); }
  static void store(char* to, size_t i, float value) { write<_Float16>(to, i, _Float16(value)); }
};
#else
// For compilers without a half type: exponents moved by multiplication, which also renormalises small numbers.
struct Float16 {
  using Value = float;
  static constexpr size_t BYTES = 2;
  static float load(const char* from, size_t i) {
    uint16_t half = read<uint16_t>(from, i);
    uint32_t sign = uint32_t(half & 0x8000) << 16;
    uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
    if (magnitude >= 0x0f800000) return bits<float>(sign | magnitude | 0x7f800000);
    return bits<float>(sign | bits<uint32_t>(bits<float>(magnitude) * 0x1p112f));
  }
  static void store(char* to, size_t i, float value) {
    uint32_t raw = bits<uint32_t>(value);
    uint16_t sign = uint16_t(raw >> 16 & 0x8000);
    uint32_t magnitude = raw & 0x7fffffff;
    uint16_t half;
    if (magnitude > 0x7f800000) {
      half = 0x7e00;
    } else if (magnitude >= 0x477ff000) {
      half = 0x7c00;
    } else if (magnitude >= 0x38800000) {
      half = uint16_t((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
    } else {
      // Too small for a full mantissa: adding 0.5 lets the processor round at the last place that half has there.
      half = uint16_t(bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000);
    }
    write<uint16_t>(to, i, sign | half);
  }
};
#endif

struct Sum { template <class V> static V apply(V a, V b) { return V(a + b); } };
struct Product { template <class V> static V apply(V a, V b) { return V(a * b); } };
struct Min { template <class V> static V apply(V a, V b) { return (a < b || a != a) ? a : b; } };
struct Max { template <class V> static V apply(V a, V b) { return (a > b || a != a) ? a : b; } };
struct And { template <class V> static V apply(V a, V b) { return V(a & b); } };
struct Or { template <class V> static V apply(V a, V b) { return V(a | b); } };
struct Xor { template <class V> static V apply(V a, V b) { return V(a ^ b); } };

// Where a reduction goes: to one place, and to a second one while it is still in the cache.
struct Target {
  char* to;
  char* also = nullptr;
};

// to[i] = from[0][i] op from[1][i] op ...; divided by `divisor` unless that is 1. `to` may be one of the sources.
template <class T, class Op>
void combine(Target target, const char* const* from, int sources, size_t count, int divisor) {
  using Value = typename T::Value;
  constexpr size_t BLOCK = 1024;
  for (size_t start = 0; start < count; start += BLOCK) {
    size_t n = count - start < BLOCK ? count - start : BLOCK;
    size_t at = start * T::BYTES;
    const char* first = from[0] + at;
    char* to = target.to + at;
    if (sources == 2 && divisor == 1) {
      const char* second = from[1] + at;
      // Where source and target are one, element i depends on element i alone.
#pragma GCC ivdep
      for (size_t i = 0; i < n; ++i) T::store(to, i, Op::apply(T::load(first, i), T::load(second, i)));
    } else {
      Value block[BLOCK];
      for (size_t i = 0; i < n; ++i) block[i] = T::load(first, i);
      for (int s = 1; s < sources; ++s) {
        const char* next = from[s] + at;
        for (size_t i = 0; i < n; ++i) block[i] = Op::apply(block[i], T::load(next, i));
      }
      if (divisor != 1) {
        for (size_t i = 0; i < n; ++i) block[i] = Value(block[i] / Value(divisor));
      }
      for (size_t i = 0; i < n; ++i) T::store(to, i, block[i]);
    }
    if (target.also) std::memcpy(target.also + at, to, n * T::BYTES);
  }
}

using Combine = void (*)(Target, const char* const*, int, size_t, int);

template <class T>
Combine of_floats(int operation) {
  switch (operation) {
    case SUM: case AVG: return combine<T, Sum>;
    case PRODUCT: return combine<T, Product>;
    case MIN: return combine<T, Min>;
    case MAX: return combine<T, Max>;
    default: return nullptr;
  }
}

// Only order depends on the sign of integers, so the rest is shared by both kinds.
template <class Unsigned, class Ordered>
Combine of_integers(int operation) {
  switch (operation) {
    case SUM: return combine<Plain<Unsigned>, Sum>;
    case PRODUCT: return combine<Plain<Unsigned>, Product>;
    case MIN: return combine<Plain<Ordered>, Min>;
    case MAX: return combine<Plain<Ordered>, Max>;
    case BAND: return combine<Plain<Unsigned>, And>;
    case BOR: return combine<Plain<Unsigned>, Or>;
    case BXOR: return combine<Plain<Unsigned>, Xor>;
    default: return nullptr;
  }
}

inline Combine of_bools(int operation) {
  switch (operation) {
    case SUM: case MAX: case BOR: return combine<Plain<uint8_t>, Or>;
    case PRODUCT: case MIN: case BAND: return combine<Plain<uint8_t>, And>;
    case BXOR: return combine<Plain<uint8_t>, Xor>;
    default: return nullptr;
  }
}

// Null where the operation has no meaning for the type.
inline Combine find_combine(int type, int operation) {
  switch (type) {
    case F32: return of_floats<Plain<float>>(operation);
    case F64: return of_floats<Plain<double>>(operation);
    case BF16: return of_floats<Bfloat16>(operation);
    case F16: return of_floats<Float16>(operation);
    case I8: return of_integers<uint8_t, int8_t>(operation);
    case I16: return of_integers<uint16_t, int16_t>(operation);
    case I32: return of_integers<uint32_t, int32_t>(operation);
    case I64: return of_integers<uint64_t, int64_t>(operation);
    case U8: return of_integers<uint8_t, uint8_t>(operation);
    case BOOL: return of_bools(operation);
    default: return nullptr;
  }
}

}  // namespace counterpoint
