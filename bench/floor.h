// The floor: what moving the op's bytes costs without its arithmetic.
#pragma once

#include <cstdint>

namespace bench {

// One call's traffic. Rows are contiguous: q_row and kv_row bytes a token.
struct Traffic {
  std::int64_t num_tokens, q_row, kv_row;
  const std::byte *q, *k, *v;
  std::byte *q_out, *k_out, *k_pool, *v_pool;
  const std::int32_t* slots;
};

// Reads q, k and v once; writes q_out, k_out and the pool rows, by memcpy.
void copy_regular(const Traffic& traffic);
// The same with stores that go past the caches.
void copy_streaming(const Traffic& traffic);
// Outputs by memcpy, pool rows past the caches.
void copy_mixed(const Traffic& traffic);

}  // namespace bench
