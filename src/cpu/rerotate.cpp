// The kernel of rerotate for the CPU: rows of the pool turned where they stand, by the angle between two places.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rerotate.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "core/rerotate_call.h"
#include "core/rope_tables.h"
#include "cpu/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

template <class Type, Pairing kPairing>
void run(const RerotateCall& call, std::int64_t begin, std::int64_t end) {
  CosSin angles;
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t row = call.pool_rows[t];
    if (row < 0) continue;
    const Heads<Type> keys(call.k_pool, row);
    for_parts(*call.rope, call.head_dim, [&](const Part& part) HWY_ATTR {
      angles_between(*call.rope, call.angles, call.from, call.to, t, part.first, part.count, angles);
      arrange<Type, kPairing>(part.count, angles, angles);
      turn<Type, kPairing>(part, angles, angles, AsTheyStand<Type>{keys}, 0, call.num_kv_heads, ToHeads<Type, false>{keys});
    });
  }
}

void rerotate(const RerotateCall& call, std::int64_t begin, std::int64_t end) {
  with_types(call.dtype, call.rope->pairing,
             [&](auto type, auto pairing) HWY_ATTR { run<decltype(type), decltype(pairing)::value>(call, begin, end); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropepool {
namespace {
HWY_EXPORT(rerotate);
}  // namespace

cpu::Kernel<RerotateCall> cpu::rerotate_kernel(std::int64_t target) {
  return HWY_DISPATCH_TABLE(rerotate)[cpu::dispatch_index(target)];
}
}  // namespace ropepool
#endif
