// The way of a token through rope_pool_fused, with and without a prologue.
// Included by kernels, which Highway compiles once for each SIMD target.
#if defined(ROPEPOOL_CPU_ROPE_POOL_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEPOOL_CPU_ROPE_POOL_FUSED_INL_H_
#undef ROPEPOOL_CPU_ROPE_POOL_FUSED_INL_H_
#else
#define ROPEPOOL_CPU_ROPE_POOL_FUSED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/rope_pool_fused_call.h"
#include "cpu/heads-inl.h"
#include "cpu/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

template <class KvStep>
constexpr bool kIsOne = std::is_same_v<KvStep, std::integral_constant<std::int64_t, 1>>;

// Key/value heads go with their share of the query heads, `kv_step` at a time, so that stores past the caches are spread over
// the arithmetic: 4,096 tokens take 0.9 times as long one at a time as with whole rows. Queries come first, since they do in a
// packed QKV that goes by groups, which is read in 0.8 times the time so. `turn_keys(heads, begin, end, to)` and `turn_queries`
// turn heads of k and q, `store_value(to, v, h, past_caches)` stores a head of v.
// A step of 1 is best a constant, std::integral_constant: one token on AVX2 takes 0.85 times the instructions.
template <class Type, bool kStreamQOut, class KvStep, class TurnKeys, class TurnQueries, class StoreValue>
HWY_INLINE void run_token(const RopePoolFusedCall& call, std::int64_t t, KvStep kv_step, TurnKeys turn_keys,
                          TurnQueries turn_queries, StoreValue store_value) {
  const std::int64_t head_bytes = call.head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
  const bool stored = call.pool_rows != nullptr && call.pool_rows[t] >= 0;
  const std::int64_t row = stored ? call.pool_rows[t] : 0;
  Heads<Type> q(call.q, t), q_out(call.q_out, t);
  const Heads<Type> k(call.k, t), v(call.v, t), k_out(call.k_out, t), k_row(call.k_pool, row), v_row(call.v_pool, row);
  const bool stream_k_out = kStreamQOut && call.stream_k_out && stored;
  const auto fetch_next = [&](Heads<Type> heads, std::int64_t begin, std::int64_t end, std::int64_t head_dim,
                              const HeadRows& rows) HWY_ATTR __attribute__((always_inline)) {
    if (kStreamQOut && call.fetch_inputs) fetch(heads, begin, end, head_dim, rows.row_stride);
  };
  std::int64_t qo = 0;
  for (std::int64_t kv = 0; kv < call.num_kv_heads; kv += kv_step) {
    const std::int64_t kv_end = kIsOne<KvStep> ? kv + 1 : std::min<std::int64_t>(kv + kv_step, call.num_kv_heads);
    const std::int64_t end = call.num_qo_heads * kv_end / call.num_kv_heads;
    fetch_next(q, qo, end, call.head_dim, call.q);
    turn_queries(q, qo, end, ToHeads<Type, kStreamQOut>{q_out});
    qo = end;
    q.row += call.q_group_gap;
    q_out.row += call.q_out_group_gap;
    fetch_next(k, kv, kv_end, call.head_dim, call.k);
    if (stream_k_out) {  // read back from memory, k_out would cost more than it does from the L1 cache
      turn_keys(k, kv, kv_end, ToBothHeads<Type, kStreamQOut>{k_out, k_row});
    } else {
      turn_keys(k, kv, kv_end, ToHeads<Type, false>{k_out});
    }
    for (std::int64_t h = kv; stored && h < kv_end; ++h) {
      fetch_next(v, h, h + 1, call.v_head_dim, call.v);
      const auto store = [&](auto past_caches) HWY_ATTR {
        constexpr bool kPastCaches = decltype(past_caches)::value;
        if (!stream_k_out) copy_head<kPastCaches>(k_row, k_out, h, call.num_kv_heads, head_bytes);
        store_value(v_row, v, h, past_caches);
      };
      if (kStreamQOut || call.stream_pool) {
        store(std::true_type());
      } else {
        store(std::false_type());
      }
    }
  }
}

// Calls run(type, pairing, stream_q_out) with what a call has of each, as types.
template <class Run>
HWY_INLINE void with_types(const RopePoolFusedCall& call, Run run) {
  with_types(call.dtype, call.rope->pairing, [&](auto type, auto pairing) HWY_ATTR {
    if (call.stream_q_out) return run(type, pairing, std::true_type());
    return run(type, pairing, std::false_type());
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
