// The kernel of rope_pool_fused for the CPU where heads have a bias, a norm or a scale before they turn. Apart from
// rope_pool_fused.cpp so that the two compile side by side.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope_pool_fused_prologue.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"
#include "cpu/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/prologue-inl.h"
#include "cpu/rope_pool_fused-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

// Compiled once for keys and queries. Prepared is made here: handed over, it would be read by one wide load right after its
// members were stored one by one, for which the CPU waits until they are in the cache.
template <class Type, Pairing kPairing, bool kOnlyFactor, class ToHead>
HWY_NOINLINE void turn_prepared(const Part& part, const CosSin& of_x, const CosSin& of_y, const HeadPrologue& prologue,
                                const Statistics& statistics, std::int64_t head_dim, Heads<Type> heads, std::int64_t begin,
                                std::int64_t end, ToHead to) {
  const Prepared<Type, kOnlyFactor> from(prologue, heads, statistics, head_dim);
  turn<Type, kPairing>(part, of_x, of_y, from, begin, end, to);
}

// In the order of weights.
template <class Type, Pairing kPairing>
void angles_to_weigh(const RopePoolFusedCall& call, std::int64_t t, const Part& part, CosSin& angles) {
  angles_at(call, t, part.first, part.count, angles);
  if (kPairing == Pairing::neox) arrange<Type, Pairing::neox>(part.count, angles, angles);
}

// The way of a token's q or k to the rotation.
template <class Type, Pairing kPairing>
class Preparing {
 public:
  Preparing(const RopePoolFusedCall& call, const HeadPrologue& prologue, std::int64_t num_heads)
      : call_(call),
        prologue_(prologue),
        num_heads_(num_heads),
        part_(part_of(*call.rope, call.head_dim, 0)),
        only_factor_(prologue.bias == nullptr && prologue.norm != HeadPrologue::Norm::layer && prologue.weight_stride == 0) {
    if (part_.alone()) pair_weights<Type, kPairing>(prologue_, part_, weights_);
  }

  // Heads for which there are statistics beside those that are measured before them. Where each call computes angles, more.
  std::int64_t at_once() const { return part_.alone() ? kMeasured : Statistics::kHeads - 2 * kMeasured; }

  // `angles` are those of all pairs, where part_.alone().
  void of_token(std::int64_t t, const GroupedHeads<Type>& heads, const CosSin& angles) {
    token_ = t;
    heads_ = heads;
    measured_ = 0;
    if (prologue_.over_all_heads) {
      measure<Type>(prologue_, heads_, 0, num_heads_, call_.head_dim, true, statistics_, 0);
      std::fill_n(statistics_.mean, Statistics::kHeads, statistics_.mean[0]);
      std::fill_n(statistics_.factor, Statistics::kHeads, statistics_.factor[0]);
    }
    if (prologue_.norm == HeadPrologue::Norm::none || prologue_.over_all_heads) measured_ = num_heads_;
    of_x_ = of_y_ = &angles;
    if (part_.alone() && (weights_.any || kPairing == Pairing::interleaved)) weigh_angles(angles, part_.count);
  }

  // Turns heads `begin` to `end`, whose lanes are `heads`. What comes next is measured before, since the sums, the root and the
  // division of a norm are a long wait, in which the CPU turns these.
  template <class ToHead>
  void turn_heads(Heads<Type> heads, std::int64_t begin, std::int64_t end, ToHead to) {
    while (begin < end) {
      const std::int64_t until = measured_ == num_heads_ ? end : std::min(end, begin + at_once());
      while (measured_ < std::min(until + kMeasured, num_heads_)) {
        const std::int64_t last = std::min(measured_ + kMeasured, num_heads_);
        measure<Type>(prologue_, heads_, measured_, last, call_.head_dim, false, statistics_, measured_ % Statistics::kHeads);
        measured_ = last;
      }
      if (only_factor_) {
        turn_parts<true>(heads, begin, until, to);
      } else {
        turn_parts<false>(heads, begin, until, to);
      }
      begin = until;
    }
  }

 private:
  void weigh_angles(const CosSin& angles, std::int64_t count) {
    weigh<Type, kPairing>(angles, weights_, count, weighted_);
    of_x_ = &weighted_.of_x;
    of_y_ = &weighted_.of_y;
  }

  template <bool kOnlyFactor, class ToHead>
  void turn_parts(Heads<Type> heads, std::int64_t begin, std::int64_t end, ToHead to) {
    for_parts(*call_.rope, call_.head_dim, [&](const Part& part) HWY_ATTR {
      if (!part.alone()) {  // the angles of one part at a time, computed for each group of heads
        CosSin angles;
        pair_weights<Type, kPairing>(prologue_, part, weights_);
        angles_to_weigh<Type, kPairing>(call_, token_, part, angles);
        weigh_angles(angles, part.count);
      }
      turn_prepared<Type, kPairing, kOnlyFactor>(part, *of_x_, *of_y_, prologue_, statistics_, call_.head_dim, heads, begin,
                                                 end, to);
    });
  }

  const RopePoolFusedCall& call_;
  const HeadPrologue& prologue_;
  const std::int64_t num_heads_;
  const Part part_;
  const bool only_factor_;
  PairWeights weights_;
  Statistics statistics_;
  std::int64_t token_, measured_;
  GroupedHeads<Type> heads_{{{}, 0}, 0, 0};
  WeightedAngles weighted_;
  const CosSin *of_x_, *of_y_;
};

template <class Type, Pairing kPairing, bool kStreamQOut>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  const Prologue& prologue = *call.prologue;
  Preparing<Type, kPairing> queries(call, prologue.q, call.num_qo_heads), keys(call, prologue.k, call.num_kv_heads);
  CosSin angles;
  const Part part = part_of(*call.rope, call.head_dim, 0);
  const std::int64_t v_head_bytes = call.v_head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const bool v_in_lines = call.v_pool.aligned(kLine) && v_head_bytes % kLine == 0;
  // Through the caches stores may come in bursts, and a call for each key/value head's few would cost more; so it does where
  // each computes angles.
  const bool spread = (kStreamQOut && part.alone()) || call.q_group_gap != 0 || call.q_out_group_gap != 0;
  const std::int64_t kv_step = spread ? 1 : call.num_kv_heads;
  for (std::int64_t t = begin; t < end; ++t) {
    if (part.alone()) angles_to_weigh<Type, kPairing>(call, t, part, angles);
    queries.of_token(t, {{call.q, t}, call.num_qo_heads / call.num_kv_heads, call.q_group_gap}, angles);
    keys.of_token(t, {{call.k, t}, 1, 0}, angles);
    const auto turn_with = [](Preparing<Type, kPairing>& way) HWY_ATTR {
      return [&way](Heads<Type> heads, std::int64_t first, std::int64_t last, auto to)
                 HWY_ATTR { way.turn_heads(heads, first, last, to); };
    };
    run_token<Type, kStreamQOut>(call, t, kv_step, turn_with(keys), turn_with(queries),
                                 [&](Heads<Type> to, Heads<Type> v, std::int64_t h, auto past_caches) HWY_ATTR {
                                   if (prologue.v_bias == nullptr) {
                                     return copy_head<decltype(past_caches)::value>(to, v, h, call.num_kv_heads, v_head_bytes);
                                   }
                                   using Lane = typename Type::Lane;
                                   const float* bias = prologue.v_bias + h * call.v_head_dim;
                                   if (decltype(past_caches)::value && v_in_lines) {
                                     store_biased<Type>(To<Lane, true>{to[h]}, v[h], bias, call.v_head_dim);
                                   } else {
                                     store_biased<Type>(To<Lane, false>{to[h]}, v[h], bias, call.v_head_dim);
                                   }
                                 });
  }
  if (kStreamQOut || call.stream_pool) hwy::FlushStream();  // before another thread is told that this range is done
}

void rope_pool_fused_prologue(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  with_types(call, [&](auto type, auto pairing, auto stream_q_out) HWY_ATTR {
    run<decltype(type), decltype(pairing)::value, decltype(stream_q_out)::value>(call, begin, end);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropepool {
namespace {
HWY_EXPORT(rope_pool_fused_prologue);
}  // namespace

cpu::Kernel<RopePoolFusedCall> cpu::rope_pool_fused_prologue_kernel(std::int64_t target) {
  return HWY_DISPATCH_TABLE(rope_pool_fused_prologue)[cpu::dispatch_index(target)];
}
}  // namespace ropepool
#endif
