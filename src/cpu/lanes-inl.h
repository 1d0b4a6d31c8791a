// How a dtype becomes float32 and back, rounded once, to nearest even; denormals and NaN are kept.
// Included by kernels, which Highway compiles once for each SIMD target.
#if defined(ROPEPOOL_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEPOOL_CPU_LANES_INL_H_
#undef ROPEPOOL_CPU_LANES_INL_H_
#else
#define ROPEPOOL_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// As many lanes as two vectors of float32 have: the even and the odd ones, or the lower and the upper half, which of 16-bit
// lanes is one vector in memory. The scalar target has no pairs of lanes, and SVE's vectors can't be members.
constexpr bool kHaveTwos = HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE;
template <class D>
struct Two {
  hn::Vec<D> first, second;
  HWY_INLINE Two() {}  // one that the compiler makes lacks the target's instructions, of which NEON's vectors are made
  HWY_INLINE Two(hn::Vec<D> one, hn::Vec<D> other) : first(one), second(other) {}
};

struct F32 {
  using Lane = float;
  static constexpr bool kInTwos = kHaveTwos, kEvenOdd = false;
  template <class D>
  static HWY_INLINE Two<D> load_two(D d, const Lane* from) {
    return {hn::LoadU(d, from), hn::LoadU(d, from + hn::Lanes(d))};
  }
  template <class D>
  static HWY_INLINE D lanes_of_two(D d) {
    return d;
  }
  template <class D>
  static HWY_INLINE Two<D> round_two(D /*d*/, Two<D> value) {
    return value;
  }
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
  template <class D>
  static HWY_INLINE hn::Repartition<std::uint16_t, D> lanes_of_two(D /*d*/) {
    return {};
  }
  // A NaN here comes of bfloat16 lanes, of the arithmetic itself or of what was read without its payload, so its low bits are
  // 0, and no carry makes it another value.
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
  static HWY_INLINE hn::Repartition<std::uint16_t, D> lanes_of_two(D /*d*/) {
    return {};
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
