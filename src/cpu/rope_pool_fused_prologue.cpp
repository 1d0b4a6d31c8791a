// The kernel of rope_pool_fused for the CPU where heads have a bias, a norm or a scale before they turn. Apart from
// rope_pool_fused.cpp so that the two compile side by side.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope_pool_fused_prologue.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

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

// Compiled once for keys and queries: the arithmetic outweighs the call.
template <class Type, Pairing kPairing, bool kStreamOutputs, class ToHead>
HWY_NOINLINE void turn_prepared(const Part& part, const WeightedAngles& angles, const Prepared<Type>& from, std::int64_t begin,
                                std::int64_t end, ToHead to) {
  turn<Type, kPairing, kStreamOutputs>(part, angles.of_x, angles.of_y, from, begin, end, to);
}

// Angles of q's heads or k's: their weights, and the last token's angles with them.
struct Weighing {
  PairWeights weights;
  WeightedAngles angles;
};

template <class Type, Pairing kPairing, bool kStreamOutputs>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  CosSin angles;
  Weighing of_q, of_k;
  Statistics of_all_q, of_all_k;
  const Prologue& prologue = *call.prologue;
  const std::int64_t v_head_bytes = call.v_head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const Part whole = part_of(*call.rope, call.head_dim, 0);
  if (whole.alone()) {
    pair_weights<kPairing>(prologue.q, whole, of_q.weights);
    pair_weights<kPairing>(prologue.k, whole, of_k.weights);
  }
  for (std::int64_t t = begin; t < end; ++t) {
    if (whole.alone()) {
      angles_at(call, t, 0, whole.count, angles);
      weigh<Type, kPairing>(angles, of_q.weights, whole.count, of_q.angles);
      weigh<Type, kPairing>(angles, of_k.weights, whole.count, of_k.angles);
    }
    const auto turn_with = [&](const HeadPrologue& of_heads, Weighing& weighing, const Statistics* of_all) HWY_ATTR {
      return [&, of_all](Heads<Type> heads, std::int64_t first, std::int64_t last, auto to) HWY_ATTR {
        prepare<Type>(of_heads, of_all, heads, call.head_dim, first, last,
                      [&](const Prepared<Type>& from, std::int64_t h, std::int64_t h_end) HWY_ATTR {
                        for_parts(*call.rope, call.head_dim, [&](const Part& part) HWY_ATTR {
                          if (!part.alone()) {  // the angles of one part at a time, computed for each group of heads
                            pair_weights<kPairing>(of_heads, part, weighing.weights);
                            angles_at(call, t, part.first, part.count, angles);
                            weigh<Type, kPairing>(angles, weighing.weights, part.count, weighing.angles);
                          }
                          turn_prepared<Type, kPairing, kStreamOutputs>(part, weighing.angles, from, h, h_end, to);
                        });
                      });
      };
    };
    const Heads<Type> q(call.q, t), k(call.k, t), v(call.v, t);
    const Statistics* all_k = measure_all<Type>(prologue.k, k, call.num_kv_heads, 1, 0, call.head_dim, of_all_k);
    const Statistics* all_q = measure_all<Type>(prologue.q, q, call.num_qo_heads, call.num_qo_heads / call.num_kv_heads,
                                                call.q_group_gap, call.head_dim, of_all_q);
    run_token<Type, kStreamOutputs>(call, t, turn_with(prologue.k, of_k, all_k), turn_with(prologue.q, of_q, all_q),
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
