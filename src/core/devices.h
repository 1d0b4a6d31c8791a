// The devices this build has kernels for, and for the CPU which of its SIMD targets is in use.
#pragma once

#include <cstdint>
#include <string>

#include <ropepool/result.h>
#include <ropepool/tensor.h>

namespace ropepool {

struct RopePoolFusedCall;
struct WriteKvCall;
struct RerotateCall;

// What a device has: one function an op, which runs tokens `begin` to `end`.
struct Kernels {
  template <class Call>
  using Kernel = void (*)(const Call& call, std::int64_t begin, std::int64_t end);

  std::string target;
  Kernel<RopePoolFusedCall> rope_pool_fused;
  Kernel<RopePoolFusedCall> rope_pool_fused_prologue;  // of calls that have one
  Kernel<WriteKvCall> write_kv;
  Kernel<RerotateCall> rerotate;
};

constexpr bool has_kernels(DeviceType type) { return type == DeviceType::cpu; }

// Those of the best target, or of the one that ROPEPOOL_TARGET names; an error where that is unknown or can't run here.
const Result<Kernels>& cpu_kernels();

}  // namespace ropepool
