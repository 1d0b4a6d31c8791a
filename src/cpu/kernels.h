// The CPU's kernels by SIMD target, one function an op. `target` is one bit of HWY_TARGETS.
#pragma once

#include <cstdint>

namespace ropepool {

struct RopePoolFusedCall;

namespace cpu {

using RopePoolFusedKernel = void (*)(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end);
RopePoolFusedKernel rope_pool_fused_kernel(std::int64_t target);

}  // namespace cpu
}  // namespace ropepool
