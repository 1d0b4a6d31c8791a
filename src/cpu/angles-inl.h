// cos and sin of the pairs of a token.
// Included by kernels, which Highway compiles once for each SIMD target.
#if defined(ROPEPOOL_CPU_ANGLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEPOOL_CPU_ANGLES_INL_H_
#undef ROPEPOOL_CPU_ANGLES_INL_H_
#else
#define ROPEPOOL_CPU_ANGLES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/index_array.h"
#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"
#include "cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

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

// `angle_of(i)` is the angle of pair i in 2^-64 turn; whole turns have fallen off.
template <class AngleOf>
HWY_INLINE void reduce_turns(std::int64_t count, AngleOf angle_of, Reduced& reduced) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t angle = angle_of(i);
    reduced.quarters[i] = static_cast<std::uint32_t>((angle + (std::uint64_t{1} << 61)) >> 62);
    reduced.rest[i] = static_cast<float>(static_cast<std::int64_t>(angle << 2)) * 0x1p-64f;
  }
}

// `angle_of(i)` in radians.
template <class AngleOf>
HWY_INLINE void reduce_radians(std::int64_t count, AngleOf angle_of, Reduced& reduced) {
  // 2/pi in three parts: the product of the first with a float is exact.
  constexpr double kHigh = 0x1.45f306dp-1, kMiddle = 0x1.9391054p-30, kLow = 0x1.4fe13abe8fa9ap-59;
  for (std::int64_t i = 0; i < count; ++i) {
    const double angle = angle_of(i);
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
// load_two takes lanes so; and where neighbours are a pair, a cos and a sin for each of the two lanes, in `of_x`: what lane 2i
// is multiplied by and what its neighbour is, then those of 2i + 1. `of_x` and `of_y` may be the same.
template <class Type, Pairing kPairing>
HWY_INLINE void arrange(std::int64_t count, CosSin& of_x, CosSin& of_y) {
  if constexpr (kPairing == Pairing::neox) {
    if (!Type::kEvenOdd) return;
    separate_even_odd(of_x.cos, count);
    separate_even_odd(of_x.sin, count);
    if (&of_x == &of_y) return;
    separate_even_odd(of_y.cos, count);
    separate_even_odd(of_y.sin, count);
  } else {
    // Of whole vectors load_two takes x and y apart.
    const auto n = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
    const std::int64_t apart = Type::kEvenOdd ? count / n * n : 0;
    for (std::int64_t i = count - 1; i >= apart; --i) {  // from the last pair on, since it writes what it has read
      const float c_x = of_x.cos[i], s_x = of_x.sin[i], c_y = of_y.cos[i], s_y = of_y.sin[i];
      of_x.cos[2 * i] = c_x;
      of_x.cos[2 * i + 1] = c_y;
      of_x.sin[2 * i] = -s_y;
      of_x.sin[2 * i + 1] = s_x;
    }
  }
}

inline std::int64_t position_of(const Places& places, std::int64_t t, std::int64_t axis) {
  std::int64_t position = 0;
  visit_index_array(places.positions, places.positions_dtype,
                    [&](const auto* values) { position = load_once(values + axis * places.axis_stride + t); });
  return position;
}

// Calls f with a function that gives the position which pair first + i follows.
template <class F>
HWY_INLINE void with_positions(const RopeTables& rope, const Places& places, std::int64_t t, std::int64_t first,
                               std::int64_t count, F f) {
  if (rope.axis_of_pair.empty()) {
    const std::int64_t position = position_of(places, t, 0);
    f([position](std::int64_t) HWY_ATTR { return position; });
  } else {
    std::int64_t of_axis[kMaxAxes], of_pair[kMaxPairs];
    for (std::int64_t axis = 0; axis < rope.num_axes; ++axis) of_axis[axis] = position_of(places, t, axis);
    const std::uint8_t* axis_of_pair = rope.axis_of_pair.data() + first;
    for (std::int64_t i = 0; i < count; ++i) of_pair[i] = of_axis[axis_of_pair[i]];
    f([&of_pair](std::int64_t i) HWY_ATTR { return of_pair[i]; });
  }
}

// Bounded, since what is checked may change under the call.
inline const FrequencySet& set_of(const RopeTables& rope, const Places& places, std::int64_t t) {
  if (places.sets == nullptr) return rope.sets.front();
  std::int64_t set = 0;
  visit_index_array(places.sets, places.sets_dtype, [&](const auto* values) { set = load_once(values + t); });
  return rope.sets[static_cast<std::size_t>(std::clamp<std::int64_t>(set, 0, static_cast<std::int64_t>(rope.sets.size()) - 1))];
}

// A row of the caller's table: cos of all pairs, then sin. A NaN becomes the one without a payload, as round_two wants it.
template <class Type>
HWY_INLINE void table_row(const RopeTables& rope, std::int64_t position, std::int64_t first, std::int64_t count,
                          CosSin& result) {
  const std::int64_t row = std::clamp<std::int64_t>(position, 0, rope.table.shape[0] - 1);
  const auto* cos = static_cast<const typename Type::Lane*>(rope.table.data) + row * rope.table.strides[0] + first;
  const auto* sin = cos + rope.num_pairs();
  for_lanes<kMaxFloats>(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto plain = [d](auto x) HWY_ATTR {
      return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), x);
    };
    hn::Store(plain(Type::load(d, cos + i)), d, result.cos + i);
    hn::Store(plain(Type::load(d, sin + i)), d, result.sin + i);
  });
}

inline void table_angles(const RopeTables& rope, const Places& places, std::int64_t t, std::int64_t first, std::int64_t count,
                         CosSin& result) {
  const std::int64_t position = position_of(places, t, 0);
  switch (rope.table.dtype) {
    case DType::f32:
      return table_row<F32>(rope, position, first, count, result);
    case DType::f16:
      return table_row<F16>(rope, position, first, count, result);
    default:
      return table_row<BF16>(rope, position, first, count, result);
  }
}

inline void frequency_angles(const RopeTables& rope, Angles angles, const Places& places, std::int64_t t, std::int64_t first,
                             std::int64_t count, CosSin& result) {
  const FrequencySet& set = set_of(rope, places, t);
  Reduced reduced;
  with_positions(rope, places, t, first, count, [&](auto position) HWY_ATTR {
    if (angles == Angles::exact) {
      const std::uint64_t* turns = set.turns.data() + first;
      reduce_turns(
          count, [&](std::int64_t i) HWY_ATTR { return static_cast<std::uint64_t>(position(i)) * turns[i]; }, reduced);
    } else {
      const float* inverse = set.inverse_float32.data() + first;
      reduce_radians(
          count, [&](std::int64_t i) HWY_ATTR { return double{static_cast<float>(position(i)) * inverse[i]}; }, reduced);
    }
  });
  cos_sin(reduced, count, set.scale, result);
}

// Of what lies between two places.
inline void angles_between(const RopeTables& rope, Angles angles, const Places& from, const Places& to, std::int64_t t,
                           std::int64_t first, std::int64_t count, CosSin& result) {
  const FrequencySet &set = set_of(rope, from, t), &to_set = set_of(rope, to, t);
  Reduced reduced;
  with_positions(rope, from, t, first, count, [&](auto position) HWY_ATTR {
    with_positions(rope, to, t, first, count, [&](auto to_position) HWY_ATTR {
      if (angles == Angles::exact) {
        const std::uint64_t *turns = set.turns.data() + first, *to_turns = to_set.turns.data() + first;
        reduce_turns(
            count,
            [&](std::int64_t i) HWY_ATTR {
              return static_cast<std::uint64_t>(to_position(i)) * to_turns[i] -
                     static_cast<std::uint64_t>(position(i)) * turns[i];
            },
            reduced);
      } else {
        const float *inverse = set.inverse_float32.data() + first, *to_inverse = to_set.inverse_float32.data() + first;
        reduce_radians(
            count,
            [&](std::int64_t i) HWY_ATTR {
              return double{static_cast<float>(to_position(i)) * to_inverse[i]} -
                     double{static_cast<float>(position(i)) * inverse[i]};
            },
            reduced);
      }
    });
  });
  cos_sin(reduced, count, to_set.scale / set.scale, result);
}

// In the order of pairs.
inline void angles_at(const RopePoolFusedCall& call, std::int64_t t, std::int64_t first, std::int64_t count, CosSin& result) {
  if (call.rope->table.given()) {
    table_angles(*call.rope, call.places, t, first, count, result);
  } else {
    frequency_angles(*call.rope, call.angles, call.places, t, first, count, result);
  }
}

template <class Type, Pairing kPairing>
void angles_of(const RopePoolFusedCall& call, std::int64_t t, std::int64_t first, std::int64_t count, CosSin& result) {
  angles_at(call, t, first, count, result);
  arrange<Type, kPairing>(count, result, result);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
