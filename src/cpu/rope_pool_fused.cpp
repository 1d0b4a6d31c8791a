// The kernel of rope_pool_fused for the CPU, compiled once for each SIMD target of Highway.
//
// A token at a time: its angles once, then each key/value head with its query heads, straight to the outputs and the pool.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope_pool_fused.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/index_array.h"
#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Lanes: how a dtype becomes float32 and back, rounded once, to nearest even; denormals and NaN are kept.

// A vector of narrow lanes as two of float32: even and odd lanes, or the lower and the upper half. The scalar target has no
// pairs of lanes, and SVE's vectors can't be members.
constexpr bool kHaveTwos = HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE;
template <class D>
struct Two {
  hn::Vec<D> first, second;
};

struct F32 {
  using Lane = float;
  static constexpr bool kInTwos = false, kEvenOdd = false;
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE D lanes(D d) {
    return d;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D /*d*/, hn::Vec<D> value) {
    return value;
  }
};

// Integer steps: Highway 1.0.3 truncates here, and the instruction of AVX512-BF16 flushes denormals.
struct BF16 {
  using Lane = std::uint16_t;
  // Two lanes in 32 bits become float32 by a shift and by a mask, without widening or narrowing: twice the speed on AVX-512.
  static constexpr bool kInTwos = kHaveTwos, kEvenOdd = kInTwos;
  template <class D>
  static HWY_INLINE Two<D> load_two(D d, const Lane* from) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto bits = hn::BitCast(d32, hn::LoadU(d16, from));
    return {hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000)))};
  }
  // A NaN here comes of bfloat16 lanes or of the arithmetic itself, so its low bits are 0, and no carry makes it another value.
  template <class D>
  static HWY_INLINE auto round_two(D /*d*/, Two<D> value) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto even = hn::BitCast(d32, value.first), odd = hn::BitCast(d32, value.second);
    const auto high = hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, hn::ShiftRight<16>(even)));
    const auto low = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
    // Up where the low half is above a half, or is a half and the high one is odd.
    const auto one = hn::Set(d16, 1);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // two steps fewer: 64 tokens take 0.9 times as long
    const auto up = hn::Gt(hn::OrAnd(low, high, one), hn::Set(d16, 0x8000));
    return hn::IfThenElse(up, hn::Add(high, one), high);
#else
    const auto above = hn::SaturatedSub(hn::SaturatedAdd(low, hn::And(high, one)), hn::Set(d16, 0x8000));
    return hn::Add(high, hn::Min(above, one));
#endif
  }
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
  }
  template <class D>
  static HWY_INLINE hn::Rebind<std::uint16_t, D> lanes(D /*d*/) {
    return {};
  }
  template <class D>
  static HWY_INLINE auto round(D /*d*/, hn::Vec<D> value) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> d32s;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000));  // a NaN whose payload is cut must not become Inf
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    const auto top = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    return hn::DemoteTo(d16, hn::BitCast(d32s, top));
  }
};

// Where the CPU has instructions for float16, Highway uses them; its replacement for others loses Inf and NaN.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
struct F16 {
  using Lane = std::uint16_t;
  static constexpr bool kInTwos = kHaveTwos, kEvenOdd = false;  // whole vectors are loaded and stored so
  template <class D>
  static HWY_INLINE Two<D> load_two(D d, const Lane* from) {
    const hn::Repartition<std::uint16_t, D> d16;
    const hn::Half<decltype(d16)> dh;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto lanes = hn::LoadU(d16, from);
    return {hn::PromoteTo(d, hn::BitCast(df16, hn::LowerHalf(dh, lanes))),
            hn::PromoteTo(d, hn::BitCast(df16, hn::UpperHalf(dh, lanes)))};
  }
  template <class D>
  static HWY_INLINE auto round_two(D /*d*/, Two<D> value) {
    const hn::Repartition<std::uint16_t, D> d16;
    const hn::Half<decltype(d16)> dh;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::Combine(d16, hn::BitCast(dh, hn::DemoteTo(df16, value.second)),
                       hn::BitCast(dh, hn::DemoteTo(df16, value.first)));
  }
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(d16, from)));
  }
  template <class D>
  static HWY_INLINE hn::Rebind<std::uint16_t, D> lanes(D /*d*/) {
    return {};
  }
  template <class D>
  static HWY_INLINE auto round(D /*d*/, hn::Vec<D> value) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::BitCast(d16, hn::DemoteTo(df16, value));
  }
};
#else
struct F16 {
  using Lane = std::uint16_t;
  static constexpr bool kInTwos = false, kEvenOdd = false;
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> d32s;
    const auto half = hn::PromoteTo(d32, hn::LoadU(d16, from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000)));
    const auto magnitude = hn::And(half, hn::Set(d32, 0x7FFF));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(d32, (127 - 15) << 23));
    const auto special = hn::Or(hn::Set(d32, 0x7F800000), shifted);  // Inf, NaN
    const auto is_nan = hn::Gt(magnitude, hn::Set(d32, 0x7C00));
    const auto quiet = hn::IfThenElse(is_nan, hn::Or(special, hn::Set(d32, 0x00400000)), special);
    const auto denormal =
        hn::BitCast(d32, hn::Mul(hn::ConvertTo(d, hn::BitCast(d32s, magnitude)), hn::Set(d, 1.0f / (1 << 24))));
    const auto at_least_normal = hn::Gt(magnitude, hn::Set(d32, 0x03FF));
    const auto is_special = hn::Gt(magnitude, hn::Set(d32, 0x7BFF));
    const auto bits = hn::IfThenElse(is_special, quiet, hn::IfThenElse(at_least_normal, normal, denormal));
    return hn::BitCast(d, hn::Or(bits, sign));
  }
  template <class D>
  static HWY_INLINE hn::Rebind<std::uint16_t, D> lanes(D /*d*/) {
    return {};
  }
  template <class D>
  static HWY_INLINE auto round(D d, hn::Vec<D> value) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> d32s;
    const auto bits = hn::BitCast(d32, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFFFFF));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1));
    const auto rebias = hn::Set(d32, static_cast<std::uint32_t>(15 - 127) << 23);
    const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(rebias, hn::Add(odd, hn::Set(d32, 0x0FFF)))));
    // Adding 1/2 leaves the multiple of 2^-24 in the low bits, rounded by the adder itself.
    const auto half = hn::Set(d, 0.5f);
    const auto denormal = hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(d32, half));
    const auto nan = hn::Or(hn::Set(d32, 0x7E00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x03FF)));
    auto result = hn::IfThenElse(hn::Gt(hn::Set(d32, 0x38800000), magnitude), denormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x477FEFFF)), hn::Set(d32, 0x7C00), result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7F800000)), nan, result);
    return hn::DemoteTo(d16, hn::BitCast(d32s, hn::Or(result, sign)));
  }
};
#endif

constexpr int kMaxFloats = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));

// Calls f(d, i) for i up to count in steps of whole vectors, then of quarters of them, down to kMinLanes lanes: the same
// operations on every lane, wherever it stands.
template <int kMaxLanes, int kMinLanes = 1, class F>
HWY_INLINE void for_lanes(std::int64_t i, std::int64_t count, F f) {
  const hn::CappedTag<float, kMaxLanes> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  for (; i + step <= count; i += step) f(d, i);
  if constexpr (kMaxLanes > kMinLanes) {
    if (i < count) for_lanes<(kMaxLanes / 4 > kMinLanes ? kMaxLanes / 4 : kMinLanes), kMinLanes>(i, count, f);
  }
}

// ---- Angles

// Pairs whose angles are held at once: those of a head_dim of 512.
constexpr std::int64_t kMaxPairs = 256;

// In the order in which the rotation takes them, see arrange().
struct CosSin {
  alignas(64) float cos[2 * kMaxPairs];
  alignas(64) float sin[2 * kMaxPairs];
};

// Quarter turns and what is left of the angle, from -1/2 to 1/2 of a quarter turn.
struct Reduced {
  alignas(64) std::uint32_t quarters[kMaxPairs];
  alignas(64) float rest[kMaxPairs];
};

// `position_of(i)` is the position that pair i follows.
template <class PositionOf>
HWY_INLINE void reduce_exact(const std::uint64_t* turns, std::int64_t count, PositionOf position_of, Reduced& reduced) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t angle = static_cast<std::uint64_t>(position_of(i)) * turns[i];  // in 2^-64 turn; whole turns fall off
    reduced.quarters[i] = static_cast<std::uint32_t>((angle + (std::uint64_t{1} << 61)) >> 62);
    reduced.rest[i] = static_cast<float>(static_cast<std::int64_t>(angle << 2)) * 0x1p-64f;
  }
}

template <class PositionOf>
HWY_INLINE void reduce_float32(const float* inverse, std::int64_t count, PositionOf position_of, Reduced& reduced) {
  // 2/pi in three parts: the product of the first with a float is exact.
  constexpr double kHigh = 0x1.45f306dp-1, kMiddle = 0x1.9391054p-30, kLow = 0x1.4fe13abe8fa9ap-59;
  for (std::int64_t i = 0; i < count; ++i) {
    const double angle = static_cast<float>(position_of(i)) * inverse[i];
    double whole, rest;
    if (std::abs(angle) <= 0x1p32) {
      const double high = angle * kHigh;
      const double middle = angle * kMiddle;
      whole = std::floor(high + middle + 0.5);
      rest = (high - whole) + middle + angle * kLow;
    } else {  // a base far below 1, or NaN
      const double quarter = std::atan2(std::sin(angle), std::cos(angle)) * (2 / 3.14159265358979323846);
      whole = std::isfinite(quarter) ? std::floor(quarter + 0.5) : 0.0;
      rest = quarter - whole;
    }
    reduced.quarters[i] = static_cast<std::uint32_t>(static_cast<std::int64_t>(whole));
    reduced.rest[i] = static_cast<float>(rest);
  }
}

// cos and sin of a reduced angle, times `scale`; polynomials in the square of the rest, fitted for this interval, off by at
// most 8e-8.
HWY_INLINE void cos_sin(const Reduced& reduced, std::int64_t count, float scale, CosSin& result) {
  for_lanes<kMaxFloats>(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> d32;
    const auto x = hn::Load(d, reduced.rest + i);
    const auto z = hn::Mul(x, x);
    auto s = hn::Set(d, 0x1.4b9ebcp-13f);
    s = hn::MulAdd(s, z, hn::Set(d, -0x1.32c9fcp-8f));
    s = hn::MulAdd(s, z, hn::Set(d, 0x1.466bbap-4f));
    s = hn::MulAdd(s, z, hn::Set(d, -0x1.4abbcep-1f));
    s = hn::MulAdd(s, z, hn::Set(d, -0x1.777a5cp-25f));  // pi/2 less its float32
    s = hn::MulAdd(x, hn::Set(d, 0x1.921fb6p+0f), hn::Mul(x, s));
    auto c = hn::Set(d, 0x1.d9f7bep-11f);
    c = hn::MulAdd(c, z, hn::Set(d, -0x1.55c664p-6f));
    c = hn::MulAdd(c, z, hn::Set(d, 0x1.03c1dep-2f));
    c = hn::MulAdd(c, z, hn::Set(d, -0x1.3bd3ccp+0f));
    c = hn::MulAdd(c, z, hn::Set(d, 1.0f));

    const auto quarters = hn::Load(d32, reduced.quarters + i);
    const auto one = hn::Set(d32, 1), two = hn::Set(d32, 2);
    const auto swap = hn::RebindMask(d, hn::Eq(hn::And(quarters, one), one));
    const auto cos_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quarters, one), two));
    const auto sin_sign = hn::ShiftLeft<30>(hn::And(quarters, two));
    const auto by = hn::Set(d, scale);
    hn::Store(hn::Mul(hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, cos_sign)), by), d, result.cos + i);
    hn::Store(hn::Mul(hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, sin_sign)), by), d, result.sin + i);
  });
}

// Within each run of two whole vectors: the values of even pairs, then those of odd ones.
HWY_INLINE void separate_even_odd([[maybe_unused]] float* values, [[maybe_unused]] std::int64_t count) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const auto n = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i + 2 * n <= count; i += 2 * n) {
    const auto low = hn::Load(d, values + i), high = hn::Load(d, values + i + n);
    hn::Store(hn::ConcatEven(d, high, low), d, values + i);
    hn::Store(hn::ConcatOdd(d, high, low), d, values + i + n);
  }
#endif
}

// As the rotation takes them: pairs in their order where a vector of lanes is a vector of pairs; even and odd ones apart where
// load_two takes lanes so; and twice each, for lanes 2i and 2i + 1, where neighbours are a pair.
template <class Type, Pairing kPairing>
HWY_INLINE void arrange(std::int64_t count, CosSin& angles) {
  if constexpr (kPairing == Pairing::neox) {
    if (Type::kEvenOdd) {
      separate_even_odd(angles.cos, count);
      separate_even_odd(angles.sin, count);
    }
  } else {
    // Of whole vectors load_two takes x and y apart.
    const auto n = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
    const std::int64_t apart = Type::kEvenOdd ? count / n * n : 0;
    if (apart == count) return;
    const CosSin once = angles;
    for (std::int64_t i = apart; i < count; ++i) {
      angles.cos[2 * i] = angles.cos[2 * i + 1] = once.cos[i];
      angles.sin[2 * i] = -once.sin[i];
      angles.sin[2 * i + 1] = once.sin[i];
    }
  }
}

std::int64_t position_of(const RopePoolFusedCall& call, std::int64_t t, std::int64_t axis) {
  std::int64_t position = 0;
  visit_index_array(call.positions, call.positions_dtype,
                    [&](const auto* values) { position = load_once(values + axis * call.positions_axis_stride + t); });
  return position;
}

// Bounded, since what is checked may change under the call.
std::int64_t set_of(const RopePoolFusedCall& call, std::int64_t t) {
  if (call.rope_sets == nullptr) return 0;
  std::int64_t set = 0;
  visit_index_array(call.rope_sets, call.rope_sets_dtype, [&](const auto* values) { set = load_once(values + t); });
  return std::clamp<std::int64_t>(set, 0, static_cast<std::int64_t>(call.rope->sets.size()) - 1);
}

// A row of the caller's table: cos of all pairs, then sin.
template <class Type>
HWY_INLINE void table_row(const RopeTables& rope, std::int64_t position, std::int64_t first, std::int64_t count,
                          CosSin& result) {
  const std::int64_t row = std::clamp<std::int64_t>(position, 0, rope.table.shape[0] - 1);
  const auto* cos = static_cast<const typename Type::Lane*>(rope.table.data) + row * rope.table.strides[0] + first;
  const auto* sin = cos + rope.num_pairs();
  for_lanes<kMaxFloats>(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::Store(Type::load(d, cos + i), d, result.cos + i);
    hn::Store(Type::load(d, sin + i), d, result.sin + i);
  });
}

void table_angles(const RopePoolFusedCall& call, std::int64_t t, std::int64_t first, std::int64_t count, CosSin& result) {
  const std::int64_t position = position_of(call, t, 0);
  switch (call.rope->table.dtype) {
    case DType::f32:
      return table_row<F32>(*call.rope, position, first, count, result);
    case DType::f16:
      return table_row<F16>(*call.rope, position, first, count, result);
    default:
      return table_row<BF16>(*call.rope, position, first, count, result);
  }
}

void frequency_angles(const RopePoolFusedCall& call, std::int64_t t, std::int64_t first, std::int64_t count, CosSin& result) {
  const FrequencySet& set = call.rope->sets[static_cast<std::size_t>(set_of(call, t))];
  Reduced reduced;
  const auto reduce = [&](auto position_of_pair) HWY_ATTR {
    if (call.angles == Angles::exact) {
      reduce_exact(set.turns.data() + first, count, position_of_pair, reduced);
    } else {
      reduce_float32(set.inverse_float32.data() + first, count, position_of_pair, reduced);
    }
  };
  if (call.rope->axis_of_pair.empty()) {
    const std::int64_t position = position_of(call, t, 0);
    reduce([position](std::int64_t) HWY_ATTR { return position; });
  } else {
    std::int64_t of_axis[kMaxAxes], of_pair[kMaxPairs];
    for (std::int64_t axis = 0; axis < call.rope->num_axes; ++axis) of_axis[axis] = position_of(call, t, axis);
    const std::uint8_t* axis_of_pair = call.rope->axis_of_pair.data() + first;
    for (std::int64_t i = 0; i < count; ++i) of_pair[i] = of_axis[axis_of_pair[i]];
    reduce([&of_pair](std::int64_t i) HWY_ATTR { return of_pair[i]; });
  }
  cos_sin(reduced, count, set.scale, result);
}

template <class Type, Pairing kPairing>
void angles_of(const RopePoolFusedCall& call, std::int64_t t, std::int64_t first, std::int64_t count, CosSin& result) {
  if (call.rope->table.given()) {
    table_angles(call, t, first, count, result);
  } else {
    frequency_angles(call, t, first, count, result);
  }
  arrange<Type, kPairing>(count, result);
}

// ---- Copies

constexpr std::int64_t kLine = 64;  // bytes of a cache line
constexpr bool kVectorIsLine = kMaxFloats * sizeof(float) == kLine;

// memcpy; past the caches but for lines at the ends that are not whole, of which a part would be read again.
template <bool kPastCaches>
HWY_INLINE void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const hn::CappedTag<std::uint8_t, kLine> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  std::int64_t i = 0;
  if constexpr (kPastCaches) {
    i = std::min(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & (kLine - 1)));
    if (i > 0) std::memcpy(to, from, static_cast<std::size_t>(i));
    for (const std::int64_t end = i + (bytes - i) / kLine * kLine; i < end; i += step) {
      hn::Stream(hn::LoadU(d, source + i), d, target + i);
    }
  } else {
    for (; i + step <= bytes; i += step) hn::StoreU(hn::LoadU(d, source + i), d, target + i);
  }
  if (i < bytes) std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

template <class Type>
struct Heads {
  using Lane = typename Type::Lane;
  std::byte* row;
  std::int64_t stride;

  Heads(const HeadRows& rows, std::int64_t index) : row(rows.row(index)), stride(rows.head_stride) {}
  Lane* operator[](std::int64_t h) const { return reinterpret_cast<Lane*>(row + h * stride); }
};

// ---- Where turned lanes go: `at` counts from the head's first lane

// Past the caches, no line is read before it is written; whole vectors go to their own boundaries only.
template <class Lane, bool kPastCaches>
struct To {
  Lane* head;
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> lanes, std::int64_t at) const {
    // Of less than 16 bytes Highway would write 16.
    if constexpr (kPastCaches && hn::MaxLanes(D()) * sizeof(Lane) >= 16) {
      hn::Stream(lanes, d, head + at);
    } else {
      hn::StoreU(lanes, d, head + at);
    }
  }
  // Lanes `begin` to `end` as they are; nothing where the head is turned in place.
  HWY_INLINE void copy_lanes(const Lane* from, std::int64_t begin, std::int64_t end) const {
    if (from == head) return;
    copy<kPastCaches>(reinterpret_cast<std::byte*>(head + begin), reinterpret_cast<const std::byte*>(from + begin),
                      (end - begin) * static_cast<std::int64_t>(sizeof(Lane)));
  }
};
template <class Lane, bool kPastCaches>
struct ToBoth {
  To<Lane, kPastCaches> first, second;
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> lanes, std::int64_t at) const {
    first.store(d, lanes, at);
    second.store(d, lanes, at);
  }
  HWY_INLINE void copy_lanes(const Lane* from, std::int64_t begin, std::int64_t end) const {
    first.copy_lanes(from, begin, end);
    second.copy_lanes(from, begin, end);
  }
};

template <class Type, bool kPastCaches>
struct ToHeads {
  Heads<Type> heads;
  HWY_INLINE auto operator()(std::int64_t h) const { return To<typename Type::Lane, kPastCaches>{heads[h]}; }
};
template <class Type, bool kPastCaches>
struct ToBothHeads {
  Heads<Type> first, second;
  HWY_INLINE auto operator()(std::int64_t h) const { return ToBoth<typename Type::Lane, kPastCaches>{{first[h]}, {second[h]}}; }
};

// ---- Rotation

// Head h of `num_heads` of a row; of rows without gaps, the lines that end in it, since a head may share its last with the
// next.
template <bool kPastCaches, class Type>
HWY_INLINE void copy_head(Heads<Type> to, Heads<Type> from, std::int64_t h, std::int64_t num_heads, std::int64_t bytes) {
  std::int64_t begin = h * to.stride, end = begin + bytes;
  if (kPastCaches && to.stride == bytes && from.stride == bytes) {
    const auto past_line = [&](std::int64_t at) {
      return static_cast<std::int64_t>((reinterpret_cast<std::uintptr_t>(to.row) + static_cast<std::uintptr_t>(at)) &
                                       (kLine - 1));
    };
    if (h > 0) begin = std::max<std::int64_t>(begin - past_line(begin), 0);
    if (h + 1 < num_heads) end = std::max<std::int64_t>(end - past_line(end), 0);
    copy<kPastCaches>(to.row + begin, from.row + begin, end - begin);
  } else {
    copy<kPastCaches>(to.row + begin, from.row + h * from.stride, bytes);
  }
}

// Pairs first to first + count of heads `begin` to `end` turn by angles 0 to count; `to(h)` is where head h goes. The rotated
// lanes begin at `offset`, and their second half `half` later. Heads are the inner loop, so that angles stay in registers.
template <class Type, class ToHead, class D = hn::ScalableTag<float>>  // a parameter, so that no unused Two<D> is compiled
HWY_INLINE void rotate_halves(Heads<Type> heads, std::int64_t begin, std::int64_t end, std::int64_t offset, std::int64_t half,
                              std::int64_t first, std::int64_t count, const CosSin& angles, ToHead to) {
  std::int64_t done = 0;
  if constexpr (Type::kInTwos) {  // whole pairs of vectors, whose order in `angles` is that of load_two
    const D d;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto n = static_cast<std::int64_t>(hn::Lanes(d));
    for (; done + 2 * n <= count; done += 2 * n) {
      const Two<D> c{hn::Load(d, angles.cos + done), hn::Load(d, angles.cos + done + n)};
      const Two<D> s{hn::Load(d, angles.sin + done), hn::Load(d, angles.sin + done + n)};
      const std::int64_t i = offset + first + done, j = half + i;
      for (std::int64_t h = begin; h < end; ++h) {
        const Two<D> x = Type::load_two(d, heads[h] + i), y = Type::load_two(d, heads[h] + j);
        const Two<D> low{hn::NegMulAdd(y.first, s.first, hn::Mul(x.first, c.first)),
                         hn::NegMulAdd(y.second, s.second, hn::Mul(x.second, c.second))};
        const Two<D> high{hn::MulAdd(x.first, s.first, hn::Mul(y.first, c.first)),
                          hn::MulAdd(x.second, s.second, hn::Mul(y.second, c.second))};
        to(h).store(d16, Type::round_two(d, low), i);
        to(h).store(d16, Type::round_two(d, high), j);
      }
    }
  }
  for_lanes<kMaxFloats>(done, count, [&](auto d, std::int64_t at) HWY_ATTR {
    const auto c = hn::Load(d, angles.cos + at), s = hn::Load(d, angles.sin + at);
    const std::int64_t i = offset + first + at, j = half + i;
    for (std::int64_t h = begin; h < end; ++h) {
      const auto x = Type::load(d, heads[h] + i), y = Type::load(d, heads[h] + j);
      to(h).store(Type::lanes(d), Type::round(d, hn::NegMulAdd(y, s, hn::Mul(x, c))), i);
      to(h).store(Type::lanes(d), Type::round(d, hn::MulAdd(x, s, hn::Mul(y, c))), j);
    }
  });
}

// The same where lanes 2i and 2i + 1 are a pair.
template <class Type, class ToHead, class D = hn::ScalableTag<float>>
HWY_INLINE void rotate_neighbours(Heads<Type> heads, std::int64_t begin, std::int64_t end, std::int64_t offset,
                                  std::int64_t first, std::int64_t count, const CosSin& angles, ToHead to) {
  const std::int64_t start = offset + 2 * first;
#if HWY_TARGET == HWY_SCALAR
  const hn::CappedTag<float, 1> d;
  for (std::int64_t lane = 0; lane < 2 * count; lane += 2) {
    const auto c = hn::Load(d, angles.cos + lane), s = hn::Load(d, angles.sin + lane + 1);
    for (std::int64_t h = begin; h < end; ++h) {
      const auto x = Type::load(d, heads[h] + start + lane), y = Type::load(d, heads[h] + start + lane + 1);
      to(h).store(Type::lanes(d), Type::round(d, hn::NegMulAdd(y, s, hn::Mul(x, c))), start + lane);
      to(h).store(Type::lanes(d), Type::round(d, hn::MulAdd(x, s, hn::Mul(y, c))), start + lane + 1);
    }
  }
#else
  std::int64_t done = 0;  // pairs
  if constexpr (Type::kEvenOdd) {
    const D d;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto n = static_cast<std::int64_t>(hn::Lanes(d));
    for (; done + n <= count; done += n) {
      const auto c = hn::Load(d, angles.cos + done), s = hn::Load(d, angles.sin + done);
      const std::int64_t at = start + 2 * done;
      for (std::int64_t h = begin; h < end; ++h) {
        const Two<D> pair = Type::load_two(d, heads[h] + at);
        const Two<D> turned{hn::NegMulAdd(pair.second, s, hn::Mul(pair.first, c)),
                            hn::MulAdd(pair.first, s, hn::Mul(pair.second, c))};
        to(h).store(d16, Type::round_two(d, turned), at);
      }
    }
  }
  for_lanes<kMaxFloats, 2>(2 * done, 2 * count, [&](auto d, std::int64_t lane) HWY_ATTR {
    const auto c = hn::Load(d, angles.cos + lane), s = hn::Load(d, angles.sin + lane);  // -s for the first of a pair
    const std::int64_t at = start + lane;
    for (std::int64_t h = begin; h < end; ++h) {
      const auto pair = Type::load(d, heads[h] + at);
      to(h).store(Type::lanes(d), Type::round(d, hn::MulAdd(hn::Reverse2(d, pair), s, hn::Mul(pair, c))), at);
    }
  });
#endif
}

// What stands before and behind the rotated lanes.
template <class Type, class ToHead>
HWY_INLINE void pass_through(Heads<Type> heads, std::int64_t begin, std::int64_t end, const RopePoolFusedCall& call,
                             ToHead to) {
  const RopeTables& rope = *call.rope;
  for (std::int64_t h = begin; h < end; ++h) {
    if (rope.rotary_offset > 0) to(h).copy_lanes(heads[h], 0, rope.rotary_offset);
    const std::int64_t behind = rope.rotary_offset + rope.rotary_dim;
    if (behind < call.head_dim) to(h).copy_lanes(heads[h], behind, call.head_dim);
  }
}

// Pairs that are turned at once: all of a head, but for heads of more than 2 * kMaxPairs. A copy of its own, since the compiler
// must take every store for one into the call.
struct Part {
  std::int64_t offset, half;  // as rotate_halves has them
  std::int64_t first, count;  // pairs
  bool pass_rest;             // whether lanes that do not turn go with these
};

template <class Type, Pairing kPairing, bool kStreamOutputs, class ToHead>
HWY_INLINE void turn(const RopePoolFusedCall& call, const Part& part, const CosSin& angles, Heads<Type> heads,
                     std::int64_t begin, std::int64_t end, ToHead to) {
  // Past the caches a line must be written at once, else a call takes three times as long: shorter vectors take a head after
  // the other.
  constexpr bool kWholeLines = kVectorIsLine && (kPairing == Pairing::neox || !Type::kInTwos || Type::kEvenOdd);
  const std::int64_t step = kStreamOutputs && !kWholeLines ? 1 : end - begin;
  for (std::int64_t h = begin; h < end; h += step) {
    if constexpr (kPairing == Pairing::neox) {
      rotate_halves<Type>(heads, h, h + step, part.offset, part.half, part.first, part.count, angles, to);
    } else {
      rotate_neighbours<Type>(heads, h, h + step, part.offset, part.first, part.count, angles, to);
    }
  }
  if (part.pass_rest) pass_through<Type>(heads, begin, end, call, to);
}

// Compiled once for keys and queries, where a call for each group of heads may cost a tenth.
template <class Type, bool kStreamOutputs, class ToHead>
HWY_NOINLINE void turn_neighbours(const RopePoolFusedCall& call, const Part& part, const CosSin& angles, Heads<Type> heads,
                                  std::int64_t begin, std::int64_t end, ToHead to) {
  turn<Type, Pairing::interleaved, kStreamOutputs>(call, part, angles, heads, begin, end, to);
}

// Each key/value head goes with its share of the query heads, so that stores past the caches are spread evenly over the
// arithmetic: 4,096 tokens take 0.9 times as long as with whole rows.
template <class Type, Pairing kPairing, bool kStreamOutputs>
HWY_INLINE void run_token(const RopePoolFusedCall& call, std::int64_t t, CosSin& angles) {
  const std::int64_t half = call.rope->num_pairs();
  const std::int64_t head_bytes = call.head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const bool stored = call.pool_rows[t] >= 0;
  const std::int64_t row = stored ? call.pool_rows[t] : 0;
  const Heads<Type> q(call.q, t), k(call.k, t), v(call.v, t), q_out(call.q_out, t), k_out(call.k_out, t);
  const Heads<Type> k_row(call.k_pool, row), v_row(call.v_pool, row);
  for (std::int64_t first = 0; first < half; first += kMaxPairs) {
    const std::int64_t count = std::min(kMaxPairs, half - first);
    const bool last = first + count == half;
    const Part part{call.rope->rotary_offset, half, first, count, last && call.rope->rotary_dim < call.head_dim};
    angles_of<Type, kPairing>(call, t, first, count, angles);
    const auto turn_to = [&](Heads<Type> heads, std::int64_t begin, std::int64_t end, auto to) HWY_ATTR
        __attribute__((always_inline)) {
      if constexpr (kPairing == Pairing::neox) {
        turn<Type, kPairing, kStreamOutputs>(call, part, angles, heads, begin, end, to);
      } else {
        turn_neighbours<Type, kStreamOutputs>(call, part, angles, heads, begin, end, to);
      }
    };
    std::int64_t qo = 0;
    for (std::int64_t kv = 0; kv < call.num_kv_heads; ++kv) {
      if (kStreamOutputs && stored) {  // read back from memory, k_out would cost more than it does from the L1 cache
        turn_to(k, kv, kv + 1, ToBothHeads<Type, kStreamOutputs>{k_out, k_row});
      } else {
        turn_to(k, kv, kv + 1, ToHeads<Type, kStreamOutputs>{k_out});
      }
      if (stored && last) {
        const auto store = [&](auto past_caches) HWY_ATTR {
          constexpr bool kPastCaches = decltype(past_caches)::value;
          if constexpr (!kStreamOutputs) copy_head<kPastCaches>(k_row, k_out, kv, call.num_kv_heads, head_bytes);
          copy_head<kPastCaches>(v_row, v, kv, call.num_kv_heads, head_bytes);
        };
        if (kStreamOutputs || call.stream_pool) {
          store(std::true_type());
        } else {
          store(std::false_type());
        }
      }
      const std::int64_t end = call.num_qo_heads * (kv + 1) / call.num_kv_heads;
      turn_to(q, qo, end, ToHeads<Type, kStreamOutputs>{q_out});
      qo = end;
    }
  }
}

template <class Type, Pairing kPairing, bool kStreamOutputs>
void run_tokens(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  CosSin angles;
  for (std::int64_t t = begin; t < end; ++t) run_token<Type, kPairing, kStreamOutputs>(call, t, angles);
  if (kStreamOutputs || call.stream_pool) hwy::FlushStream();  // before another thread is told that this range is done
}

template <class Type, Pairing kPairing>
void run_paired(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  if (call.stream_outputs) return run_tokens<Type, kPairing, true>(call, begin, end);
  return run_tokens<Type, kPairing, false>(call, begin, end);
}

template <class Type>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  if (call.rope->pairing == Pairing::neox) return run_paired<Type, Pairing::neox>(call, begin, end);
  return run_paired<Type, Pairing::interleaved>(call, begin, end);
}

void rope_pool_fused(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  switch (call.dtype) {
    case DType::f32:
      return run<F32>(call, begin, end);
    case DType::f16:
      return run<F16>(call, begin, end);
    default:
      return run<BF16>(call, begin, end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropepool {
namespace {
HWY_EXPORT(rope_pool_fused);
}  // namespace

cpu::RopePoolFusedKernel cpu::rope_pool_fused_kernel(std::int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  // With one target, as by -march=skylake-avx512 or by clang for ARM, Highway's table has one entry, whatever the index.
  constexpr bool kOneTarget = (HWY_TARGETS & (HWY_TARGETS - 1)) == 0;
  return HWY_DISPATCH_TABLE(rope_pool_fused)[kOneTarget ? 0 : chosen.GetIndex()];
}
}  // namespace ropepool
#endif
