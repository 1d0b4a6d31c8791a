// The kernel of rope_pool_fused for the CPU, compiled once for each SIMD target of Highway.
//
// A token at a time: its angles once, then its heads, straight to the outputs; k from there, still in the L1 cache, to the
// pool.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope_pool_fused.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/frequencies.h"
#include "core/index_array.h"
#include "core/rope_pool_fused_call.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Lanes: how a dtype becomes float32 and back, rounded once, to nearest even; denormals and NaN are kept.

struct F32 {
  using Lane = float;
  static constexpr bool kEvenOdd = false;
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, Lane* to) {
    hn::StoreU(value, d, to);
  }
};

// Integer steps: Highway 1.0.3 truncates here, and the instruction of AVX512-BF16 flushes denormals.
struct BF16 {
  using Lane = std::uint16_t;
  // Two lanes in 32 bits become float32 by a shift and by a mask, without widening or narrowing: twice the speed on AVX-512.
  // The scalar target has no pairs of lanes.
  static constexpr bool kEvenOdd = HWY_TARGET != HWY_SCALAR;
  template <class D>
  struct Two {
    hn::Vec<D> even, odd;
  };
  template <class D>
  static HWY_INLINE Two<D> load_two(D d, const Lane* from) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto bits = hn::BitCast(d32, hn::LoadU(d16, from));
    return {hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000)))};
  }
  // Where no lane is NaN.
  template <class D>
  static HWY_INLINE void store_two(D d, Two<D> value, Lane* to) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto round = [&](auto bits) HWY_ATTR {
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
      return hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFF)), odd);
    };
    const auto even = hn::ShiftRight<16>(round(hn::BitCast(d32, value.even)));
    const auto odd = hn::And(round(hn::BitCast(d32, value.odd)), hn::Set(d32, 0xFFFF0000));
    hn::StoreU(hn::BitCast(d16, hn::Or(even, odd)), d16, to);
  }
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
  }
  template <class D>
  static void store(D /*d*/, hn::Vec<D> value, Lane* to) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> d32s;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000));  // a NaN whose payload is cut must not become Inf
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    const auto top = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32s, top)), d16, to);
  }
};

// Where the CPU has instructions for float16, Highway uses them; its replacement for others loses Inf and NaN.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
struct F16 {
  using Lane = std::uint16_t;
  static constexpr bool kEvenOdd = false;
  template <class D>
  static hn::Vec<D> load(D d, const Lane* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(d16, from)));
  }
  template <class D>
  static void store(D /*d*/, hn::Vec<D> value, Lane* to) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, value)), d16, to);
  }
};
#else
struct F16 {
  using Lane = std::uint16_t;
  static constexpr bool kEvenOdd = false;
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
  static void store(D d, hn::Vec<D> value, Lane* to) {
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
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32s, hn::Or(result, sign))), d16, to);
  }
};
#endif

constexpr int kMaxFloats = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));

// Calls f(d, i) for i from 0 to count in steps of whole vectors, then of halves of them, down to one lane: the same operations
// on every lane, wherever it stands.
template <int kMaxLanes, class F>
HWY_INLINE void for_lanes(std::int64_t i, std::int64_t count, F f) {
  const hn::CappedTag<float, kMaxLanes> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  for (; i + step <= count; i += step) f(d, i);
  if constexpr (kMaxLanes > 1) {
    if (i < count) for_lanes<kMaxLanes / 2>(i, count, f);
  }
}

// ---- Angles

// Pairs whose angles are held at once: 8 KiB of cos and sin.
constexpr std::int64_t kMaxPairs = 1024;

struct CosSin {
  alignas(64) float cos[kMaxPairs];
  alignas(64) float sin[kMaxPairs];
};

// Quarter turns and what is left of the angle, from -1/2 to 1/2 of a quarter turn.
struct Reduced {
  alignas(64) std::uint32_t quarters[kMaxPairs];
  alignas(64) float rest[kMaxPairs];
};

HWY_INLINE void reduce_exact(const std::uint64_t* turns, std::int64_t count, std::int64_t position, Reduced& reduced) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t angle = static_cast<std::uint64_t>(position) * turns[i];  // in 2^-64 turn; whole turns fall off
    reduced.quarters[i] = static_cast<std::uint32_t>((angle + (std::uint64_t{1} << 61)) >> 62);
    reduced.rest[i] = static_cast<float>(static_cast<std::int64_t>(angle << 2)) * 0x1p-64f;
  }
}

HWY_INLINE void reduce_float32(const float* inverse, std::int64_t count, std::int64_t position, Reduced& reduced) {
  // 2/pi in three parts: the product of the first with a float is exact.
  constexpr double kHigh = 0x1.45f306dp-1, kMiddle = 0x1.9391054p-30, kLow = 0x1.4fe13abe8fa9ap-59;
  const auto p = static_cast<float>(position);
  for (std::int64_t i = 0; i < count; ++i) {
    const double angle = p * inverse[i];
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

// cos and sin of a reduced angle; polynomials in the square of the rest, fitted for this interval, off by at most 8e-8.
HWY_INLINE void cos_sin(const Reduced& reduced, std::int64_t count, CosSin& result) {
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
    hn::Store(hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, cos_sign)), d, result.cos + i);
    hn::Store(hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, sin_sign)), d, result.sin + i);
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

template <class Type>
void angles_of(const RopePoolFusedCall& call, std::int64_t position, std::int64_t first_pair, std::int64_t count,
               CosSin& result) {
  Reduced reduced;
  if (call.angles == Angles::exact) {
    reduce_exact(call.frequencies->turns.data() + first_pair, count, position, reduced);
  } else {
    reduce_float32(call.frequencies->inverse_float32.data() + first_pair, count, position, reduced);
  }
  cos_sin(reduced, count, result);
  if (Type::kEvenOdd) {
    separate_even_odd(result.cos, count);
    separate_even_odd(result.sin, count);
  }
}

// ---- Rotation and copies

// The pairs that fill whole vectors of both even and odd lanes; returns how many these are. `angles` went through
// separate_even_odd.
template <class Type>
HWY_INLINE std::int64_t rotate_even_odd(const typename Type::Lane* low, const typename Type::Lane* high, const CosSin& angles,
                                        std::int64_t count, typename Type::Lane* low_to, typename Type::Lane* high_to) {
  using D = hn::ScalableTag<float>;
  using Two = typename Type::template Two<D>;
  const D d;
  const auto n = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + 2 * n <= count; i += 2 * n) {
    const auto x = Type::load_two(d, low + i), y = Type::load_two(d, high + i);
    const auto c_even = hn::Load(d, angles.cos + i), c_odd = hn::Load(d, angles.cos + i + n);
    const auto s_even = hn::Load(d, angles.sin + i), s_odd = hn::Load(d, angles.sin + i + n);
    const Two low_turned{hn::NegMulAdd(y.even, s_even, hn::Mul(x.even, c_even)),
                         hn::NegMulAdd(y.odd, s_odd, hn::Mul(x.odd, c_odd))};
    const Two high_turned{hn::MulAdd(x.even, s_even, hn::Mul(y.even, c_even)), hn::MulAdd(x.odd, s_odd, hn::Mul(y.odd, c_odd))};
    const auto sum = hn::Add(hn::Add(low_turned.even, low_turned.odd), hn::Add(high_turned.even, high_turned.odd));
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::IsNaN(sum)))) {  // perhaps a NaN: lane by lane, in their own order
      for (std::int64_t j = 0; j < 2 * n; ++j) {
        const hn::CappedTag<float, 1> one;
        const std::int64_t at = i + j % 2 * n + j / 2;
        const auto u = Type::load(one, low + i + j), w = Type::load(one, high + i + j);
        const auto c = hn::LoadU(one, angles.cos + at), s = hn::LoadU(one, angles.sin + at);
        Type::store(one, hn::NegMulAdd(w, s, hn::Mul(u, c)), low_to + i + j);
        Type::store(one, hn::MulAdd(u, s, hn::Mul(w, c)), high_to + i + j);
      }
      continue;
    }
    Type::store_two(d, low_turned, low_to + i);
    Type::store_two(d, high_turned, high_to + i);
  }
  return i;
}

// Lanes `low` and `high` of `count` pairs turn by their angles.
template <class Type>
HWY_INLINE void rotate(const typename Type::Lane* low, const typename Type::Lane* high, const CosSin& angles,
                       std::int64_t count, typename Type::Lane* low_to, typename Type::Lane* high_to) {
  std::int64_t begin = 0;
  if constexpr (Type::kEvenOdd) begin = rotate_even_odd<Type>(low, high, angles, count, low_to, high_to);
  for_lanes<kMaxFloats>(begin, count, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto x = Type::load(d, low + i), y = Type::load(d, high + i);
    const auto c = hn::Load(d, angles.cos + i), s = hn::Load(d, angles.sin + i);
    Type::store(d, hn::NegMulAdd(y, s, hn::Mul(x, c)), low_to + i);
    Type::store(d, hn::MulAdd(x, s, hn::Mul(y, c)), high_to + i);
  });
}

// memcpy, or the same with stores that go past the caches and need no read of the line they write.
HWY_INLINE void copy(std::byte* to, const std::byte* from, std::int64_t bytes, bool stream) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  if (!stream || bytes < 4 * step) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const auto head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & static_cast<std::uintptr_t>(step - 1));
  std::memcpy(to, from, static_cast<std::size_t>(head));
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  std::int64_t i = head;
  for (; i + step <= bytes; i += step) hn::Stream(hn::LoadU(d, source + i), d, target + i);
  std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

// A run of `num_heads` heads of `bytes` each from one row to another.
HWY_INLINE void copy_heads(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                           std::int64_t num_heads, std::int64_t bytes, bool stream) {
  if (to_stride == bytes && from_stride == bytes) {
    copy(to, from, num_heads * bytes, stream);
    return;
  }
  for (std::int64_t h = 0; h < num_heads; ++h) copy(to + h * to_stride, from + h * from_stride, bytes, stream);
}

// Pairs `first` to `first + count` of every head of a row turn by their angles.
template <class Type>
HWY_INLINE void rotate_heads(const std::byte* row, std::int64_t head_stride, std::byte* out, std::int64_t out_head_stride,
                             std::int64_t num_heads, std::int64_t half, std::int64_t first, std::int64_t count,
                             const CosSin& angles) {
  using Lane = typename Type::Lane;
  for (std::int64_t h = 0; h < num_heads; ++h) {
    const auto* from = reinterpret_cast<const Lane*>(row + h * head_stride) + first;
    auto* to = reinterpret_cast<Lane*>(out + h * out_head_stride) + first;
    rotate<Type>(from, from + half, angles, count, to, to + half);
  }
}

template <class Type>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = call.head_dim / 2;
  const std::int64_t head_bytes = call.head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const Tensor positions{const_cast<void*>(call.positions), call.positions_dtype, {}, {}, {}, true, false};
  CosSin angles;
  for (std::int64_t t = begin; t < end; ++t) {
    std::int64_t position = 0;
    visit_index_array(positions, [&](const auto* values) { position = load_once(values + t); });
    for (std::int64_t first = 0; first < half; first += kMaxPairs) {
      const std::int64_t count = std::min(kMaxPairs, half - first);
      angles_of<Type>(call, position, first, count, angles);
      rotate_heads<Type>(call.q.row(t), call.q.head_stride, call.q_out.row(t), call.q_out.head_stride, call.num_qo_heads, half,
                         first, count, angles);
      rotate_heads<Type>(call.k.row(t), call.k.head_stride, call.k_out.row(t), call.k_out.head_stride, call.num_kv_heads, half,
                         first, count, angles);
    }
    if (const std::int64_t row = call.pool_rows[t]; row >= 0) {
      copy_heads(call.k_pool.row(row), call.k_pool.head_stride, call.k_out.row(t), call.k_out.head_stride, call.num_kv_heads,
                 head_bytes, call.stream_pool);
      copy_heads(call.v_pool.row(row), call.v_pool.head_stride, call.v.row(t), call.v.head_stride, call.num_kv_heads,
                 head_bytes, call.stream_pool);
    }
  }
  if (call.stream_pool) hwy::FlushStream();  // before another thread is told that this range is done
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
  return HWY_DISPATCH_TABLE(rope_pool_fused)[chosen.GetIndex()];
}
}  // namespace ropepool
#endif
