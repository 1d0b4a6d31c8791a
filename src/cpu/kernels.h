// The CPU's kernels by SIMD target, one function an op. `target` is one bit of HWY_TARGETS. Each runs tokens `begin` to `end`.
#pragma once

#include <cstdint>

namespace ropepool {

struct RopePoolFusedCall;
struct WriteKvCall;
struct RerotateCall;

namespace cpu {

template <class Call>
using Kernel = void (*)(const Call& call, std::int64_t begin, std::int64_t end);

Kernel<RopePoolFusedCall> rope_pool_fused_kernel(std::int64_t target);
Kernel<RopePoolFusedCall> rope_pool_fused_prologue_kernel(std::int64_t target);  // of calls with a prologue
Kernel<WriteKvCall> write_kv_kernel(std::int64_t target);
Kernel<RerotateCall> rerotate_kernel(std::int64_t target);

}  // namespace cpu
}  // namespace ropepool
