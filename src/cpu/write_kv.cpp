// The kernel of write_kv for the CPU: rows of k and v, as they are, to the rows of the pools.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/write_kv.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "core/write_kv_call.h"
#include "cpu/dispatch.h"
#include "cpu/heads-inl.h"
#include "cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

template <bool kPastCaches>
void run(const WriteKvCall& call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t row = call.pool_rows[t];
    if (row < 0) continue;
    const Heads<Bytes> k(call.k, t), v(call.v, t), k_row(call.k_pool, row), v_row(call.v_pool, row);
    for (std::int64_t h = 0; h < call.num_kv_heads; ++h) {
      copy_head<kPastCaches>(k_row, k, h, call.num_kv_heads, call.k_head_bytes);
      copy_head<kPastCaches>(v_row, v, h, call.num_kv_heads, call.v_head_bytes);
    }
  }
  if (kPastCaches) hwy::FlushStream();  // before another thread is told that this range is done
}

void write_kv(const WriteKvCall& call, std::int64_t begin, std::int64_t end) {
  if (call.stream_pool) return run<true>(call, begin, end);
  return run<false>(call, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropepool {
namespace {
HWY_EXPORT(write_kv);
}  // namespace

cpu::Kernel<WriteKvCall> cpu::write_kv_kernel(std::int64_t target) {
  return HWY_DISPATCH_TABLE(write_kv)[cpu::dispatch_index(target)];
}
}  // namespace ropepool
#endif
