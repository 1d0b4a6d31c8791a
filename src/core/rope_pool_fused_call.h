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

struct RopePoolFusedCall {
  DType dtype;
  std::int64_t num_tokens, num_qo_heads, num_kv_heads, head_dim;
  HeadRows q, k, v, q_out, k_out, k_pool, v_pool;
  const void* positions;
  DType positions_dtype;
  std::int64_t positions_axis_stride;  // elements from one axis of M-RoPE to the next; 0 where all follow one
  const std::int64_t* pool_rows;       // [num_tokens]: the row a token writes, -1 for none; no row twice
  const RopeTables* rope;
  const void* rope_sets;  // [num_tokens]: which of the rope's sets a token takes; null for the first
  DType rope_sets_dtype;
  Angles angles;
  // Written past the caches, without a read of the lines that are written. Outputs only with the pools, and only where a head's
  // halves begin at multiples of kStreamAlignment.
  bool stream_outputs, stream_pool;
};

}  // namespace ropepool
