// One call of rope_pool_fused, resolved: all that a kernel needs, and nothing that could still be wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ropepool/rope.h>
#include <ropepool/tensor.h>

namespace ropepool {

struct RopeTables;

// [rows, heads, head_dim] with a unit innermost stride; strides in bytes.
struct HeadRows {
  std::byte* data;
  std::int64_t row_stride, head_stride;

  std::byte* row(std::int64_t index) const { return data + index * row_stride; }
  // Whether every head begins at a multiple of `bytes`, a power of two.
  bool aligned(std::int64_t bytes) const {
    return ((reinterpret_cast<std::intptr_t>(data) | row_stride | head_stride) & (bytes - 1)) == 0;
  }
};

constexpr std::int64_t kStreamAlignment = 64;  // of the widest vectors

// Where tokens stand on a rope, and which of its sets turns them.
struct Places {
  const void* positions;
  DType positions_dtype;
  std::int64_t axis_stride;  // elements from one axis of M-RoPE to the next; 0 where all follow one
  const void* sets;          // [num_tokens]; null for the first set
  DType sets_dtype;
};

// What HeadOps come down to for q or k. Arrays are float32 and hold the 1 of a unit offset already.
struct HeadPrologue {
  enum class Norm { none, rms, layer };
  const float* bias;           // [heads, head_dim], or null
  const float* weight;         // [heads, head_dim], [head_dim], or null
  std::int64_t weight_stride;  // from one head's weights to the next: head_dim, or 0 where all have the same
  Norm norm;
  bool over_all_heads;
  float eps, scale;
};
struct Prologue {
  HeadPrologue q, k;
  const float* v_bias;  // [num_kv_heads, v_head_dim], or null
};

struct RopePoolFusedCall {
  DType dtype;
  std::int64_t num_tokens, num_qo_heads, num_kv_heads, head_dim, v_head_dim;
  HeadRows q, k, v, q_out, k_out, k_pool, v_pool;
  // Bytes more than head_stride between the query heads of one key/value head and those of the next, as in a packed QKV that
  // goes by groups.
  std::int64_t q_group_gap, q_out_group_gap;
  const std::int64_t* pool_rows;  // [num_tokens]: the row a token writes, -1 for none; no row twice. Null: there is no pool
  Places places;
  const RopeTables* rope;
  Angles angles;
  const Prologue* prologue;  // null: heads turn as they stand
  // Written past the caches, without a read of the lines that are written. q_out only with the pools, not in place, and where
  // its heads' halves begin at multiples of kStreamAlignment; k_out only with q_out, of tokens with a slot, and where the same
  // holds for k_out and k_pool.
  bool stream_q_out, stream_k_out, stream_pool;
  bool fetch_inputs;  // those of the next token, while this one's turn; only where q_out is streamed
};

}  // namespace ropepool
