// write_kv: rows of k and v to the pool rows that slots name, as they are: for layers without a rope (Llama 4, SmolLM3).
#pragma once

#include <cstdint>
#include <optional>

#include <ropepool/executor.h>
#include <ropepool/export.h>
#include <ropepool/result.h>
#include <ropepool/tensor.h>

namespace ropepool {

// As RopePoolFusedArgs has them. head_dim may be odd, since nothing turns.
struct WriteKvArgs {
  Tensor k, v, slots, k_pool, v_pool;
  std::int64_t head_dim = 0, num_kv_heads = 0;
  std::optional<std::int64_t> v_head_dim = {};
};

// A negative slot writes nothing; of tokens with one slot the last wins, for K and V alike. Refuses what rope_pool_fused
// refuses of the arrays it has.
ROPEPOOL_API Result<void> write_kv(const WriteKvArgs& args, Executor* executor = nullptr);

}  // namespace ropepool
