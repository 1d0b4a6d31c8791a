// rope: q and k turned by their positions, without a pool, as encoders and engines with a cache of their own need it.
#pragma once

#include <cstdint>
#include <limits>

#include <ropepool/executor.h>
#include <ropepool/export.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>
#include <ropepool/tensor.h>

namespace ropepool {

// As RopePoolFusedArgs has them.
struct RopeArgs {
  Tensor q, k, positions, q_out, k_out;
  std::int64_t head_dim = 0, num_qo_heads = 0, num_kv_heads = 0;
  double rope_base = std::numeric_limits<double>::quiet_NaN();
  Angles angles = Angles::exact;
  const Rope* rope = nullptr;
  Tensor rope_sets = {};
};

// Writes q_out and k_out with the bits that rope_pool_fused writes there. Refuses what that refuses of the arrays it has.
ROPEPOOL_API Result<void> rope(const RopeArgs& args, Executor* executor = nullptr);

}  // namespace ropepool
