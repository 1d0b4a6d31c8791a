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
#include <cmath>
#include <cstdint>

#include "core/rope_pool_fused_call.h"
#include "cpu/heads-inl.h"
#include "cpu/lanes-inl.h"

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

// Heads whose statistics are held at once.
constexpr std::int64_t kHeadsAtOnce = 16;

struct Statistics {
  float mean[kHeadsAtOnce], factor[kHeadsAtOnce];  // a lane becomes (lane - mean) * factor * weight
};

// Where lanes come from: with bias, norm and scale, not rounded.
template <class Type>
struct Prepared {
  Heads<Type> heads;
  const HeadPrologue& prologue;
  const Statistics& statistics;  // of heads from `first` on
  std::int64_t first, head_dim;

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t h, std::int64_t at) const {
    auto x = Type::load(d, heads[h] + at);
    if (prologue.bias != nullptr) x = hn::Add(x, hn::LoadU(d, prologue.bias + h * head_dim + at));
    if (prologue.norm == HeadPrologue::Norm::layer) x = hn::Sub(x, hn::Set(d, statistics.mean[h - first]));
    x = hn::Mul(x, hn::Set(d, statistics.factor[h - first]));
    if (prologue.weight != nullptr) x = hn::Mul(x, hn::LoadU(d, prologue.weight + h * prologue.weight_stride + at));
    return x;
  }
  template <class D>
  HWY_INLINE auto load_two(D d, std::int64_t h, std::int64_t at) const {
    Two<D> x = Type::load_two(d, heads[h] + at);
    const auto each = [&](auto operation, Two<D> by) HWY_ATTR {
      x.first = operation(x.first, by.first);
      x.second = operation(x.second, by.second);
    };
    const auto multiply = [](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); };
    if (prologue.bias != nullptr) {
      each([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, load_two_floats<Type>(d, prologue.bias + h * head_dim + at));
    }
    if (prologue.norm == HeadPrologue::Norm::layer) {
      const auto mean = hn::Set(d, statistics.mean[h - first]);
      each([](auto a, auto b) HWY_ATTR { return hn::Sub(a, b); }, {mean, mean});
    }
    const auto factor = hn::Set(d, statistics.factor[h - first]);
    each(multiply, {factor, factor});
    if (prologue.weight != nullptr) {
      each(multiply, load_two_floats<Type>(d, prologue.weight + h * prologue.weight_stride + at));
    }
    return x;
  }
  template <class To>
  HWY_INLINE void pass(To to, std::int64_t h, std::int64_t begin, std::int64_t end) const {
    for_lanes<kMaxFloats>(
        begin, end, [&](auto d, std::int64_t at) HWY_ATTR { to.store(Type::lanes(d), Type::round(d, load(d, h, at)), at); });
  }
};

// Adds term(d, lane, sum) for all lanes, those with the same lane % 16 to the same sum, so that all targets add in one order,
// whatever the length of their vectors.
constexpr std::int64_t kSums = 16;
template <class Term>
HWY_INLINE void add_up(std::int64_t count, Term term, float* sums) {
  const hn::CappedTag<float, kSums> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = count / kSums * kSums;
  for (std::int64_t lane = 0; lane < kSums; lane += step) {
    auto sum = hn::LoadU(d, sums + lane);
    for (std::int64_t i = lane; i < whole; i += kSums) sum = term(d, i, sum);
    hn::StoreU(sum, d, sums + lane);
  }
  const hn::CappedTag<float, 1> one;
  for (std::int64_t i = whole; i < count; ++i) {
    hn::StoreU(term(one, i, hn::LoadU(one, sums + i - whole)), one, sums + i - whole);
  }
}

HWY_INLINE double total_of(const float* sums) {
  double total = 0;
  for (std::int64_t i = 0; i < kSums; ++i) total += double{sums[i]};
  return total;
}

template <class Type, class D>
HWY_INLINE hn::Vec<D> biased(D d, const typename Type::Lane* head, const float* bias, std::int64_t at) {
  const auto x = Type::load(d, head + at);
  return bias == nullptr ? x : hn::Add(x, hn::LoadU(d, bias + at));
}

// Mean and factor that `count` heads from `first` on share; `head_of(h)` is where head h is.
template <class Type, class HeadOf>
HWY_INLINE void measure(const HeadPrologue& prologue, HeadOf head_of, std::int64_t first, std::int64_t count,
                        std::int64_t head_dim, double& mean, double& factor) {
  using Norm = HeadPrologue::Norm;
  const auto sum_of = [&](auto term) HWY_ATTR {
    alignas(64) float sums[kSums] = {};
    for (std::int64_t h = first; h < first + count; ++h) {
      const typename Type::Lane* head = head_of(h);
      const float* bias = prologue.bias == nullptr ? nullptr : prologue.bias + h * head_dim;
      add_up(
          head_dim, [&](auto d, std::int64_t i, auto sum) HWY_ATTR { return term(d, biased<Type>(d, head, bias, i), sum); },
          sums);
    }
    return total_of(sums);
  };
  const auto lanes = static_cast<double>(count * head_dim);
  mean = 0;
  if (prologue.norm == Norm::layer) {
    mean = sum_of([](auto, auto x, auto sum) HWY_ATTR { return hn::Add(sum, x); }) / lanes;
  }
  const float shift = static_cast<float>(mean);
  const double squares = sum_of([shift](auto d, auto x, auto sum) HWY_ATTR {
    const auto centred = hn::Sub(x, hn::Set(d, shift));
    return hn::MulAdd(centred, centred, sum);
  });
  factor = prologue.scale / std::sqrt(squares / lanes + prologue.eps);
}

// Heads `begin` to `end`, a few at once: turn_some(from, begin, end) gets them prepared.
template <class Type, class TurnSome>
HWY_INLINE void prepare(const HeadPrologue& prologue, const Statistics* of_all, Heads<Type> heads, std::int64_t head_dim,
                        std::int64_t begin, std::int64_t end, TurnSome turn_some) {
  Statistics own;
  for (std::int64_t first = begin; first < end; first += kHeadsAtOnce) {
    const std::int64_t last = std::min(end, first + kHeadsAtOnce);
    for (std::int64_t h = first; of_all == nullptr && h < last; ++h) {
      double mean = 0, factor = prologue.scale;
      if (prologue.norm != HeadPrologue::Norm::none)
        measure<Type>(
            prologue, [&](std::int64_t) { return heads[h]; }, h, 1, head_dim, mean, factor);
      own.mean[h - first] = static_cast<float>(mean);
      own.factor[h - first] = static_cast<float>(factor);
    }
    turn_some(Prepared<Type>{heads, prologue, of_all != nullptr ? *of_all : own, first, head_dim}, first, last);
  }
}

// Of a norm over all heads of a token: what each of them has. After each `group` of heads `gap` bytes follow.
template <class Type>
HWY_INLINE const Statistics* measure_all(const HeadPrologue& prologue, Heads<Type> heads, std::int64_t num_heads,
                                         std::int64_t group, std::int64_t gap, std::int64_t head_dim, Statistics& statistics) {
  if (!prologue.over_all_heads) return nullptr;
  const auto head_of = [&](std::int64_t h) {
    Heads<Type> of_group = heads;
    of_group.row += gap == 0 ? 0 : h / group * gap;
    return of_group[h];
  };
  double mean = 0, factor = 0;
  measure<Type>(prologue, head_of, 0, num_heads, head_dim, mean, factor);
  std::fill_n(statistics.mean, kHeadsAtOnce, static_cast<float>(mean));
  std::fill_n(statistics.factor, kHeadsAtOnce, static_cast<float>(factor));
  return &statistics;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
