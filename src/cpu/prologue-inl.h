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

// Of heads of a token: that of head h stands at h % kHeads.
struct Statistics {
  static constexpr std::int64_t kHeads = 64;
  alignas(64) float mean[kHeads] = {};
  alignas(64) float factor[kHeads];  // a lane becomes (lane - mean) * factor

  Statistics() { std::fill_n(factor, kHeads, 1.0f); }
};

// Where lanes come from: with bias and norm, not rounded, but for weights and scale, which angles have. Pointers are copies,
// since the compiler must take every store of lanes for one into the prologue. kOnlyFactor: there is neither bias nor mean, nor
// have heads weights of their own; in the caches a scale takes 0.86 and a norm 0.93 times as long without asking.
template <class Type, bool kOnlyFactor>
struct Prepared {
  static constexpr bool kWeighted = true;
  Heads<Type> heads;
  std::int64_t head_dim;
  const float* factor;
  const float* bias;    // of head 0, or null
  const float* mean;    // or null where nothing is subtracted
  const float* weight;  // of head 0, where each has its own, or null
  const float* shared_weight;
  float scale;

  Prepared(const HeadPrologue& prologue, Heads<Type> of, const Statistics& statistics, std::int64_t lanes)
      : heads(of),
        head_dim(lanes),
        factor(statistics.factor),
        bias(prologue.bias),
        mean(prologue.norm == HeadPrologue::Norm::layer ? statistics.mean : nullptr),
        weight(prologue.weight_stride == 0 ? nullptr : prologue.weight),
        shared_weight(prologue.weight_stride == 0 ? prologue.weight : nullptr),
        scale(prologue.scale) {}

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t h, std::int64_t at) const {
    auto x = Type::load(d, heads[h] + at);
    const auto by = hn::Set(d, factor[h % Statistics::kHeads]);
    if constexpr (kOnlyFactor) return hn::Mul(x, by);
    if (bias != nullptr) x = hn::Add(x, hn::LoadU(d, bias + h * head_dim + at));
    if (mean != nullptr) x = hn::Sub(x, hn::Set(d, mean[h % Statistics::kHeads]));
    x = hn::Mul(x, by);
    if (weight != nullptr) x = hn::Mul(x, hn::LoadU(d, weight + h * head_dim + at));
    return x;
  }
  template <class D>
  HWY_INLINE auto load_two(D d, std::int64_t h, std::int64_t at) const {
    Two<D> x = Type::load_two(d, heads[h] + at);
    const auto by = hn::Set(d, factor[h % Statistics::kHeads]);
    if constexpr (kOnlyFactor) return Two<D>{hn::Mul(x.first, by), hn::Mul(x.second, by)};
    if (bias != nullptr) {
      const Two<D> plus = load_two_floats<Type>(d, bias + h * head_dim + at);
      x = {hn::Add(x.first, plus.first), hn::Add(x.second, plus.second)};
    }
    if (mean != nullptr) {
      const auto less = hn::Set(d, mean[h % Statistics::kHeads]);
      x = {hn::Sub(x.first, less), hn::Sub(x.second, less)};
    }
    x = {hn::Mul(x.first, by), hn::Mul(x.second, by)};
    if (weight != nullptr) {
      const Two<D> own = load_two_floats<Type>(d, weight + h * head_dim + at);
      x = {hn::Mul(x.first, own.first), hn::Mul(x.second, own.second)};
    }
    return x;
  }
  template <class To>
  HWY_INLINE void pass(To to, std::int64_t h, std::int64_t begin, std::int64_t end) const {
    pass_lanes(*this, to, h, begin, end);
  }

 private:
  // Lanes that do not turn have no angles that could have their weights. `from` is a copy, so that the caller's stays in
  // registers.
  template <class To>
  static HWY_NOINLINE void pass_lanes(Prepared from, To to, std::int64_t h, std::int64_t begin, std::int64_t end) {
    for_lanes<kMaxFloats>(begin, end, [&](auto d, std::int64_t at) HWY_ATTR {
      auto x = from.load(d, h, at);
      if (from.shared_weight != nullptr) x = hn::Mul(x, hn::LoadU(d, from.shared_weight + at));
      to.store(Type::lanes(d), Type::round(d, hn::Mul(x, hn::Set(d, from.scale))), at);
    });
  }
};

template <class Type, class D>
HWY_INLINE hn::Vec<D> biased(D d, const typename Type::Lane* head, const float* bias, std::int64_t at) {
  const auto x = Type::load(d, head + at);
  return bias == nullptr ? x : hn::Add(x, hn::LoadU(d, bias + at));
}

// Lanes of a head with their bias.
template <class Type, class To, class D = hn::ScalableTag<float>>
HWY_INLINE void store_biased(To to, const typename Type::Lane* head, const float* bias, std::int64_t count) {
  std::int64_t done = 0;
  if constexpr (Type::kInTwos) {
    const D d;
    const auto n = static_cast<std::int64_t>(hn::Lanes(d));
    for (; done + 2 * n <= count; done += 2 * n) {
      const Two<D> x = Type::load_two(d, head + done), by = load_two_floats<Type>(d, bias + done);
      to.store(Type::lanes_of_two(d), Type::round_two(d, Two<D>{hn::Add(x.first, by.first), hn::Add(x.second, by.second)}),
               done);
    }
  }
  for_lanes<kMaxFloats>(done, count, [&](auto d, std::int64_t at) HWY_ATTR {
    to.store(Type::lanes(d), Type::round(d, biased<Type>(d, head, bias, at)), at);
  });
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
      const auto add = [&](Two<D> x) HWY_ATTR {
        even = term(d, x.first, even);
        odd = term(d, x.second, odd);
      };
      if (bias == nullptr) {
        for (std::int64_t i = 2 * at; i < whole; i += Sums::kCount) add(Type::load_two(d, head + i));
      } else {
        for (std::int64_t i = 2 * at; i < whole; i += Sums::kCount) {
          const Two<D> x = Type::load_two(d, head + i), by = load_two_floats<Type>(d, bias + i);
          add({hn::Add(x.first, by.first), hn::Add(x.second, by.second)});
        }
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
HWY_INLINE float total_of(const Sums& sums) {
  constexpr std::int64_t kHalf = Sums::kCount / 2;
  alignas(64) float of[kHalf];
  if constexpr (kSumsApart<Type>) {
    const hn::CappedTag<float, kHalf> d;
    for (std::int64_t i = 0; i < kHalf; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::Store(hn::Add(hn::Load(d, sums.of + i), hn::Load(d, sums.of + kHalf + i)), d, of + i);
    }
  } else {
    for (std::int64_t i = 0; i < kHalf; ++i) of[i] = sums.of[2 * i] + sums.of[2 * i + 1];
  }
  const auto halve = [&](auto half) HWY_ATTR {
    constexpr std::int64_t kCount = decltype(half)::value;
    const hn::CappedTag<float, kCount> d;
    for (std::int64_t i = 0; i < kCount; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::Add(hn::LoadU(d, of + i), hn::LoadU(d, of + kCount + i)), d, of + i);
    }
  };
  halve(std::integral_constant<int, 8>());
  halve(std::integral_constant<int, 4>());
  return (of[0] + of[2]) + (of[1] + of[3]);
}

// Heads that are measured at once.
constexpr std::int64_t kMeasured = 8;

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

// Mean and factor of each of heads `begin` to `end`, at most kMeasured, or of any number together, which go to `to` and what
// follows.
// Not inlined: a copy in every form of its callers had the kernel compile for minutes.
template <class Type>
HWY_NOINLINE void measure(const HeadPrologue& prologue, const GroupedHeads<Type>& heads, std::int64_t begin, std::int64_t end,
                          std::int64_t head_dim, bool together, Statistics& statistics, std::int64_t to) {
  const auto lanes = static_cast<float>(together ? (end - begin) * head_dim : head_dim);
  const float* biases = prologue.bias;
  const auto each = [&](auto term_of, float* totals) HWY_ATTR {
    Sums sums{};
    for (std::int64_t h = begin; h < end; ++h) {
      add_up<Type>(heads[h], biases == nullptr ? nullptr : biases + h * head_dim, head_dim, term_of(h - begin), sums);
      if (together) continue;
      totals[h - begin] = total_of<Type>(sums);
      sums = Sums{};
    }
    if (together) totals[0] = total_of<Type>(sums);
  };
  float* mean = statistics.mean + to;
  float* factor = statistics.factor + to;
  const hn::CappedTag<float, kMeasured> d;
  const auto of_heads = [&](float* values, auto f) HWY_ATTR {
    for (std::int64_t n = 0; n < kMeasured; n += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::StoreU(f(hn::LoadU(d, values + n)), d, values + n);
    }
  };
  if (prologue.norm == HeadPrologue::Norm::layer) {
    each([](std::int64_t) HWY_ATTR { return [](auto, auto x, auto sum) HWY_ATTR { return hn::Add(sum, x); }; }, mean);
    of_heads(mean, [&](auto sum) HWY_ATTR { return hn::Div(sum, hn::Set(d, lanes)); });
    each(
        [&](std::int64_t n) HWY_ATTR {
          return [m = mean[together ? 0 : n]](auto d_of_lanes, auto x, auto sum) HWY_ATTR {
            const auto centred = hn::Sub(x, hn::Set(d_of_lanes, m));
            return hn::MulAdd(centred, centred, sum);
          };
        },
        factor);
  } else {
    each([](std::int64_t) HWY_ATTR { return [](auto, auto x, auto sum) HWY_ATTR { return hn::MulAdd(x, x, sum); }; }, factor);
  }
  const float eps = prologue.eps;
  of_heads(factor, [&](auto squares) HWY_ATTR {
    const auto mean_square = hn::Div(squares, hn::Set(d, lanes));
    return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Add(mean_square, hn::Set(d, eps))));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
