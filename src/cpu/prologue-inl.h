// Bias, norm and scale of heads on their way to the rotation.
// Included by kernels, which Highway compiles once for each SIMD target.
#if defined(ROPEPOOL_CPU_PROLOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEPOOL_CPU_PROLOGUE_INL_H_
#undef ROPEPOOL_CPU_PROLOGUE_INL_H_
#else
#define ROPEPOOL_CPU_PROLOGUE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/rope_pool_fused_call.h"
#include "cpu/heads-inl.h"
#include "cpu/lanes-inl.h"
#include "cpu/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// float32 lanes in the order in which Type::load_two takes lanes of data.
template <class Type, class D>
HWY_INLINE auto load_two_floats(D d, const float* from) {
  const auto low = hn::LoadU(d, from), high = hn::LoadU(d, from + hn::Lanes(d));
#if HWY_TARGET != HWY_SCALAR
  if constexpr (Type::kEvenOdd) return Two<D>{hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)};
#endif
  return Two<D>{low, high};
}

// What lanes x and y of each pair of a head are multiplied by: weight and scale, in the order of angles that are arranged for
// halves, or of pairs.
struct PairWeights {
  alignas(64) float x[kMaxPairs];
  alignas(64) float y[kMaxPairs];
  bool any;  // else all are 1
};

// Of the pairs of `part`. Where each head has weights of its own, these are not among them.
template <class Type, Pairing kPairing>
HWY_INLINE void pair_weights(const HeadPrologue& prologue, const Part& part, PairWeights& weights) {
  const bool shared = prologue.weight != nullptr && prologue.weight_stride == 0;
  const float scale = prologue.scale;
  weights.any = shared || scale != 1.0f;
  for (std::int64_t i = 0; i < part.count; ++i) {
    const std::int64_t pair = part.first + i;
    const std::int64_t x = part.offset + (kPairing == Pairing::neox ? pair : 2 * pair);
    const std::int64_t y = x + (kPairing == Pairing::neox ? part.half : 1);
    weights.x[i] = shared ? scale * prologue.weight[x] : scale;
    weights.y[i] = shared ? scale * prologue.weight[y] : scale;
  }
  if (kPairing == Pairing::neox && Type::kEvenOdd) {
    separate_even_odd(weights.x, part.count);
    separate_even_odd(weights.y, part.count);
  }
}

// cos and sin of a token with weights: a multiplication for each pair instead of one for each lane of every head. `angles` are
// in the order of weights.
struct WeightedAngles {
  CosSin of_x, of_y;
};
template <class Type, Pairing kPairing>
HWY_INLINE void weigh(const CosSin& angles, const PairWeights& weights, std::int64_t count, WeightedAngles& result) {
  for_lanes<kMaxFloats>(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto c = hn::Load(d, angles.cos + i), s = hn::Load(d, angles.sin + i);
    const auto x = hn::Load(d, weights.x + i), y = hn::Load(d, weights.y + i);
    hn::Store(hn::Mul(c, x), d, result.of_x.cos + i);
    hn::Store(hn::Mul(s, x), d, result.of_x.sin + i);
    hn::Store(hn::Mul(c, y), d, result.of_y.cos + i);
    hn::Store(hn::Mul(s, y), d, result.of_y.sin + i);
  });
  if (kPairing == Pairing::interleaved) arrange<Type, Pairing::interleaved>(count, result.of_x, result.of_y);
}

// Heads whose statistics are held at once.
constexpr std::int64_t kHeadsAtOnce = 16;

struct Statistics {
  alignas(64) float mean[kHeadsAtOnce];
  alignas(64) float factor[kHeadsAtOnce];  // a lane becomes (lane - mean) * factor
};

// Where lanes come from: with bias and norm, not rounded, but for weights and scale, which angles have. Pointers are copies,
// since the compiler must take every store of lanes for one into the prologue.
template <class Type>
struct Prepared {
  static constexpr bool kWeighted = true;
  Heads<Type> heads;
  std::int64_t first, head_dim;
  const float* bias;    // of head 0, or null
  const float* mean;    // of head `first`, or null where nothing is subtracted
  const float* factor;  // of head `first`, or null without a norm
  const float* weight;  // of head 0, where each has its own, or null
  const float* shared_weight;
  float scale;

  Prepared(const HeadPrologue& prologue, Heads<Type> of, const Statistics& statistics, std::int64_t first_head,
           std::int64_t lanes)
      : heads(of),
        first(first_head),
        head_dim(lanes),
        bias(prologue.bias),
        mean(prologue.norm == HeadPrologue::Norm::layer ? statistics.mean : nullptr),
        factor(prologue.norm == HeadPrologue::Norm::none ? nullptr : statistics.factor),
        weight(prologue.weight_stride == 0 ? nullptr : prologue.weight),
        shared_weight(prologue.weight_stride == 0 ? prologue.weight : nullptr),
        scale(prologue.scale) {}

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t h, std::int64_t at) const {
    auto x = Type::load(d, heads[h] + at);
    if (bias != nullptr) x = hn::Add(x, hn::LoadU(d, bias + h * head_dim + at));
    if (factor == nullptr) return x;
    if (mean != nullptr) x = hn::Sub(x, hn::Set(d, mean[h - first]));
    x = hn::Mul(x, hn::Set(d, factor[h - first]));
    if (weight != nullptr) x = hn::Mul(x, hn::LoadU(d, weight + h * head_dim + at));
    return x;
  }
  template <class D>
  HWY_INLINE auto load_two(D d, std::int64_t h, std::int64_t at) const {
    Two<D> x = Type::load_two(d, heads[h] + at);
    if (bias != nullptr) {
      const Two<D> by = load_two_floats<Type>(d, bias + h * head_dim + at);
      x = {hn::Add(x.first, by.first), hn::Add(x.second, by.second)};
    }
    if (factor == nullptr) return x;
    if (mean != nullptr) {
      const auto by = hn::Set(d, mean[h - first]);
      x = {hn::Sub(x.first, by), hn::Sub(x.second, by)};
    }
    const auto by = hn::Set(d, factor[h - first]);
    x = {hn::Mul(x.first, by), hn::Mul(x.second, by)};
    if (weight != nullptr) {
      const Two<D> own = load_two_floats<Type>(d, weight + h * head_dim + at);
      x = {hn::Mul(x.first, own.first), hn::Mul(x.second, own.second)};
    }
    return x;
  }
  // Lanes that do not turn have no angles that could have their weights.
  template <class To>
  HWY_INLINE void pass(To to, std::int64_t h, std::int64_t begin, std::int64_t end) const {
    for_lanes<kMaxFloats>(begin, end, [&](auto d, std::int64_t at) HWY_ATTR {
      auto x = load(d, h, at);
      if (shared_weight != nullptr) x = hn::Mul(x, hn::LoadU(d, shared_weight + at));
      to.store(Type::lanes(d), Type::round(d, hn::Mul(x, hn::Set(d, scale))), at);
    });
  }
};

template <class Type, class D>
HWY_INLINE hn::Vec<D> biased(D d, const typename Type::Lane* head, const float* bias, std::int64_t at) {
  const auto x = Type::load(d, head + at);
  return bias == nullptr ? x : hn::Add(x, hn::LoadU(d, bias + at));
}

// ---- Sums over heads, which all targets add in one order, see docs/decisions/0008: those of lanes with the same lane % 32
// first.

struct Sums {
  static constexpr std::int64_t kCount = 32;
  alignas(64) float of[kCount];
};

// Where Type::load_two takes even and odd lanes apart, sums of even lanes stand first, then those of odd ones.
template <class Type>
constexpr bool kSumsApart = Type::kEvenOdd;

// Adds term(d, lane, sum) for each lane of a head. `term` takes what load or load_two gives of it.
template <class Type, class Term, class D = hn::ScalableTag<float>>
HWY_INLINE void add_up(const typename Type::Lane* head, const float* bias, std::int64_t count, Term term, Sums& sums) {
  const std::int64_t whole = count / Sums::kCount * Sums::kCount;
  if constexpr (kSumsApart<Type>) {
    const D d;
    const auto n = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t at = 0; at < Sums::kCount / 2; at += n) {
      auto even = hn::Load(d, sums.of + at), odd = hn::Load(d, sums.of + Sums::kCount / 2 + at);
      for (std::int64_t i = 2 * at; i < whole; i += Sums::kCount) {
        Two<D> x = Type::load_two(d, head + i);
        if (bias != nullptr) {
          const Two<D> by = load_two_floats<Type>(d, bias + i);
          x = {hn::Add(x.first, by.first), hn::Add(x.second, by.second)};
        }
        even = term(d, x.first, even);
        odd = term(d, x.second, odd);
      }
      hn::Store(even, d, sums.of + at);
      hn::Store(odd, d, sums.of + Sums::kCount / 2 + at);
    }
  } else {
    const hn::CappedTag<float, 16> d;
    const auto n = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t at = 0; at < Sums::kCount; at += n) {
      auto sum = hn::Load(d, sums.of + at);
      for (std::int64_t i = at; i < whole; i += Sums::kCount) sum = term(d, biased<Type>(d, head, bias, i), sum);
      hn::Store(sum, d, sums.of + at);
    }
  }
  const hn::CappedTag<float, 1> d;
  for (std::int64_t i = whole; i < count; ++i) {
    const std::int64_t lane = i - whole;
    float* sum = sums.of + (kSumsApart<Type> ? lane % 2 * (Sums::kCount / 2) + lane / 2 : lane);
    hn::StoreU(term(d, biased<Type>(d, head, bias, i), hn::LoadU(d, sum)), d, sum);
  }
}

// Neighbours first, then halves.
template <class Type>
HWY_INLINE float total_of(Sums& sums) {
  constexpr std::int64_t kHalf = Sums::kCount / 2;
  if (kSumsApart<Type>) {
    for_lanes<16>(0, kHalf, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::Store(hn::Add(hn::Load(d, sums.of + i), hn::Load(d, sums.of + kHalf + i)), d, sums.of + i);
    });
  } else {
    for (std::int64_t i = 0; i < kHalf; ++i) sums.of[i] = sums.of[2 * i] + sums.of[2 * i + 1];
  }
  const auto halve = [&](auto half) HWY_ATTR {
    constexpr std::int64_t kCount = decltype(half)::value;
    for_lanes<kCount>(0, kCount, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, sums.of + i), hn::LoadU(d, sums.of + kCount + i)), d, sums.of + i);
    });
  };
  halve(std::integral_constant<int, 8>());
  halve(std::integral_constant<int, 4>());
  return (sums.of[0] + sums.of[2]) + (sums.of[1] + sums.of[3]);
}

// Heads of which `gap` bytes more follow after each `group`.
template <class Type>
struct GroupedHeads {
  Heads<Type> heads;
  std::int64_t group, gap;
  const typename Type::Lane* operator[](std::int64_t h) const {
    Heads<Type> of_group = heads;
    of_group.row += gap == 0 ? 0 : h / group * gap;
    return of_group[h];
  }
};

// Mean and factor of heads `begin` to `end` each, or of all together. Not inlined: a copy in every form of its callers had the
// kernel compile for minutes.
template <class Type>
HWY_NOINLINE void measure(const HeadPrologue& prologue, const GroupedHeads<Type>& heads, std::int64_t begin, std::int64_t end,
                          std::int64_t head_dim, bool together, Statistics& statistics) {
  const std::int64_t count = together ? 1 : end - begin;
  const auto lanes = static_cast<float>(together ? (end - begin) * head_dim : head_dim);
  const auto each = [&](auto term, float* totals) HWY_ATTR {
    for (std::int64_t n = 0; n < count; ++n) {
      Sums sums{};
      for (std::int64_t h = together ? begin : begin + n; h < (together ? end : begin + n + 1); ++h) {
        const float* bias = prologue.bias == nullptr ? nullptr : prologue.bias + h * head_dim;
        add_up<Type>(
            heads[h], bias, head_dim, [&](auto d, auto x, auto sum) HWY_ATTR { return term(d, n, x, sum); }, sums);
      }
      totals[n] = total_of<Type>(sums);
    }
  };
  float squares[kHeadsAtOnce];
  if (prologue.norm == HeadPrologue::Norm::layer) {
    each([](auto, std::int64_t, auto x, auto sum) HWY_ATTR { return hn::Add(sum, x); }, statistics.mean);
    for (std::int64_t n = 0; n < count; ++n) statistics.mean[n] /= lanes;
    each(
        [&](auto d, std::int64_t n, auto x, auto sum) HWY_ATTR {
          const auto centred = hn::Sub(x, hn::Set(d, statistics.mean[n]));
          return hn::MulAdd(centred, centred, sum);
        },
        squares);
  } else {
    each([](auto, std::int64_t, auto x, auto sum) HWY_ATTR { return hn::MulAdd(x, x, sum); }, squares);
  }
  for_lanes<kMaxFloats>(0, count, [&](auto d, std::int64_t n) HWY_ATTR {
    const auto mean_square = hn::Div(hn::LoadU(d, squares + n), hn::Set(d, lanes));
    const auto shifted = hn::Add(mean_square, hn::Set(d, prologue.eps));
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), hn::Sqrt(shifted)), d, statistics.factor + n);
  });
}

// Heads `begin` to `end`, a few at once: turn_some(from, begin, end) gets them prepared.
template <class Type, class TurnSome>
HWY_INLINE void prepare(const HeadPrologue& prologue, const Statistics* of_all, Heads<Type> heads, std::int64_t head_dim,
                        std::int64_t begin, std::int64_t end, TurnSome turn_some) {
  Statistics own;
  for (std::int64_t first = begin; first < end; first += kHeadsAtOnce) {
    const std::int64_t last = std::min(end, first + kHeadsAtOnce);
    if (of_all == nullptr && prologue.norm != HeadPrologue::Norm::none) {
      measure<Type>(prologue, {heads, 1, 0}, first, last, head_dim, false, own);
    }
    turn_some(Prepared<Type>(prologue, heads, of_all != nullptr ? *of_all : own, first, head_dim), first, last);
  }
}

// Of a norm over all heads of a token: what each of them has. After each `group` of heads `gap` bytes follow.
template <class Type>
HWY_INLINE const Statistics* measure_all(const HeadPrologue& prologue, Heads<Type> heads, std::int64_t num_heads,
                                         std::int64_t group, std::int64_t gap, std::int64_t head_dim, Statistics& statistics) {
  if (!prologue.over_all_heads) return nullptr;
  measure<Type>(prologue, {heads, group, gap}, 0, num_heads, head_dim, true, statistics);
  std::fill_n(statistics.mean, kHeadsAtOnce, statistics.mean[0]);
  std::fill_n(statistics.factor, kHeadsAtOnce, statistics.factor[0]);
  return &statistics;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
