// The floor: what moving the op's bytes costs without its arithmetic, and memcpy of whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

// One call's traffic. Rows are contiguous: q_row and kv_row bytes a token.
struct Traffic {
  std::int64_t num_tokens, q_row, kv_row;
  const std::byte *q, *k, *v;
  std::byte *q_out, *k_out, *k_pool, *v_pool;
  const std::int32_t* slots;
};

// How a copy stores: outputs / pool rows.
enum class Stores {
  regular,     // through the caches
  prefetched,  // the same, with the pool rows of coming tokens fetched ahead
  mixed,       // outputs through the caches, pool rows past them
  streaming,   // past the caches
};
constexpr Stores kAllStores[] = {Stores::regular, Stores::prefetched, Stores::mixed, Stores::streaming};
const char* to_string(Stores stores);

// Reads the tokens' q, k and v once; writes q_out, k_out and the pool rows in the order of the tokens. On the library's
// threads, where there is enough to split.
void copy(const Traffic& traffic, Stores stores);
// The same bytes by memcpy of whole arrays: k and v go to num_tokens rows of the pools from slots[0] on, which must be there.
void copy_whole(const Traffic& traffic);

}  // namespace bench
