// The kernel of rope_pool_fused for the CPU.
//
// A token at a time: its angles once, then each key/value head with its query heads, straight to the outputs and the pool.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rope_pool_fused.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"
#include "cpu/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/rope_pool_fused-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

// Compiled once for keys and queries, where a call for each group of heads may cost a tenth.
template <class Type, class ToHead>
HWY_NOINLINE void turn_neighbours(const Part& part, const CosSin& angles, Heads<Type> heads, std::int64_t begin,
                                  std::int64_t end, ToHead to) {
  turn<Type, Pairing::interleaved>(part, angles, angles, AsTheyStand<Type>{heads}, begin, end, to);
}

// Heads with more pairs than are turned at once. Apart, so that the others need no loop over parts.
template <class Type, Pairing kPairing, class ToHead>
HWY_NOINLINE void turn_in_parts(const RopePoolFusedCall& call, std::int64_t t, Heads<Type> heads, std::int64_t begin,
                                std::int64_t end, ToHead to) {
  CosSin angles;
  for_parts(*call.rope, call.head_dim, [&](const Part& part) HWY_ATTR {
    angles_of<Type, kPairing>(call, t, part.first, part.count, angles);
    turn<Type, kPairing>(part, angles, angles, AsTheyStand<Type>{heads}, begin, end, to);
  });
}

template <class Type, Pairing kPairing, bool kStreamQOut>
void run(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
  CosSin angles;
  const std::int64_t v_head_bytes = call.v_head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const Part part = part_of(*call.rope, call.head_dim, 0);
  for (std::int64_t t = begin; t < end; ++t) {
    if (part.alone()) angles_of<Type, kPairing>(call, t, 0, part.count, angles);
    const auto turn_heads = [&](Heads<Type> heads, std::int64_t h, std::int64_t last, auto to) HWY_ATTR
        __attribute__((always_inline)) {
      if (!part.alone()) return turn_in_parts<Type, kPairing>(call, t, heads, h, last, to);
      if constexpr (kPairing == Pairing::neox) {
        turn<Type, kPairing>(part, angles, angles, AsTheyStand<Type>{heads}, h, last, to);
      } else {
        turn_neighbours<Type>(part, angles, heads, h, last, to);
      }
    };
    run_token<Type, kStreamQOut>(call, t, std::integral_constant<std::int64_t, 1>(), turn_heads, turn_heads,
                                 [&](Heads<Type> to, Heads<Type> v, std::int64_t h, auto past_caches) HWY_ATTR {
                                   copy_head<decltype(past_caches)::value>(to, v, h, call.num_kv_heads, v_head_bytes);
                                 });
  }
  if (kStreamQOut || call.stream_pool) hwy::FlushStream();  // before another thread is told that this range is done
}

void rope_pool_fused(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end) {
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
HWY_EXPORT(rope_pool_fused);
}  // namespace

cpu::Kernel<RopePoolFusedCall> cpu::rope_pool_fused_kernel(std::int64_t target) {
  return HWY_DISPATCH_TABLE(rope_pool_fused)[cpu::dispatch_index(target)];
}
}  // namespace ropepool
#endif
