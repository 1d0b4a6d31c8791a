// The devices this build has kernels for, and for the CPU which of its SIMD targets is in use.
#pragma once

#include <cstdint>
#include <string>

#include <ropepool/result.h>
#include <ropepool/tensor.h>

namespace ropepool {

struct RopePoolFusedCall;

// What a device has: one function an op.
struct Kernels {
  std::string target;
  void (*rope_pool_fused)(const RopePoolFusedCall& call, std::int64_t begin, std::int64_t end);
};

constexpr bool has_kernels(DeviceType type) { return type == DeviceType::cpu; }

// Those of the best target, or of the one that ROPEPOOL_TARGET names; an error where that is unknown or can't run here.
const Result<Kernels>& cpu_kernels();

}  // namespace ropepool
