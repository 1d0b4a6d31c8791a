// One call of rerotate, resolved.
#pragma once

#include "core/rope_pool_fused_call.h"

namespace ropepool {

struct RerotateCall {
  DType dtype;
  std::int64_t num_tokens, num_kv_heads, head_dim;
  HeadRows k_pool;
  const std::int64_t* pool_rows;  // [num_tokens]: the row that turns, -1 for none; no row twice
  Places from, to;
  const RopeTables* rope;
  Angles angles;
};

}  // namespace ropepool
