// One call of write_kv, resolved.
#pragma once

#include "core/rope_pool_fused_call.h"

namespace ropepool {

struct WriteKvCall {
  std::int64_t num_tokens, num_kv_heads;
  std::int64_t k_head_bytes, v_head_bytes;
  HeadRows k, v, k_pool, v_pool;
  const std::int64_t* pool_rows;  // [num_tokens]: the row a token writes, -1 for none; no row twice
  bool stream_pool;               // past the caches
};

}  // namespace ropepool
