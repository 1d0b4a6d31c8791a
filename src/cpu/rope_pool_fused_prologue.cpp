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

// Compiled once for keys and queries.
template <class Type, Pairing kPairing, bool kStreamOutputs, class ToHead>
HWY_NOINLINE void turn_prepared(const Part& part, const CosSin& of_x, const CosSin& of_y, const Prepared<Type>& from,
                                std::int64_t begin, std::int64_t end, ToHead to) {
  turn<Type, kPairing, kStreamOutputs>(part, of_x, of_y, from, begin, end, to);
}

// A token's angles, for q's heads and for k's.
template <class Type, Pairing kPairing>
class TokenAngles {
 public:
  explicit TokenAngles(const RopePoolFusedCall& call) : call_(call) {
    const Part whole = part_of(*call.rope, call.head_dim, 0);
    if (!whole.alone()) return;
    pair_weights<Type, kPairing>(call.prologue->q, whole, q_.weights);
    pair_weights<Type, kPairing>(call.prologue->k, whole, k_.weights);
  }

  void of_token(std::int64_t t) {
    token_ = t;
    const Part whole = part_of(*call_.rope, call_.head_dim, 0);
    if (!whole.alone()) return;
    angles_at(call_, t, 0, whole.count, plain_);
    if (kPairing == Pairing::neox) arrange<Type, Pairing::neox>(whole.count, plain_, plain_);
    for (Weighing* each : {&q_, &k_}) {
      if (each->weights.any || kPairing == Pairing::interleaved) {
        weigh<Type, kPairing>(plain_, each->weights, whole.count, each->angles);
      }
    }
  }

  // Turns heads `begin` to `end` of q or k.
  template <bool kStreamOutputs, class ToHead>
  void turn_heads(bool is_q, const Prepared<Type>& from, std::int64_t begin, std::int64_t end, ToHead to) {
    Weighing& mine = is_q ? q_ : k_;
    for_parts(*call_.rope, call_.head_dim, [&](const Part& part) HWY_ATTR {
      if (!part.alone()) {  // the angles of one part at a time, computed for each group of heads
        pair_weights<Type, kPairing>(is_q ? call_.prologue->q : call_.prologue->k, part, mine.weights);
        angles_at(call_, token_, part.first, part.count, plain_);
        if (kPairing == Pairing::neox) arrange<Type, Pairing::neox>(part.count, plain_, plain_);
        weigh<Type, kPairing>(plain_, mine.weights, part.count, mine.angles);
      }
      const bool plain = part.alone() && kPairing == Pairing::neox && !mine.weights.any;
      turn_prepared<Type, kPairing, kStreamOutputs>(part, plain ? plain_ : mine.angles.of_x, plain ? plain_ : mine.angles.of_y,
                                                    from, begin, end, to);
    });
  }

 private:
  struct Weighing {
    PairWeights weights;
    WeightedAngles angles;
  };
  const RopePoolFusedCall& call_;
  std::int64_t token_ = 0;
  CosSin plain_;
  Weighing q_, k_;
};

template <class Type, Pairing kPairing, bool kStreamOutputs>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  TokenAngles<Type, kPairing> angles(call);
  Statistics of_all_q, of_all_k;
  const Prologue& prologue = *call.prologue;
  const std::int64_t v_head_bytes = call.v_head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  // A call for each few heads costs more here than stores that come in bursts.
  const bool gaps = call.q_group_gap != 0 || call.q_out_group_gap != 0;
  const std::int64_t kv_step = gaps ? 1 : std::max<std::int64_t>(1, kHeadsAtOnce * call.num_kv_heads / call.num_qo_heads);
  for (std::int64_t t = begin; t < end; ++t) {
    angles.of_token(t);
    const auto turn_with = [&](bool is_q, const Statistics* of_all) HWY_ATTR {
      return [&, is_q, of_all](Heads<Type> heads, std::int64_t first, std::int64_t last, auto to) HWY_ATTR {
        prepare<Type>(is_q ? prologue.q : prologue.k, of_all, heads, call.head_dim, first, last,
                      [&](const Prepared<Type>& from, std::int64_t h, std::int64_t h_end)
                          HWY_ATTR { angles.template turn_heads<kStreamOutputs>(is_q, from, h, h_end, to); });
      };
    };
    const Heads<Type> q(call.q, t), k(call.k, t), v(call.v, t);
    const Statistics* all_k = measure_all<Type>(prologue.k, k, call.num_kv_heads, 1, 0, call.head_dim, of_all_k);
    const Statistics* all_q = measure_all<Type>(prologue.q, q, call.num_qo_heads, call.num_qo_heads / call.num_kv_heads,
                                                call.q_group_gap, call.head_dim, of_all_q);
    run_token<Type, kStreamOutputs>(call, t, kv_step, turn_with(false, all_k), turn_with(true, all_q),
                                    [&](Heads<Type> to, std::int64_t h, auto past_caches) HWY_ATTR {
                                      if (prologue.v_bias == nullptr) {
                                        return copy_head<decltype(past_caches)::value>(to, v, h, call.num_kv_heads,
                                                                                       v_head_bytes);
                                      }
                                      const float* bias = prologue.v_bias + h * call.v_head_dim;
                                      for_lanes<kMaxFloats>(0, call.v_head_dim, [&](auto d, std::int64_t at) HWY_ATTR {
                                        hn::StoreU(Type::round(d, biased<Type>(d, v[h], bias, at)), Type::lanes(d), to[h] + at);
                                      });
                                    });
  }
  if (kStreamOutputs || call.stream_pool) hwy::FlushStream();  // before another thread is told that this range is done
}

void rope_pool_fused_prologue(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  with_types(call, [&](auto type, auto pairing, auto stream_outputs) HWY_ATTR {
    run<decltype(type), decltype(pairing)::value, decltype(stream_outputs)::value>(call, begin, end);
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
